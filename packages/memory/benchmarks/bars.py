"""Measures on this machine what drivetrain-memory claims, against stated bounds.

Traces are replayed in book-keeping, beside models of PyTorch's allocators; races, contents
and times are those of programs that are compiled for it from `csrc/checks`.
"""

from __future__ import annotations

import sys

import asleep
import capacity
import gpu
import private_pools
import programs
import sharing

from drivetrain_testing import Bar, run_bars

TRAINS = ">= 0.99 x native, finishes at 1.03 x live"
TABLE = [
    ("capacity-regular", "<= 1.005 x live, no flush", capacity.regular),
    ("capacity-checkerboards", "<= 1.01 x live", capacity.checkerboards),
    ("capacity-checkerboard-3", "<= 1.15 x live", capacity.small_checkerboard),
    ("capacity-aging", "<= 1.03 x live", capacity.aging),
    ("utilisation-island", ">= 99%", capacity.island),
    ("races", "none", programs.races),
    ("contents", "no wrong byte", programs.contents),
    ("random-operations", "nothing wrong, lost or hanging", programs.random_operations),
    ("sleep", "the same bytes, >= 95% of the pool back", asleep.turns),
    ("sharing", "the same bytes, all of it comes back", sharing.messages),
    ("pools", "nothing wrong, all of it comes back", private_pools.pools),
    ("trees", "nothing wrong, <= 1.05 x what graphs need", private_pools.trees),
    ("hit-path", "p99 <= 1.25 x a std::set's median", programs.hit_path),
    ("hit-path-beside-std-set", ">= 3 x faster", programs.beside_native),
    ("utilisation-regular", ">= 98%", capacity.utilisation),
    ("static-shapes", "no driver call after step 3", capacity.static_shapes),
    (
        "static-shapes-tight",
        "no driver call after step 3",
        capacity.static_shapes_tight,
    ),
    ("moved-varying-lengths", "<= 0.5 x expandable's", capacity.moved),
    ("orders-that-matter", "each one is missed", programs.orders),
    ("sanitizers", "no report", programs.sanitizers),
    ("driver-calls-gpu", "measured", gpu.driver_calls),
    ("stitched-kernels-gpu", ">= 0.99 x cudaMalloc's", gpu.kernels),
    ("contents-gpu", "no wrong byte", gpu.contents),
    ("sleep-gpu", "addresses, contents and graphs hold", gpu.sleep),
    ("sharing-gpu", "the same memory in two processes", gpu.sharing),
    ("pools-gpu", "memory of its own", gpu.pools),
    ("trees-gpu", "refused by name, graphs of one's own hold", gpu.trees),
    ("models-gpu", "segments as PyTorch takes them", gpu.models),
    ("training-gpu", TRAINS, gpu.training),
    ("training-others-gpu", TRAINS, gpu.training_others),
]

BARS = [Bar(name=name, bound=bound, measure=run) for name, bound, run in TABLE]

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
