"""Trainers of a scenario on the nodes of a network: one process for each rank."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

_HERE = Path(__file__).parent
_PORT = 29500
_PATIENCE_S = 900


class TrainingError(RuntimeError):
    """A rank ended with an error, or none came to its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """What the ranks of a job printed in the end.

    Args:
        steps_s: The seconds of each step of the rank that took longest for it.
        losses: The losses of each rank.
        checksums: What each rank's parameters hash to.
    """

    steps_s: list[float]
    losses: list[list[float]]
    checksums: list[str]

    @property
    def ranks_agree(self):
        """Whether all ranks have the same parameters, bit by bit."""
        return len(set(self.checksums)) == 1

    def median_s(self, num_warmup):
        """The median step without the first ones."""
        return statistics.median(self.steps_s[num_warmup:])


def loss_difference(one, other):
    """The largest relative difference between the losses of two trainings."""
    pairs = zip(chain(*one.losses), chain(*other.losses), strict=True)
    return max(abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in pairs)


def train(network, scenario, *options, launcher=None):
    """Runs the training script of a scenario on an idle network.

    Args:
        network: As many nodes as the scenario has hosts.
        scenario: What runs where.
        *options: Further arguments of the script.
        launcher: The module that starts the script; None means Python itself.

    Raises:
        TrainingError: It did not end well; the message has the end of its errors.
    """
    fixed = ["--model", scenario.model, "--compute-s", scenario.compute_s]
    script = [_HERE / "train.py", *fixed, *options]
    module = ["-m", launcher] if launcher else []
    command = [sys.executable, *module, *script]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, str(rank)) for rank in range(len(scenario.hosts))]
        processes = []
        try:
            for rank, file in enumerate(files):
                processes.append(_start(network, scenario, rank, command, file))
            _wait(processes, files)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        results = [json.loads(_lines(file)[-1]) for file in files]
    return Training(
        steps_s=[
            max(times) for times in zip(*(r["steps_s"] for r in results), strict=True)
        ],
        losses=[result["losses"] for result in results],
        checksums=[result["checksum"] for result in results],
    )


def environment(network, scenario, rank):
    """The variables of a rank, as torchrun sets them."""
    hosts = scenario.hosts
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_RANK": str(hosts[:rank].count(hosts[rank])),
        "LOCAL_WORLD_SIZE": str(hosts.count(hosts[rank])),
        "MASTER_ADDR": network.address(hosts[0]),
        "MASTER_PORT": str(_PORT),
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
    }


def _start(network, scenario, rank, command, file):
    paths = [str(_HERE.parent), os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ,
        **environment(network, scenario, rank),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    with file.open("w") as out, file.with_suffix(".err").open("w") as err:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        return network.start(scenario.hosts[rank], command, env=env, **pipes)


def _wait(processes, files):
    """Waits until all have ended well, or one has not."""
    end = time.monotonic() + _PATIENCE_S
    while any(process.poll() is None for process in processes):
        failed = any(process.poll() for process in processes)
        if failed or time.monotonic() > end:
            break
        time.sleep(0.05)
    for rank, (process, file) in enumerate(zip(processes, files, strict=True)):
        code = process.poll()
        if code:
            tail = "\n".join(_lines(file.with_suffix(".err"))[-15:])
            raise TrainingError(f"rank {rank} ended with {code}:\n{tail}")
    if any(process.poll() is None for process in processes):
        raise TrainingError(f"the training did not end within {_PATIENCE_S} s")


def _lines(file):
    return file.read_text().splitlines()
