"""Faults in real processes: whether each is named with its class and its node, and no other.

A job of two nodes with two workers each trains while one fault after the other is made in it;
those that end a job get one each. What the master writes into its event log is compared with
what was done.
"""

import contextlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

from drivetrain_elastic import ElasticLoop, Schedule
from drivetrain_elastic._client._master_client import MasterError
from drivetrain_elastic.testing import LocalJob, members_of
from drivetrain_testing import Row

_SILENCE_S = 1.5
_NUM = 50
_PATIENCE_S = 30.0
_OPTIONS = [
    *("--nproc-per-node", "2", "--nnodes", "2:2", "--max-restarts", "1000"),
    *("--check", "never", "--frozen-s", str(_SILENCE_S), "--stuck-s", "4"),
    *("--patience-s", "120"),
]
# What is done in a worker, and what that is.
CLASSES = {
    "kill": "killed",
    "segfault": "crash",
    "abort": "crash",
    "stop": "hang",
    "sleep": "hang",
    "no memory": "out-of-memory",
    "disk full": "storage",
    "port in use": "rendezvous",
    "slow": "straggler",
    "agent": "node-lost",
    "wrong value": "program",
    "no module": "program",
}
# No node is to blame for them, and they end the job.
PROGRAM = ("wrong value", "no module")


def real_faults(quick):
    """Makes faults, and returns how well they were named."""
    dice = random.Random(0)
    num = 12 if quick else _NUM
    kinds = list(itertools.islice(itertools.cycle(CLASSES), num))
    dice.shuffle(kinds)
    going = [one for one in kinds if one not in PROGRAM]
    ending = [one for one in kinds if one in PROGRAM]
    found = Counter()
    wrong = []
    batches = [going[at : at + 10] for at in range(0, len(going), 10)]
    for batch in [*batches, *([one] for one in ending)]:
        expected, told = trial(batch, dice)
        matched = list((Counter(expected) & Counter(told)).elements())
        found["right"] += len(matched)
        found["missed"] += len(expected) - len(matched)
        found["false"] += len(told) - len(matched)
        if Counter(expected) != Counter(told):
            wrong.append({"expected": expected, "told": told})
    recall = found["right"] / (found["right"] + found["missed"])
    precision = found["right"] / max(1, found["right"] + found["false"])
    return Row(
        figure=f"{num} faults of {len(CLASSES)} kinds: recall {recall:.1%}, precision "
        f"{precision:.1%}",
        holds=recall >= 0.99 and precision >= 0.99,
        proven_on="cpu-gloo",
        details={"wrong": wrong},
    )


def trial(kinds, dice):
    """Makes faults in one job; returns what should be told, and what is."""
    expected = []
    with tempfile.TemporaryDirectory() as folder:
        program = [str(Path(__file__).resolve()), folder]
        with LocalJob(folder, options=_OPTIONS, program=program) as job:
            job.start_node()
            job.start_node()
            for kind in kinds:
                before = job.wait_for_step(5, num_workers=4, timeout_s=120.0)
                num_told = len(diagnoses(job.events()))
                victim = dice.choice(members_of(before))
                expected.append(expect(kind, victim))
                make(kind, victim, job, folder)
                if kind in PROGRAM:
                    job.wait(60.0)
                    break
                wait_until_told(job, num_told + 1)
                whole_again(job)
            told = [] if kinds[0] in PROGRAM else diagnoses(job.events())
            if kinds[0] in PROGRAM:
                told = [("program", "")] if "failed, program," in job.text() else []
    return expected, told


def expect(kind, victim):
    node = "" if kind in PROGRAM else victim.name.split("/")[0]
    return CLASSES[kind], node


def make(kind, victim, job, folder):
    """Makes a fault."""
    if kind == "kill":
        os.kill(victim.pid, signal.SIGKILL)
    elif kind == "stop":
        os.kill(victim.pid, signal.SIGSTOP)
    elif kind == "agent":
        name = victim.name.split("/")[0]
        job.nodes[name].kill()
        job.nodes[name].wait()
        # The first one keeps the master, which ends with it.
        job.start_node(name=name)
    else:
        Path(folder, f"fault-{victim.pid}").write_text(kind)


def wait_until_told(job, num):
    end_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end_s:
        # A master that starts again does not answer for a time.
        with contextlib.suppress(MasterError):
            if len(diagnoses(job.events())) >= num:
                return
        time.sleep(0.1)


def whole_again(job):
    """Waits until four workers make steps, and none is still told to be slow."""
    step = max((one.step for one in members_of(job.status())), default=0)
    job.wait_for_step(step + 60, num_workers=4, timeout_s=120.0)
    end_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end_s:
        kinds = [event.kind for event in job.events()]
        slow = [
            kind for kind in kinds if kind in {"straggler", "straggler-over", "world"}
        ]
        # A new world compares anew.
        if not slow or slow[-1] != "straggler":
            return
        time.sleep(0.1)


def diagnoses(events):
    """Returns the class and node of each diagnosis, as they were told."""
    found = []
    for event in events:
        if event.kind == "diagnosis":
            failure_class = event.reason.split(",")[0]
            node = event.subject.split("/")[0]
            found.append((failure_class, node))
    return found


# ---- in a worker ----


def fail(kind, folder):
    """Fails, in the middle of a step."""
    if kind == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif kind == "abort":
        os.abort()
    elif kind == "sleep":
        time.sleep(1000)
    elif kind == "no memory":
        # As Python says it when the system gives it none.
        bytearray(1 << 62)
    elif kind == "disk full":
        with Path("/dev/full").open("w") as full:
            full.write("x" * 100_000)
    elif kind == "port in use":
        import socket

        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            first.listen()
            second.bind(first.getsockname())
    elif kind == "wrong value":
        torch.ones(3) @ torch.ones(4)
    elif kind == "no module":
        import no_such_module  # noqa: F401


def worker(folder):
    """The training, in which a file says what goes wrong here."""
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 1))
    data = torch.rand(64, 32)
    loop = ElasticLoop(
        model,
        torch.optim.SGD(model.parameters(), lr=1e-3),
        schedule=Schedule(num_samples=64, global_batch=16),
        num_steps=1_000_000,
    )
    fault = Path(folder, f"fault-{os.getpid()}")
    slow_until = 0
    for step in loop:
        with step:
            for part in step.parts():
                loss = model(data[part.indices]).square().mean() * part.weight
                loss.backward()
            time.sleep(0.02)
            kind = fault.read_text() if fault.exists() else ""
            if kind == "slow":
                slow_until = step.number + 250
            elif kind:
                fail(kind, folder)
            if kind:
                fault.unlink()
            if step.number < slow_until:
                time.sleep(0.04)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        worker(sys.argv[1])
    else:
        row = real_faults(False)
        print(row.figure, json.dumps(row.details, indent=1))
