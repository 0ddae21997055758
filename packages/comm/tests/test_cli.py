"""The commands of `drivetrain comm`, alone and on ranks."""

import json
import subprocess
import sys

import pytest

from drivetrain_comm.backend import _native
from drivetrain_comm.cli import main
from drivetrain_testing import check_wrong_use, exit_status, run_ranks

needs_engine = pytest.mark.skipif(
    _native.missing_because() is not None, reason=str(_native.missing_because())
)


@pytest.mark.parametrize("command", ["bench", "tune"])
def test_command_of_ranks_says_how_to_start_it(command, capsys):
    assert main([command]) == 2
    said = capsys.readouterr().err
    assert f"torchrun --nproc-per-node 4 -m drivetrain_comm.cli {command}" in said


@pytest.mark.parametrize("sizes", ["none", "", "2", "5G", "-4K", "1K,,2K"])
def test_sizes_that_are_none_are_refused(sizes, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", f"--sizes={sizes}"])
    assert stopped.value.code == 2
    assert "argument --sizes: a size is " in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["-m"], ["--help"], ["-c", "print(1)"]])
def test_program_that_runs_a_script_says_how_to_call_it(words):
    command = [sys.executable, "-m", "drivetrain_comm.auto", *words]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    assert found.returncode != 0
    assert found.stderr.startswith("usage: python -m drivetrain_comm.auto ")
    assert found.stderr.count("\n") == 1


def on_a_rank(words):
    import contextlib
    import io
    import os

    os.environ["DRIVETRAIN_COMM_HOST"] = os.environ["RANK"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main(words)
    return status, out.getvalue()


@needs_engine
def test_bench_measures_every_algorithm():
    words = ["bench", "--sizes", "4K,64K", "--json"]
    (status, text), (other, nothing) = run_ranks(
        on_a_rank, 2, words, process_group=False
    )
    assert (status, other, nothing) == (0, 0, "")
    found = json.loads(text)
    assert found["ranks_per_host"] == [1, 1]
    assert found["sizes_bytes"] == [4096, 65536]
    assert set(found["seconds"]) == {"stock", "direct"}
    assert all(value > 0 for each in found["seconds"].values() for value in each)


@needs_engine
@pytest.mark.parametrize("words", [["tune"], ["tune", "--json", "--sizes", "1M"]])
def test_tune_shows_the_network_and_what_is_chosen(words):
    (status, text), _ = run_ranks(on_a_rank, 2, words, process_group=False)
    assert status == 0
    if "--json" not in words:
        assert "socket buffers" in text
        assert "direct" in text
        return
    found = json.loads(text)
    assert found["hosts"] == [[0], [1]]
    assert found["network"]["port_bytes_per_s"] > 0
    assert found["choices"]["1048576"]["algorithm"] == "direct"


def test_doctor_names_what_it_looked_at(capsys):
    status = main(["doctor", "--ranks", "4", "--json"])
    found = {one["name"]: one["level"] for one in json.loads(capsys.readouterr().out)}
    assert {"engine", "resolver", "somaxconn", "open files", "ports"} <= set(found)
    assert status == int("bad" in found.values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["doctor", "--ranks", "0"], "--ranks: must be from 1 to 1e+09, got 0"),
        (["bench", "--streams", "0"], "--streams: must be at least 1, got 0"),
        (
            ["tune", "--nccl", "results.csv"],
            "--nccl RESULTS and --out TABLE go together",
        ),
    ],
)
def test_wrong_use_is_told_by_its_command(words, message, capsys):
    status = exit_status(main, words)
    program = f"drivetrain-comm {words[0]}: error:"
    check_wrong_use(program, status, *capsys.readouterr(), message)
