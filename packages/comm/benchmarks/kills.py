"""Ranks that are killed or frozen in mid-collective: every other one gets an error."""

import argparse
import json
import os
import random
import selectors
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from drivetrain_testing import Row

_VICTIM = Path(__file__).with_name("victim.py")
_TIMEOUT_S = 5.0
# What a machine with fewer cores than ranks needs beside the time-out.
_SLACK_S = 5.0
# Below those that the kernel gives away.
_FIRST_PORT = 21_000
# Most of a run is starting and waiting.
_AT_ONCE = 3
_ALGORITHMS = ("ring", "direct", "halving", "hierarchical-direct")


def kills(quick):
    """Kills or stops one of four ranks at random moments; counts who was told."""
    num_runs = 2 if quick else 100
    told, slowest, wrong = 0, 0.0, []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = list(pool.map(one_of_four, range(num_runs)))
    for run, (algorithm, found) in enumerate(results):
        if all(error for error, _ in found):
            told += 1
            slowest = max(slowest, *(seconds for _, seconds in found))
        else:
            wrong.append({"run": run, "algorithm": algorithm, "found": found})
    return Row(
        figure=f"{told} of {num_runs}, after {slowest:.1f} s at most",
        holds=told == num_runs and slowest <= _TIMEOUT_S + _SLACK_S,
        proven_on="cpu-gloo",
        details={"wrong": wrong, "timeout_s": _TIMEOUT_S},
    )


def one_of_four(run):
    """Ends one of four ranks; returns the algorithm and what the others say."""
    dice = random.Random(run)
    how = (signal.SIGKILL, signal.SIGSTOP)[run % 4 == 3]
    # Each algorithm meets each way to end.
    algorithm = _ALGORITHMS[run // 4 % len(_ALGORITHMS)]
    victim, after_s = dice.randrange(4), dice.uniform(0, 0.4)
    return algorithm, trial(4, victim, how, algorithm, after_s, _FIRST_PORT + run)


def trial(num_ranks, victim, how, algorithm, after_s, port):
    """Returns what each survivor says: its error and after how many seconds."""
    ranks = [_start(rank, num_ranks, port, algorithm) for rank in range(num_ranks)]
    try:
        for process in ranks:
            assert _line(process, 60) == "begun"
        time.sleep(after_s)
        ranks[victim].send_signal(how)
        survivors = [p for rank, p in enumerate(ranks) if rank != victim]
        return [_verdict(process) for process in survivors]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
            process.stdout.close()


def _start(rank, num_ranks, port, algorithm):
    env = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "DRIVETRAIN_COMM_HOST": str(rank // 2),
        "OMP_NUM_THREADS": "1",
        # The store lives in rank 0, whose death is no collective's.
        "TORCH_CPP_LOG_LEVEL": "FATAL",
    }
    words = [sys.executable, str(_VICTIM), str(_TIMEOUT_S), "1000000", algorithm]
    return subprocess.Popen(
        words, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def _verdict(process):
    line = _line(process, _TIMEOUT_S + 2 * _SLACK_S)
    if not line:
        return None, float("inf")
    said = json.loads(line)
    return said["error"], said["seconds"]


def _line(process, timeout_s):
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(timeout_s):
            return None
    return process.stdout.readline().strip() or None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="four runs")
    row = kills(parser.parse_args().quick)
    print(row.figure)
    print(json.dumps(row.details, indent=2))
    sys.exit(not row.holds)
