"""The command and the program that lead from measurements of NCCL to a table."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain_comm.cli import main
from drivetrain_comm.nccl import (
    HostedTuner,
    load_measurements,
    load_table,
    table_from,
)

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
RESULTS = """collective,ranks,nodes,size_bytes,algorithm,protocol,channels,time_us
all_reduce,8,1,1024,default,default,,20
all_reduce,8,1,1024,tree,ll,4,10
all_reduce,8,1,4096,default,default,,20
all_reduce,8,1,4096,tree,ll,4,16
all_reduce,8,1,16384,default,default,,20
"""


def test_tune_makes_a_table_that_the_plugin_takes(tmp_path, monkeypatch, capsys):
    results, out = tmp_path / "results.csv", tmp_path / "table"
    results.write_text(RESULTS)
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["tune", "--nccl", str(results), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "1.25 to 2.00 x" in said
    assert "NCCL decides the rest: 1 of 3 sizes." in said
    monkeypatch.setenv("DRIVETRAIN_COMM_NCCL_TABLE", str(out))
    with HostedTuner(ranks=8, nodes=1) as tuner:
        assert tuner.chosen("all_reduce", 4096) == ("tree", "ll")
        assert tuner.chosen("all_reduce", 4097) is None
    assert main(["tune", "--nccl", str(results), "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["hash"] == load_table(out).hash
    assert [rule["end_bytes"] for rule in report["rules"]] == [4097]
    assert len(report["winners"]) == 3


def test_tune_without_the_plugin_still_makes_the_table(tmp_path, monkeypatch, capsys):
    results, out = tmp_path / "results.csv", tmp_path / "table"
    results.write_text(RESULTS)
    monkeypatch.setattr("drivetrain_comm.__path__", [])
    assert main(["tune", "--nccl", str(results), "--out", str(out)]) == 0
    assert "without a C++ compiler" in capsys.readouterr().out
    assert len(load_table(out).rules) == 1


@pytest.mark.parametrize(
    ("words", "why", "status"),
    [
        (["--nccl", "none.csv"], "--nccl RESULTS and --out TABLE go together", 2),
        (["--out", "table"], "--nccl RESULTS and --out TABLE go together", 2),
        (["--nccl", "none.csv", "--out", "table"], "none.csv: it cannot be read", 1),
    ],
)
def test_tune_says_in_one_line_what_is_wrong(
    words, why, status, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *words]) == status
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_sweep_refuses_a_machine_without_gpus():
    command = [sys.executable, str(BENCHMARKS / "nccl_sweep.py"), "--out", os.devnull]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 1
    assert done.stderr == (
        "nccl_sweep: NCCL needs CUDA GPUs, and torch finds none here\n"
    )


@pytest.mark.slow
def test_sweep_that_runs_out_of_time_leaves_a_table_of_what_it_measured(tmp_path):
    out = tmp_path / "results.csv"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [
        "--nproc-per-node",
        "2",
        str(Path(__file__).with_name("sweep_on_gloo.py")),
    ]
    command += ["--collectives", "all_reduce", "--sizes", "1K,64K", "--minutes", "0.02"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, "--out", str(out)],
        check=False,
        capture_output=True,
        text=True,
        env=env,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = load_measurements(out)
    # The first setting took longer than the time: the others were not begun.
    assert [(one.size_bytes, one.choice) for one in found] == [
        (1024, None),
        (65536, None),
    ]
    assert table_from(found).rules == ()
