"""How fast the GPUs of a node send to each other, all at once: over NVLink, if there is.

NCCL's own test measures it where it is installed, and plain copies where it is not.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import torch

from drivetrain_health.checks._gpus import gpus
from drivetrain_health.checks._task import CheckFailedError, Found, repeat, said_by

if TYPE_CHECKING:
    from drivetrain_health.checks._task import Task

_NUM_WORDS = 8 << 20
_BUS_RATE = re.compile(r"(?m)^# Avg bus bandwidth\s*: (?=.*[1-9])(\d+\.?\d*)\s*$")
_WRONG = re.compile(r"^# Out of bounds values\s*: [1-9].*", re.MULTILINE)


def measure(task: Task) -> Found:
    """Has each GPU send to each other one; returns `gpus_all_to_all_gb_per_s` in all.

    By NCCL's test, it is `nccl_all_to_all_gb_per_s`: of each GPU's bus.

    Raises:
        NotHereError: There are fewer than two GPUs, or NCCL's test lacks a library.
        CheckFailedError: What has arrived is not what was sent, or NCCL's test fails.
    """
    devices = gpus(2)
    num = len(devices)
    command = nccl_test(num)
    if shutil.which(command[0]):
        task.note(f"running {command[0]}")
        said = said_by(command, task.limit_s)
        rate, wrong = _BUS_RATE.search(said.text), _WRONG.search(said.text)
        if wrong is None:
            said.refuse_failure(command[0])
        if rate is None or wrong is not None:
            message = f"{command[0]}: {wrong[0] if wrong else said.last_line}"
            raise CheckFailedError(message)
        return Found({"nccl_all_to_all_gb_per_s": float(rate[1])})
    sent = [
        torch.full((_NUM_WORDS,), index, device=devices[index]) for index in range(num)
    ]
    got = [[torch.zeros_like(sent[to]) for _ in range(num)] for to in range(num)]
    task.note(f"copying between {num} GPUs")
    _send_all(sent, got)
    num_rounds, took_s = repeat(lambda: _send_all(sent, got), task.measure_s)
    for to, row in enumerate(got):
        for sender, words in enumerate(row):
            if sender != to and not bool((words == sender).all()):
                message = (
                    f"what {devices[sender]} has sent to {devices[to]} is wrong there"
                )
                raise CheckFailedError(message)
    num_bytes = num_rounds * num * (num - 1) * sent[0].nbytes
    return Found({"gpus_all_to_all_gb_per_s": num_bytes / took_s / 1e9})


def nccl_test(num_gpus: int) -> list[str]:
    """Returns the command of NCCL's test of sending between all GPUs of a node.

    Args:
        num_gpus: How many there are.
    """
    return ["alltoall_perf", "-b", "256M", "-e", "256M", "-g", str(num_gpus)]


def _send_all(sent: list[torch.Tensor], got: list[list[torch.Tensor]]) -> None:
    num = len(sent)
    # At any time each sends to another one than the others do.
    for shift in range(1, num):
        for sender in range(num):
            to = (sender + shift) % num
            got[to][sender].copy_(sent[sender], non_blocking=True)
    for words in sent:
        torch.accelerator.synchronize(words.device)
