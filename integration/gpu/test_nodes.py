"""The comparison on several hosts, with ranks of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nodes
import pytest
import run


@pytest.mark.parametrize(
    ("num_hosts", "lines"),
    [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])],
)
def test_lines_are_powers_of_two_and_all(num_hosts, lines):
    assert nodes.hosts_of_lines(num_hosts) == lines


def test_command_starts_the_ranks_of_a_host():
    words = run.command_of_nodes(4, 8, "head:29400")
    for name, value in {
        "--nnodes": "4",
        "--nproc-per-node": "8",
        "--rdzv-endpoint": "head:29400",
    }.items():
        assert words[words.index(name) + 1] == value
    assert Path(words[-1]).is_file()


@pytest.mark.slow
def test_two_ranks_are_compared(tmp_path):
    out = tmp_path / "nodes.json"
    small = ["--width", "64", "--layers", "4", "--batch", "4", "--steps", "2"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(Path(nodes.__file__)), *small]
    command += ["--turns", "2", "--out", str(out)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=env, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (row,) = json.loads(out.read_text())["rows"]
    assert row["hosts"] == 1
    assert row["stock_s"] > 0
    assert row["tuned_s"] > 0
    assert "1 hosts, 2 ranks: stock" in done.stdout
