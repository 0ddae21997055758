"""The collective compiler: how near its schedules come to what is possible."""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import rig_path  # noqa: F401
from rig.goodput import flows_that_fill, measure_goodput
from rig.namespaces import missing_because
from rig.network import Network
from rig.shape import Link

from drivetrain_comm.compiler import (
    COLLECTIVES,
    compile_schedule,
    degraded,
    find_fault,
    full_mesh,
    hosts,
    ring,
    simulate,
    star,
    torus,
)
from drivetrain_comm.compiler._compile import _candidates
from drivetrain_comm.compiler._library import library
from drivetrain_testing import Row

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from schedule_mutations import MUTATIONS, mutated

_PROGRAM = Path(__file__).with_name("schedule_rank.py")
_GB = 1e9
_SIZE = 256_000_000
_RIG_SIZE = 16 << 20
_RIG_MBIT_PER_S = (300, 300, 300, 300, 150)
_MESSAGE_S = 30e-6

GRAPHS = (
    star([_GB] * 8, 1e-5),
    star([_GB, _GB, _GB, _GB / 4], 1e-5),
    ring(6, _GB, 1e-5),
    full_mesh(4, _GB, 1e-6),
    torus(3, 3, _GB, 1e-6),
    hosts([_GB] * 4, 2, 10 * _GB, 1e-5, 1e-6),
    hosts([_GB, _GB, _GB / 2], 2, 10 * _GB, 1e-5, 1e-6),
    degraded(full_mesh(4, _GB, 1e-6), "r0", "r1", 0.25),
    degraded(ring(6, _GB, 1e-5), "r0", "r1", 0.5),
    degraded(full_mesh(6, _GB, 1e-6), "r2", "r3", 0.0),
)


def near_the_bound(quick):
    """How far the worst schedule is from the lower bound, over all graphs."""
    graphs = GRAPHS[:4] if quick else GRAPHS
    budget_s = 2.0 if quick else 30.0
    ratios, beside = {}, {}
    for graph in graphs:
        for collective in COLLECTIVES:
            found = compile_schedule(graph, collective, _SIZE, budget_s=budget_s)
            name = f"{collective} on {graph.name}"
            ratios[name] = round(found.ratio, 4)
            usual = [
                simulate(schedule, graph, _SIZE)
                for schedule in library(graph, collective)
            ]
            if usual:
                beside[name] = round(min(usual) / found.bound.seconds, 4)
    worst = max(ratios, key=ratios.get)
    return Row(
        figure=f"{ratios[worst]:.3f} x at most ({worst}), {len(graphs)} graphs",
        holds=None if quick else ratios[worst] <= 1.1,
        proven_on="simulation",
        details={"compiled": ratios, "library": beside},
    )


def mutations(quick):
    """How many schedules with one mistake the verifier lets pass."""
    rng = random.Random(0)
    # The library's, and what greedy search and trees make in few chunks.
    schedules = [
        schedule
        for graph in GRAPHS
        for collective in COLLECTIVES
        for schedule in _candidates(graph, collective, 64_000, 0, 0.0, most_pieces=2)
    ]
    num_each = 1 if quick else 5
    num_tried = num_missed = 0
    for schedule in schedules:
        assert find_fault(schedule) is None, schedule.name
        for mutation in MUTATIONS:
            for _ in range(num_each):
                wrong = mutated(schedule, mutation, rng)
                if wrong is not None:
                    num_tried += 1
                    num_missed += find_fault(wrong) is None
    return Row(
        figure=f"{num_missed} of {num_tried} missed, {len(schedules)} schedules",
        holds=num_missed == 0 and num_tried >= 1000 and len(schedules) >= 50,
        proven_on="cpu",
    )


def on_the_rig(quick):
    """A compiled all-reduce beside every one of the library, one host with a slow card."""
    because = "takes a minute: name it with --only" if quick else missing_because()
    if because:
        return Row(figure=because, holds=None)
    usual = Link(rate_mbit_per_s=max(_RIG_MBIT_PER_S))
    with Network(len(_RIG_MBIT_PER_S), usual) as network:
        goodput = measure_goodput(network, num_flows=flows_that_fill(usual))
        share = goodput.bytes_per_s / usual.bytes_per_s
        for node, rate in enumerate(_RIG_MBIT_PER_S):
            network.shape(node, Link(rate_mbit_per_s=rate))
        rates = [rate * share * 125e3 for rate in _RIG_MBIT_PER_S]
        graph = star(rates, goodput.rtt_s / 2)
        compiled = compile_schedule(
            graph, "all_reduce", _RIG_SIZE, message_s=_MESSAGE_S, budget_s=20.0
        )
        schedules = [compiled.schedule, *library(graph, "all_reduce")]
        found = _measure(network, schedules)
    seconds = dict(zip([s.name for s in schedules], found["seconds"], strict=True))
    ours = found["seconds"][0]
    best = min(list(seconds)[1:], key=seconds.get)
    return Row(
        figure=(
            f"{seconds[best] / ours:.2f} x the best of the library ({best}), "
            f"{ours / compiled.bound.seconds:.2f} x the bound"
        ),
        holds=found["right"] and ours < seconds[best],
        proven_on="namespaces",
        details={
            "seconds": seconds,
            "simulated": {
                s.name: simulate(s, graph, _RIG_SIZE, message_s=_MESSAGE_S)
                for s in schedules
            },
            "bound_s": compiled.bound.seconds,
            "mbit_per_s": list(_RIG_MBIT_PER_S),
        },
    )


def _measure(network, schedules):
    world_size = len(_RIG_MBIT_PER_S)
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, schedule in enumerate(schedules):
            files.append(Path(folder, f"{number}.json"))
            files[-1].write_text(schedule.to_json())
        ranks = []
        for rank in range(world_size):
            env = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "LOCAL_RANK": "0",
                "MASTER_ADDR": network.address(0),
                "MASTER_PORT": "29517",
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
            }
            words = [sys.executable, _PROGRAM, str(_RIG_SIZE), *files]
            out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            words = [str(word) for word in words]
            ranks.append(network.start(rank, words, env=env, stdout=out))
        try:
            text = ranks[0].communicate(timeout=600)[0]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    return json.loads(text)


BARS = [
    ("schedules", "<= 1.1 x the lower bound, 10 graphs", near_the_bound),
    ("schedule-mutations", "all of >= 1,000 of >= 50 schedules found", mutations),
    ("schedule-rig", "faster than the best of the library", on_the_rig),
]

if __name__ == "__main__":
    for name, bound, run in BARS:
        row = run("--quick" in sys.argv)
        print(f"{name}: {row.figure} ({bound}) {row.status}", row.details)
