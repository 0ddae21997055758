"""Limits of containers, as cgroups of both versions tell them."""

from __future__ import annotations

import os

import psutil
import pytest
import torch

from drivetrain_core import machine_limits
from drivetrain_core.accelerators import accelerator_of

GB = 1 << 30


@pytest.fixture
def cgroups(tmp_path, monkeypatch):
    """Returns what writes the files of a container: its groups, and their files."""
    monkeypatch.setattr(machine_limits, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine_limits, "_OWN", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    machine = psutil.virtual_memory()._replace(total=16 * GB, available=12 * GB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)

    def write(own, files):
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            file = tmp_path / "cgroup" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")

    return write


V2 = "0::/pod/job\n"
V1 = "4:memory:/pod\n3:cpu,cpuacct:/pod\n1:name=systemd:/\n0::/\n"


@pytest.mark.parametrize(
    ("own", "files", "available", "total", "cores"),
    [
        (V2, {}, 12 * GB, 16 * GB, 8),
        ("", {"memory.max": GB}, 12 * GB, 16 * GB, 8),
        (V2, {"memory.max": 2 * GB, "memory.current": GB}, GB, 2 * GB, 8),
        (V2, {"pod/memory.max": 4 * GB, "memory.max": "max"}, 4 * GB, 4 * GB, 8),
        (V2, {"pod/job/memory.max": "max", "memory.max": 99 * GB}, 12 * GB, 16 * GB, 8),
        (
            V2,
            {
                "memory.max": 2 * GB,
                "memory.current": 2 * GB,
                "memory.stat": f"anon 5\ninactive_file {GB // 2}\nactive_file {GB // 2}",
            },
            *(GB, 2 * GB, 8),
        ),
        (V2, {"memory.max": GB, "memory.current": 2 * GB}, 0, GB, 8),
        (
            V2,
            {
                "pod/memory.max": 2 * GB,
                "pod/memory.current": GB // 2,
                "memory.max": 4 * GB,
                "memory.current": 4 * GB - 5,
            },
            *(5, 2 * GB, 8),
        ),
        (V2, {"pod/cpu.max": "150000 100000"}, 12 * GB, 16 * GB, 1),
        (V2, {"cpu.max": "400000 100000", "pod/cpu.max": "max 100000"}, *(12 * GB, 16 * GB, 4)),
        (V2, {"cpu.max": "1000 100000"}, 12 * GB, 16 * GB, 1),
        (
            V1,
            {
                "memory/pod/memory.limit_in_bytes": 3 * GB,
                "memory/pod/memory.usage_in_bytes": 2 * GB,
                "memory/pod/memory.stat": f"inactive_file 1\ntotal_inactive_file {GB}",
                "cpu,cpuacct/pod/cpu.cfs_quota_us": 200000,
                "cpu,cpuacct/pod/cpu.cfs_period_us": 100000,
            },
            *(2 * GB, 3 * GB, 2),
        ),
        (V1, {"cpu,cpuacct/pod/cpu.cfs_quota_us": -1}, 12 * GB, 16 * GB, 8),
    ],
)  # fmt: skip
def test_least_of_machine_and_groups_counts(
    cgroups, own, files, available, total, cores
):
    cgroups(own, files)
    assert machine_limits.memory() == (available, total)
    assert machine_limits.num_cores() == cores


def test_device_facts_are_those_of_the_container(cgroups):
    cgroups(V2, {"memory.max": GB, "memory.current": GB // 2})
    cpu = accelerator_of(torch.device("cpu"))
    assert cpu.facts().memory_bytes == GB
    assert cpu.memory() == (GB // 2, GB)
