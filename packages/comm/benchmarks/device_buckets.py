"""Buckets of gradients on GPUs by a model: what the tuner finds, beside a full sweep.

No GPU takes part. The gradients of four models become ready at the pace of their
backward passes, and an all-reduce takes what NCCL's own cost model says of it: the least,
over rings and trees and the protocols, of latency + bytes / bandwidth, with the constants
and the formulas of NCCL 2.29.7 (src/graph/tuning.cc: ncclTunerConstantsDefaults,
ncclTopoTuneModel). What decides is the package's own tuner.
"""

import math
import random
import statistics

import torch

from drivetrain_comm._settings import Settings
from drivetrain_comm.ddp._ddp_tuner import StepRecord
from drivetrain_comm.ddp._on_device import _SIZES, DeviceTuner, cost_from
from drivetrain_comm.ddp._predict import Bucket, merged, span_s
from drivetrain_comm.selection._cost import Cost
from drivetrain_testing import Row

MB = 1 << 20
NUM_NODES, RANKS_PER_NODE = 4, 8
_NUM_RANKS = NUM_NODES * RANKS_PER_NODE
# Of a node's network cards together: 25, 100 and 400 Gbit/s.
LINKS = (3.125e9, 12.5e9, 50e9)
# Microseconds: to begin, of a hop by NVLink, of a hop between nodes; by protocol.
_TREE = {
    "ll": (6.8, 0.6, 5.0),
    "ll128": (14.0, 1.25, 8.5),
    "simple": (8.4, 4.0, 14.0),
}
_RING = {"ll": (6.6, 0.6, 2.7), "ll128": (14.0, 1.9, 4.0), "simple": (8.4, 3.4, 14.0)}
# Hopper, four nodes and more: what LL carries, and what one channel carries.
_LL_BYTES_PER_S = 20.4e9
_NUM_CHANNELS = 16
_RING_LL128, _TREE_LL128, _TREE_SIMPLE = (
    _NUM_CHANNELS * per_channel for per_channel in (36.7e9, 29.0e9, 36.0e9)
)
_NET_OVERHEAD_US = 1.0
# Useful arithmetic of a GPU, and the step outside of what is timed: the forward pass.
_FLOPS = 400e12


def all_reduce_s(size_bytes, link_bytes_per_s):
    """Returns what NCCL's model says of an all-reduce, in seconds."""
    return min(
        latency_us * 1e-6 + size_bytes / bandwidth
        for latency_us, bandwidth in _choices(link_bytes_per_s)
    )


def _choices(link):
    num_steps = 2 * (_NUM_RANKS - 1)
    num_between = 2 * (NUM_NODES - 1)
    ring_rate = _NUM_RANKS / num_steps
    for protocol, (base, within, between) in _RING.items():
        overhead = _NET_OVERHEAD_US * (3 if protocol == "simple" else 1)
        latency = base + (num_steps - num_between) * max(within, overhead)
        latency += num_between * between
        carried = {
            "ll": min(_LL_BYTES_PER_S, link / 2),
            "ll128": min(0.92 * link, _RING_LL128),
            "simple": link,
        }[protocol]
        yield latency, carried * ring_rate
    for protocol, (base, within, between) in _TREE.items():
        latency = base + 2 * (
            (RANKS_PER_NODE - 1) * within + math.log2(NUM_NODES) * between
        )
        least = min(0.92 * link, _TREE_SIMPLE)
        carried = {
            "ll": min(least / 3.8, _LL_BYTES_PER_S),
            "ll128": min(least * 120 / 128, _TREE_LL128),
            "simple": least,
        }[protocol]
        yield latency, carried / 2


def transformer(num_layers, width, num_words, tokens):
    """Returns (bytes, seconds of backward) of each parameter, the last layer's first."""
    layer = [4 * width * width, 4 * width * width, width * width, 3 * width * width]
    numbers = [num_words * width, *(layer * num_layers), num_words * width]
    return [(4 * n, 4 * n * tokens / _FLOPS) for n in numbers]


def residual(images):
    """ResNet-50: its stages' weights, and where they are computed."""
    found = [(2_048 * 1_000, 1)]
    for num_blocks, width, pixels in (
        (3, 512, 7),
        (6, 256, 14),
        (4, 128, 28),
        (3, 64, 56),
    ):
        for _ in range(num_blocks):
            found += [(4 * width * width, pixels * pixels)] * 2
            found += [(9 * width * width, pixels * pixels)]
    found += [(9_408, 112 * 112)]
    # Convolutions reach a quarter of what products of matrices do.
    return [(4 * n, 16 * n * at * images / _FLOPS) for n, at in found]


def vgg(images):
    """VGG-16: nearly all bytes are in the layers whose gradients come first."""
    found = [(4_096 * 1_000, 1), (4_096 * 4_096, 1), (25_088 * 4_096, 1)]
    widths = [512] * 6 + [256] * 3 + [128] * 2 + [64] * 2
    pixels = [14] * 3 + [28] * 3 + [56] * 3 + [112] * 2 + [224] * 2
    for width, side in zip(widths, pixels, strict=True):
        found.append((9 * width * width, side * side))
    return [(4 * n, 8 * n * at * images / _FLOPS) for n, at in found]


MODELS = {
    "ResNet-50": residual(images=64),
    "VGG-16": vgg(images=32),
    "BERT-large": transformer(24, 1_024, 30_522, tokens=8 * 512),
    "GPT-2 XL": transformer(48, 1_600, 50_257, tokens=2 * 1_024),
}


def buckets_of(parameters, cap, first=None):
    """Returns the buckets that DDP makes: full with the parameter that reaches the cap."""
    found, waiting, now = [], 0, 0.0
    for size_bytes, seconds in parameters:
        now += seconds
        waiting += size_bytes
        if waiting >= (cap if found else first or cap):
            found.append(Bucket(ready_s=now, size_bytes=waiting))
            waiting = 0
    if waiting:
        found.append(Bucket(ready_s=now, size_bytes=waiting))
    return found


def sweep(parameters, cost):
    """Returns the least span over DDP's own settings, and that of its defaults."""
    caps = [power * MB for power in (1, 2, 4, 8, 12, 16, 25, 32, 48, 64, 100, 200, 400)]
    spans = {
        (cap, first): begun(parameters, cap, first)
        + span_s(relative(buckets_of(parameters, cap, first)), cost)
        for cap in (*caps, 1 << 50)
        for first in (None, MB)
    }
    return min(spans.values()), spans[25 * MB, MB]


def begun(parameters, cap, first):
    return buckets_of(parameters, cap, first)[0].ready_s


def relative(buckets):
    return [
        Bucket(ready_s=one.ready_s - buckets[0].ready_s, size_bytes=one.size_bytes)
        for one in buckets
    ]


class _Alone:
    """One rank, whose figures are those of all."""

    settings = Settings(cache=False)

    def rank(self):
        return 1


class _Modelled(DeviceTuner):
    """The tuner, to which all-reduces take what the model says, and some noise."""

    def __init__(self, link, noise):
        self._link, self._noise = link, noise
        super().__init__(_Alone(), torch.device("cpu"))

    def _measure(self):
        self._cost = cost_from(
            {
                size: all_reduce_s(size, self._link) * self._noise.uniform(1, 1.05)
                for size in _SIZES
            }
        )

    def _agree(self, values):
        return list(values)


def compare(name, link, seed):
    """Returns the step with what was found over the best of all and over stock."""
    noise = random.Random(seed)
    parameters = MODELS[name]
    total = sum(size_bytes for size_bytes, _ in parameters)
    backward = sum(seconds for _, seconds in parameters)

    def cost(size_bytes):
        seconds = all_reduce_s(size_bytes, link)
        return Cost(busy_s=seconds, alone_s=seconds)

    grain = min(max(total / 48, MB // 2), 25 * MB)
    small = buckets_of(parameters, grain)
    first_s = small[0].ready_s

    def true_span(plan):
        return span_s(merged(relative(small), plan.limit), cost)

    tuner = _Modelled(link, noise)
    num_steps = 0
    while tuner.phase != "committed":
        spent = true_span(tuner.plan) * noise.uniform(1, 1.02)
        tuner.advance(StepRecord(buckets=tuple(relative(small)), span_s=spent))
        num_steps += 1
    forward = backward / 2
    found = forward + first_s + true_span(tuner.plan)
    best, stock = (forward + span for span in sweep(parameters, cost))
    return {
        "plan": str(tuner.plan),
        "steps": num_steps,
        "of best": found / best,
        "of stock": found / stock,
        "gain possible": stock / best,
    }


def device_buckets(quick):
    """The claim: within 5 % of a full sweep, in 30 steps, and never behind stock."""
    found = {
        f"{name}, {link * 8e-9:g} Gbit/s": [
            compare(name, link, seed) for seed in range(2 if quick else 10)
        ]
        for name in MODELS
        for link in LINKS
    }
    runs = [run for those in found.values() for run in those]
    worst = max(run["of best"] for run in runs)
    behind = max(run["of stock"] for run in runs)
    gains = [
        1 / statistics.median(r["of stock"] for r in those) for those in found.values()
    ]
    return Row(
        figure=f"{worst:.3f} x the best of a sweep at most, {behind:.3f} x stock at most, "
        f"{max(run['steps'] for run in runs)} steps; steps {statistics.geometric_mean(gains):.2f} x "
        f"as fast as stock's, {max(gains):.2f} x at best",
        holds=worst <= 1.05 and behind <= 1.01 and all(r["steps"] <= 30 for r in runs),
        proven_on="simulation",
        details=found,
    )


if __name__ == "__main__":
    row = device_buckets(False)
    for case, those in row.details.items():
        one = those[0]
        print(f"{case}: {one}")
    print(row.figure, row.holds)
