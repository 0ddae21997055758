"""`drivetrain comm compile`."""

import json
from dataclasses import replace

import pytest
from msccl_read import from_msccl

from drivetrain_comm.cli import main
from drivetrain_comm.compiler import Schedule, graph_to_json, star, verify


@pytest.fixture
def links(tmp_path):
    path = tmp_path / "links.json"
    path.write_text(graph_to_json(star([1e9, 1e9, 5e8], 1e-5)))
    return str(path)


def test_compile_prints_what_was_tried_and_the_bound(links, capsys):
    assert main(["compile", links, "--size", "1M", "--budget", "0.5"]) == 0
    said = capsys.readouterr().out
    assert "all_reduce of 1 MiB on star of 3" in said
    assert "ring" in said
    assert "no schedule takes less than 2.107 ms" in said
    assert "what must leave rank 2 over r2 -> switch" in said


@pytest.mark.parametrize(
    ("suffix", "read"), [("json", Schedule.from_json), ("xml", from_msccl)]
)
def test_compile_writes_what_can_be_read_again(links, tmp_path, capsys, suffix, read):
    path = tmp_path / f"schedule.{suffix}"
    words = ["compile", links, "--collective", "broadcast", "--root", "1", "--json"]
    assert main([*words, "--budget", "0.2", "--out", str(path)]) == 0
    schedule = read(path.read_text())
    verify(schedule)
    assert schedule.collective == "broadcast"
    assert set(schedule.owners) == {1}
    report = json.loads(capsys.readouterr().out)
    assert report["seconds"] == report["candidates"][0]["seconds"]
    assert report["seconds"] >= report["bound"]["seconds"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "schedule.txt"], "--out: must end in .json or .xml"),
        (["--collective", "broadcast", "--root", "7"], "--root must be one of 3 ranks"),
        (["--size", "many"], "--size: a size is a number of bytes"),
        (["--message-us", "-1"], "--message-us: must be at least 0"),
        (["--budget", "nan"], "--budget: must be a number"),
        (["--message-us", "inf"], "--message-us: must be finite"),
        (["--size", "4K,8M"], "--size: a size is a number of bytes"),
        (["--size", "0"], "--size: a size is 4 bytes to 4 GiB, got '0'"),
    ],
)
def test_wrong_use_of_compile_names_the_option(links, capsys, words, message):
    try:
        status = main(["compile", links, *words])
    except SystemExit as stopped:
        status = stopped.code
    assert status == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("drivetrain-comm compile: error: ")
    assert message in last


def test_compile_says_what_is_wrong_with_a_file(tmp_path, capsys):
    path = tmp_path / "links.json"
    path.write_text('{"drivetrain_links": 1, "name": "x", "num_ranks": 2, "wires": []}')
    assert main(["compile", str(path)]) == 1
    assert "2 of 2 ranks have no wire out" in capsys.readouterr().err


def test_compile_prints_names_as_they_are(tmp_path, capsys):
    graph = replace(star([1e9] * 2), name="[/red] [bold]x")
    path = tmp_path / "links.json"
    path.write_text(graph_to_json(graph))
    assert main(["compile", str(path), "--size", "4K"]) == 0
    assert "[/red] [bold]x" in capsys.readouterr().out
