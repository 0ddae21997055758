"""Measures on this machine what drivetrain-checkpoint claims, against stated bounds.

The limits are measured in the same run, in turns: copies into memory that is present
already, by torch, by the C library and by the package, of which the fastest counts; and
direct writes of the same bytes from memory.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import gpu
from daemon_start import start
from durable import durable
from host_memory import host_memory
from interference import slowdown
from kept_steps import kept_steps
from many_tensors import flat, model_and_optimizer, module, overhead
from peer_recovery import recovery_from_peer, replica_rate
from planning import planning
from recovery import recovery
from stall import first, steady
from strangers import strangers

from drivetrain_testing import Bar, Row, run_bars

GB = 1024  # in MiB; a quick form takes an eighth


def large(measure):
    """A bar that says something of large states only: its quick form is not judged."""

    def bar(quick):
        row = measure(quick)
        return replace(row, holds=None) if quick else row

    return bar


def slow(measure):
    """A bar that has no quick form."""

    def bar(quick):
        return Row(figure="takes longer", holds=None) if quick else measure(quick)

    return bar


TABLE = [
    ("stall-2gb", "<= 1.15 x the fastest copy", steady(2 * GB, 1.15)),
    ("stall-4gb", "<= 1.15 x the fastest copy", steady(4 * GB, 1.15)),
    ("stall-python", "<= 1.5 x", large(steady(2 * GB, 1.5, native=False))),
    ("stall-busy", "<= 3 x the idle copy", large(steady(2 * GB, 3.0, num_busy=4))),
    ("stall-first", "<= 2 x the next ones", first(2.0)),
    ("durable-2gb", "<= 1.15 x direct writes", large(durable(2 * GB, 1.15))),
    ("durable-4gb", "<= 1.15 x direct writes", large(durable(4 * GB, 1.15))),
    ("recovery-after-kill", "<= 2 x a copy", large(recovery(4 * GB, 2.0))),
    ("recovery-from-peer", "<= 1.2 x the wire", slow(recovery_from_peer(96, 1.2))),
    ("replica-rate", "0.95 to 1 x its rate, saves <= 1.5 x", slow(replica_rate)),
    ("loop-while-persisting", "<= 3% slower", slow(slowdown(0.03))),
    ("overhead-10000-flat", "<= 3 x copies by torch", overhead(flat)),
    ("overhead-10000-module", "<= 3 x copies by torch", overhead(module)),
    ("overhead-10000-adamw", "<= 3 x copies by torch", overhead(model_and_optimizer)),
    (
        "planning-1024-ranks",
        "<= 1% of DCP's planner",
        planning(cached=False, most=0.01),
    ),
    (
        "planning-1024-ranks-cached",
        "<= 0.1% of DCP's planner",
        planning(cached=True, most=0.001),
    ),
    ("host-memory", "<= 2 x the state + 32 MiB", host_memory),
    ("save-1000-kept", "<= 1.1 x with 10 kept", kept_steps(1000, 1.1)),
    ("strangers", "<= 32 MiB, all are served, and it ends", strangers),
    ("daemon-start", "<= 8 x an empty interpreter", start),
    ("stall-10gb-gpu", "<= 1.15 x a pinned copy", gpu.stall),
    ("overlap-gpu", "<= 3% slower", gpu.overlap),
]
BARS = [Bar(name=name, bound=bound, measure=run) for name, bound, run in TABLE]

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
