"""How soon a check of nodes names the bad ones: of 256 simulated, and of 4 real processes."""

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from node_simulation import NodeFault, rehearse

from drivetrain_health import faults
from drivetrain_health.decisions.node_check import Outcome
from drivetrain_testing import Row

_NODES = tuple(f"n{i}" for i in range(256))
_CHECKS = ("compute", "memory", "loopback", "bits", "exchange")
_BAD = "n2"


def simulated(quick):
    """One and two bad nodes of 256, with every kind of fault, and noise of 10 %."""
    num_cases = 50 if quick else 1000
    rounds = {1: Counter(), 2: Counter()}
    wrong = missed = 0
    for num_bad, counts in rounds.items():
        for seed in range(num_cases):
            bad = faults_of(random.Random(seed), num_bad, seed)
            verdict, played = rehearse(_NODES, bad, seed=seed, noise=0.1)
            named = {
                n for n, o in verdict.opinions.items() if o.outcome != Outcome.PASSED
            }
            wrong += len(named - set(bad))
            missed += len(set(bad) - named) + len(verdict.suspects)
            counts[len(played)] += 1
    worst = {num_bad: max(counts) for num_bad, counts in rounds.items()}
    told = "; ".join(
        f"{num_bad} bad: {dict(sorted(counts.items()))}"
        for num_bad, counts in rounds.items()
    )
    return Row(
        figure=f"cases by rounds, {told}; {missed} bad nodes missed, {wrong} healthy ones "
        "named",
        holds=worst[1] <= 2 and worst[2] <= 4 and missed == wrong == 0,
        proven_on="simulation",
    )


def faults_of(dice, num_bad, seed):
    """Bad nodes with faults; of two, every third time both in one pair of neighbours."""
    names = dice.sample(_NODES, num_bad)
    if num_bad == 2 and seed % 3 == 0:
        first = dice.randrange(len(_NODES) // 2) * 2
        names = [_NODES[first], _NODES[first + 1]]
    return {name: dice.choice(list(NodeFault)) for name in names}


def real(quick):
    """Four processes of this machine, of which one is slow, or hangs in one check."""
    times, is_right = {}, True
    for fault in ("slow", "hangs"):
        for _ in range(1 if quick else 5):
            took_s, said = run(fault)
            times.setdefault(fault, []).append(took_s)
            # One so slow that a check takes too long is faulty.
            named = {n for n, o in said.items() if o in {Outcome.SLOW, Outcome.FAULTY}}
            is_right = is_right and named == {_BAD}
    told = ", ".join(
        f"{fault} {statistics.median(found):.1f} s (most {max(found):.1f})"
        for fault, found in times.items()
    )
    most_s = max(max(found) for found in times.values())
    return Row(
        figure=f"of 4 processes on {os.cpu_count()} cores one that {told}"
        + ("" if is_right else "; NOT NAMED RIGHTLY"),
        holds=is_right and most_s <= 10.0,
        proven_on="cpu-gloo",
        details=times,
    )


def run(fault):
    """Checks four nodes; returns how long that takes, and what is thought of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    nodes = [
        subprocess.Popen(
            [sys.executable, __file__, "--node", f"n{i}", "--port", port]
            + (["--fault", fault] if f"n{i}" == _BAD else []),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(4)
    ]
    for one in nodes:
        assert one.stdout.readline() == "ready\n"
    begin_s = time.monotonic()
    for one in nodes:
        one.stdin.write("go\n")
        one.stdin.flush()
    lines = [one.communicate(timeout=120)[0] for one in nodes]
    took_s = time.monotonic() - begin_s
    said = [json.loads(line) for line in lines if line.strip()]
    assert len(said) == 4
    assert all(one == said[0] for one in said)
    return took_s, said[0]


def be_node(arguments):
    """Is one of the nodes."""
    from drivetrain_health.checks import CheckConfig
    from drivetrain_health.checks._bench import measure_apart
    from drivetrain_health.checks._check_nodes import check_together
    from drivetrain_health.checks._tcp_rendezvous_store import tcp_rendezvous_store

    config = CheckConfig(
        checks=_CHECKS,
        measure_s=0.2,
        limit_s=2.0,
        round_s=20.0,
        num_threads=1,
    )
    # Loading torch is not counted: what forks measurements has it from now on.
    measure_apart("nic", config, limit_s=60.0)
    print("ready", flush=True)
    sys.stdin.readline()
    host, port = "127.0.0.1", arguments.port
    if arguments.fault:
        threading.Thread(target=spoil, args=(arguments.fault,), daemon=True).start()
    with tcp_rendezvous_store(host, port, num_nodes=4, node=arguments.node) as store:
        verdict = check_together(store, arguments.node, 4, config).verdict
    print(json.dumps({n: o.outcome for n, o in verdict.opinions.items()}), flush=True)


def spoil(fault):
    """Does something to each measurement of this process, when it begins."""
    known = set()
    with contextlib.ExitStack() as stack:
        while True:
            # A measurement is the child of a child, which forks it.
            for server in children(os.getpid()):
                for one in children(server):
                    if one in known:
                        continue
                    known.add(one)
                    with contextlib.suppress(ProcessLookupError):
                        if fault == "slow":
                            stack.enter_context(faults.slow(one, share=0.1))
                        elif len(known) % len(_CHECKS) == 1:
                            os.kill(one, signal.SIGSTOP)
            time.sleep(0.002)


def children(pid):
    """The processes that the main thread of one has started."""
    with contextlib.suppress(OSError):
        return [
            int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    return []


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--node")
    parser.add_argument("--port", type=int)
    parser.add_argument("--fault")
    given = parser.parse_args()
    if given.node:
        be_node(given)
    else:
        print(simulated(False).figure)
        print(real(False).figure)
