"""The command, and the tables and pictures that it makes."""

import json
import pickle
import sys

import pytest

from drivetrain_memory import MemoryUseError, compare, plot_trace
from drivetrain_memory._compare import table
from drivetrain_memory._native import NativeAllocator, null_driver
from drivetrain_memory._replay import MODELS
from drivetrain_memory._snapshot import snapshot_of
from drivetrain_memory.cli import main
from drivetrain_memory.trace import Trace, pattern

CHUNK = 2 * 2**20


@pytest.fixture
def snapshot_file(tmp_path):
    allocator = NativeAllocator(null_driver(64 * CHUNK, CHUNK))
    allocator.keep_history(1000)
    blocks = [allocator.allocate(3 * CHUNK, stream=s) for s in (0, 1, 0)]
    allocator.free(blocks[0])
    path = tmp_path / "held.pickle"
    path.write_bytes(pickle.dumps(snapshot_of(allocator)))
    return path


def test_list_names_programs_patterns_and_allocators(capsys):
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["allocators"] == list(MODELS)
    assert {"island", "aging"} <= set(found["patterns"])
    assert len(found["programs"]) >= 10
    assert main(["list"]) == 0
    assert "patterns: " in capsys.readouterr().out


def test_trace_of_a_name_and_of_a_snapshot(tmp_path, capsys, snapshot_file):
    path = tmp_path / "island.dtm"
    assert main(["trace", "island", "-o", str(path)]) == 0
    assert "4.00 GiB live at the peak" in capsys.readouterr().out
    assert Trace.load(path).name == "island"
    assert main(["trace", str(snapshot_file), "-o", str(path)]) == 0
    assert Trace.load(path).peak_live_bytes == 9 * CHUNK


def test_replay_says_whether_it_finishes(capsys):
    assert main(["replay", "checkerboard-6"]) == 0
    assert "finished" in capsys.readouterr().out
    assert main(["replay", "checkerboard-6", "--model", "native"]) == 1
    assert "out of memory" in capsys.readouterr().out
    command = ["replay", "checkerboard-6", "--capacity", "8", "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["finished"]
    assert found["capacity_bytes"] == 8 * 2**30


def test_compare_shows_models_as_models(capsys):
    assert main(["compare", "island"]) == 0
    out = capsys.readouterr().out
    for name in MODELS:
        assert (f"{name} (model)" in out) == (name != "ours")
    assert main(["compare", "island", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["allocator"] for row in rows] == list(MODELS)


def test_table_gives_the_figures():
    (row,) = compare(pattern("island"), ["ours"])
    assert row.finishes
    assert row.utilisation >= 0.98
    assert f"{row.smallest:.3f}x" in table([row])


def test_no_allocator_needs_less_than_what_is_live():
    for row in compare(pattern("checkerboard-24")):
        assert row.smallest >= 0.999
        assert 0 < row.utilisation <= 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["replay", "nowhere"], "drivetrain memory list"),
        (["compare", "island", "nowhere"], "no program 'nowhere'"),
        (["plot", "nowhere", "-o", "x.png"], "no file and no program 'nowhere'"),
        (["replay", "island", "--model", "other"], "--model must be one of ours, "),
        (["replay", "island", "--capacity", "0"], "--capacity: a device has more than"),
        (["plot", "island", "-o", "a.gif"], "-o/--output: pictures are .png or .html"),
        (
            ["trace", "island", "-o", "a", "--device", "-1"],
            "--device: must be at least 0",
        ),
    ],
)
def test_wrong_use_names_the_option_or_the_name(argv, message, capsys):
    try:
        status = main(argv)
    except SystemExit as left:
        status = left.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith(f"drivetrain-memory {argv[0]}: error: ")
    assert message in last


@pytest.mark.extra
@pytest.mark.parametrize("suffix", [".png", ".html"])
def test_pictures_of_a_trace_and_of_a_snapshot(tmp_path, suffix, snapshot_file):
    trace = tmp_path / "island.dtm"
    pattern("island").save(trace)
    for source in (trace, snapshot_file):
        picture = tmp_path / f"{source.stem}{suffix}"
        assert main(["plot", str(source), "-o", str(picture)]) == 0
        data = picture.read_bytes()
        assert data.startswith(b"\x89PNG" if suffix == ".png" else b"<!doctype html>")
        assert len(data) > 10_000


@pytest.mark.extra
def test_picture_of_the_addresses_at_the_peak(tmp_path):
    picture = tmp_path / "island.png"
    arguments = ["plot", "island", "--at-peak", "-o", str(picture)]
    assert main(arguments) == 0
    assert len(picture.read_bytes()) > 10_000
    assert main([*arguments, "--capacity", "2"]) == 1


@pytest.mark.extra
def test_picture_of_another_kind_is_refused(tmp_path):
    with pytest.raises(MemoryUseError, match="png or"):
        plot_trace(pattern("island"), tmp_path / "island.jpeg")


def test_picture_without_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MemoryUseError, match=r"drivetrain-memory\[plot\]"):
        plot_trace(pattern("island"), tmp_path / "island.png")
