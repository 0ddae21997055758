"""Gradients on a device: what decides on their buckets, without a device."""

import math
import random

import pytest
import torch

from drivetrain_comm._settings import Settings
from drivetrain_comm.ddp._on_device import DeviceTuner, OnDevice, cost_from
from drivetrain_comm.ddp._predict import Bucket, merged, span_s
from drivetrain_comm.ddp._reduction_plan import candidates_on_device

MB = 1 << 20
LATENCY_S, BYTES_PER_S = 50e-6, 10e9


def seconds(size_bytes):
    return LATENCY_S + size_bytes / BYTES_PER_S


def buckets(num=48, size_bytes=4 * MB, every_s=1e-3):
    return [Bucket(ready_s=i * every_s, size_bytes=size_bytes) for i in range(num)]


def test_cost_is_what_was_measured_and_a_line_between():
    sizes = [1 << 16, 1 << 20, 1 << 24]
    cost = cost_from({size: seconds(size) for size in sizes})
    for size in [1 << 16, 3 << 18, 1 << 20, 5 << 20, 1 << 24, 1 << 28]:
        assert cost(size).busy_s == pytest.approx(seconds(size), rel=1e-6)
        assert cost(size).alone_s == cost(size).busy_s
    # Nothing is faster than the shortest that was timed.
    assert cost(4).busy_s == pytest.approx(seconds(1 << 16), rel=1e-6)


def test_cost_of_one_size_is_a_constant_up_to_it():
    cost = cost_from({1 << 16: 0.5})
    assert cost(1).busy_s == cost(1 << 16).busy_s == 0.5
    assert cost(1 << 20).busy_s >= 0.5


def test_candidates_have_torchs_own_sizes_and_the_best_predicted():
    settings = Settings()
    cost = cost_from({size: seconds(size) for size in (1 << 16, 1 << 20, 1 << 24)})
    found = candidates_on_device(buckets(), cost, settings)
    stock, *others = [plan for plan, _ in found]
    assert (stock.bucket_bytes, stock.firsts) == (25 * MB, (MB,))
    assert 1 <= len(others) <= 3
    assert all(plan.choice.algorithm == "stock" for plan in others)
    predicted = [spent for _, spent in found[1:]]
    assert predicted == sorted(predicted)
    # The links carry more than comes: small buckets end soon after the last gradient.
    assert predicted[0] < found[0][1]
    messages = {
        tuple(m.size_bytes for m in merged(buckets(), plan.limit)) for plan, _ in found
    }
    assert len(messages) == len(found)


def test_thousands_of_buckets_are_a_coarser_row_of_them():
    asked = []

    def cost(size_bytes):
        asked.append(size_bytes)
        return cost_from({MB: seconds(MB), 16 * MB: seconds(16 * MB)})(size_bytes)

    many = buckets(num=3_000, size_bytes=64 << 10, every_s=1e-5)
    found = candidates_on_device(many, cost, Settings())
    # Not the square of their number.
    assert len(asked) < 50_000
    assert sum(m.size_bytes for m in merged(many, found[1][0].limit)) == 3_000 << 16
    assert found[1][1] <= found[0][1]


def test_size_that_is_fixed_is_the_only_candidate():
    cost = cost_from({1 << 16: 1e-3})
    ((plan, _),) = candidates_on_device(buckets(), cost, Settings(bucket_mb=3))
    assert (plan.bucket_bytes, plan.firsts) == (3 * MB, ())


class Alone:
    """A group of one rank, for what decides."""

    def __init__(self, settings):
        self.settings = settings

    def rank(self):
        return 0


class Modelled(DeviceTuner):
    """All-reduces take what a formula says."""

    def _measure(self):
        sizes = [(64 << 10) * 4**power for power in range(5)]
        self._cost = cost_from({size: seconds(size) for size in sizes})

    def _agree(self, values):
        return list(values)


@pytest.mark.parametrize("seed", range(5))
def test_tuner_decides_in_thirty_steps_and_is_near_the_best(seed):
    from drivetrain_comm.ddp._ddp_tuner import StepRecord

    noise = random.Random(seed)
    every_s = 10 ** noise.uniform(-4, -2)
    ready = buckets(every_s=every_s)

    def truth(plan):
        messages = merged(ready, plan.limit)
        return span_s(messages, cost_from({MB: seconds(MB), 64 * MB: seconds(64 * MB)}))

    tuner = Modelled(Alone(Settings()), torch.device("cpu"))
    num_steps = 0
    while tuner.phase != "committed":
        spent = truth(tuner.plan) * noise.uniform(1, 1.01)
        tuner.advance(StepRecord(buckets=tuple(ready), span_s=spent))
        num_steps += 1
        assert num_steps <= 30
    stock, _ = candidates_on_device(ready, tuner._cost, Settings())[0]
    sizes = [*(MB << power for power in range(7)), 1 << 50]
    best = min(
        truth(type(stock)(bucket_bytes=size, choice=stock.choice)) for size in sizes
    )
    assert truth(tuner.plan) <= min(1.05 * best, 1.01 * truth(stock))


def test_without_tuning_buckets_are_torchs_own():
    tuner = Modelled(Alone(Settings(tune=False)), torch.device("cpu"))
    assert tuner.phase == "committed"
    assert (tuner.plan.bucket_bytes, tuner.plan.limit(0)) == (25 * MB, MB)
    assert math.isfinite(tuner.plan.limit(1))


class Backend:
    """Keeps what it is asked for; raises an error at several tensors."""

    def __init__(self, error=None):
        self.inner = self
        self.error = error
        self.calls = []

    def allreduce(self, tensors):
        self.calls.append(len(tensors))

    def allreduce_coalesced(self, tensors):
        self.calls.append(len(tensors))
        if self.error:
            raise self.error


@pytest.mark.parametrize(
    ("dtype", "error", "calls"),
    [
        (torch.float32, None, [3]),
        # What NCCL does not have.
        (torch.complex64, None, [1, 1, 1]),
        (torch.float32, RuntimeError("not supported"), [3, 1, 1, 1]),
        (torch.float32, NotImplementedError("no kernel"), [3, 1, 1, 1]),
    ],
)
def test_buckets_are_begun_at_once_where_the_backend_can(dtype, error, calls):
    backend = Backend(error)
    OnDevice(backend)._begin([torch.zeros(2, dtype=dtype) for _ in range(3)])
    assert backend.calls == calls


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("full"), torch.distributed.DistBackendError("gone")],
)
def test_failure_of_one_rank_is_no_reason_to_reduce_one_by_one(error):
    # The others wait for one collective of all.
    backend = Backend(error)
    reducer = OnDevice(backend)
    with pytest.raises(type(error), match=str(error)):
        reducer._begin([torch.zeros(2) for _ in range(3)])
    assert backend.calls == [3]
    assert reducer._is_coalesced
