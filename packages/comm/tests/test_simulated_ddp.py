"""DDP on simulated devices: buckets are tuned, and what is learned stays stock's."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from simulated_worlds import started
from torch.nn.parallel import DistributedDataParallel

from drivetrain_comm import _enable
from drivetrain_testing import run_ranks

pytestmark = pytest.mark.simulated_accelerator

NUM_STEPS = 30


class Branches(torch.nn.Module):
    """Each step uses one of two layers."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 64)
        self.branches = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(2))
        self.turn = 0

    def forward(self, x):
        self.turn += 1
        return self.branches[self.turn % 2](self.first(x))


def make_model(kind):
    torch.manual_seed(0)
    if kind == "unused":
        return Branches()
    layers = [torch.nn.Linear(64, 64) for _ in range(6)]
    if kind == "two dtypes":
        layers[3].double()
        layers.insert(3, ToDtype(torch.float64))
        layers.insert(5, ToDtype(torch.float32))
    return torch.nn.Sequential(*layers)


class ToDtype(torch.nn.Module):
    """Casts what passes."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        return x.to(self.dtype)


def learned(kind, settings, num_steps=NUM_STEPS):
    """Trains; returns the parameters, and the phase and the plan of the tuner."""
    rank = started(settings)
    options = {
        "unused": {"find_unused_parameters": True},
        "views": {"gradient_as_bucket_view": True},
        "static": {"static_graph": True},
    }.get(kind, {})
    # Small buckets, so that there is something to merge.
    ddp = DistributedDataParallel(
        make_model(kind).to("sim"), bucket_cap_mb=0.01, **options
    )
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    for step in range(num_steps):
        x = torch.rand(8, 64, generator=torch.Generator().manual_seed(2 * step + rank))
        optimizer.zero_grad()
        if kind == "no_sync" and step % 3:
            with ddp.no_sync():
                ddp(x.to("sim")).square().mean().backward()
            continue
        ddp(x.to("sim")).square().mean().backward()
        optimizer.step()
    fusion = _enable._fusions.get(ddp.reducer)
    tuner = fusion.tuner if fusion else None
    told = (tuner.phase, str(tuner.plan)) if tuner else None
    state = [p.detach().cpu() for p in ddp.parameters()]
    said = _enable.status()
    dist.barrier()
    dist.destroy_process_group()
    return state, told, said


def learned_both_ways(kinds, settings, delays):
    """Trains each kind over stock and over tuned groups, in the same processes."""
    from drivetrain_simulated_accelerator import control

    found = {}
    with control.delays(**delays):
        for kind in kinds:
            both = []
            for chosen in (None, settings):
                both.append(learned(kind, chosen))
            found[kind] = both
    return found


KINDS = ["plain", "unused", "views", "static", "no_sync", "two dtypes"]


@pytest.mark.parametrize("settings", [{}, {"bucket_mb": 0.03}, {"tune": False}])
def test_ddp_on_a_device_learns_what_stock_does(monkeypatch, settings):
    monkeypatch.setenv("SIMULATED_ACCELERATOR", "devices=2")
    delays = {"collective_us": 300, "collective_us_per_mib": 20_000}
    kinds = KINDS if not settings else KINDS[:2]
    for found in run_ranks(
        learned_both_ways, 2, kinds, settings, delays, process_group=False
    ):
        for kind, ((stock, nothing, _), (ours, told, said)) in found.items():
            assert nothing is None
            phase, plan = told
            # The sum of two is the same in any order: equal to the bit.
            assert all(map(torch.equal, stock, ours)), kind
            if kind not in {"no_sync", "unused"}:
                assert phase == "committed", kind
            assert plan.startswith("stock, ")
            assert said[-1] == f"gradients, {phase}: {plan} (reorder)"
            if "bucket_mb" in settings:
                assert plan == "stock, buckets of 0.03 MiB"
            if "tune" in settings:
                assert plan == "stock, buckets of 1, 25 MiB"


def untimed():
    """Trains where events tell no time, as on some accelerators."""
    event = torch.Event

    def refuse(*args, enable_timing=False, **kwargs):
        if enable_timing:
            message = "events of this device tell no time"
            raise RuntimeError(message)
        return event(*args, **kwargs)

    torch.Event = refuse
    stock, _, _ = learned("plain", None, num_steps=3)
    ours, told, _ = learned("plain", {}, num_steps=3)
    return all(map(torch.equal, stock, ours)), told


def test_device_without_timed_events_is_left_to_torch(monkeypatch):
    monkeypatch.setenv("SIMULATED_ACCELERATOR", "devices=2")
    for found in run_ranks(untimed, 2, process_group=False):
        assert found == (True, None)


def reduced_one_by_one():
    """Trains over a backend that has no all-reduce of several tensors."""
    from drivetrain_comm.ddp._on_device import OnDevice

    refused = []

    class Without:
        def __init__(self, inner):
            self._inner = inner

        def allreduce_coalesced(self, *_):
            refused.append(1)
            message = "there is no allreduce_coalesced"
            raise RuntimeError(message)

        def __getattr__(self, name):
            return getattr(self._inner, name)

    init = OnDevice.__init__

    def without(self, group):
        init(self, group)
        group.inner = Without(group.inner)

    OnDevice.__init__ = without
    stock, _, _ = learned("plain", None)
    ours, (phase, _), _ = learned("plain", {})
    return all(map(torch.equal, stock, ours)), phase, len(refused)


def test_backend_without_coalescing_reduces_one_by_one(monkeypatch):
    monkeypatch.setenv("SIMULATED_ACCELERATOR", "devices=2")
    for found in run_ranks(reduced_one_by_one, 2, process_group=False):
        assert found == (True, "committed", 1)


def joined(settings):
    rank = started(settings)
    ddp = DistributedDataParallel(make_model("plain").to("sim"))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    with ddp.join(divide_by_initial_world_size=False):
        for step in range(3 + 2 * rank):
            x = torch.full((4, 64), 0.1 * (step + rank)).to("sim")
            optimizer.zero_grad()
            ddp(x).square().mean().backward()
            optimizer.step()
    state = [p.detach().cpu() for p in ddp.parameters()]
    dist.barrier()
    dist.destroy_process_group()
    return state


def test_ranks_that_join_average_over_those_left(monkeypatch):
    monkeypatch.setenv("SIMULATED_ACCELERATOR", "devices=2")
    stock = run_ranks(joined, 2, None, process_group=False)
    for theirs, ours in zip(
        stock, run_ranks(joined, 2, {}, process_group=False), strict=True
    ):
        for one, other in zip(theirs, ours, strict=True):
            torch.testing.assert_close(one, other)


def captured():
    """Trains where some steps, the eighth to the tenth, are within a graph's capture."""
    now = {"step": 0, "events": 0}
    module = torch.get_device_module("sim")
    module.is_current_stream_capturing = lambda: 8 <= now["step"] <= 10
    event, forward = torch.Event, DistributedDataParallel.forward

    def counted(*args, **kwargs):
        now["events"] += module.is_current_stream_capturing()
        return event(*args, **kwargs)

    def next_step(self, *args):
        now["step"] += 1
        return forward(self, *args)

    torch.Event = counted
    DistributedDataParallel.forward = next_step
    ours, (phase, _), _ = learned("plain", {}, num_steps=40)
    now["step"] = -100
    stock, _, _ = learned("plain", None, num_steps=40)
    return all(map(torch.equal, stock, ours)), phase, now["events"]


def test_nothing_waits_for_steps_that_a_graph_captures(monkeypatch):
    monkeypatch.setenv("SIMULATED_ACCELERATOR", "devices=2")
    for found in run_ranks(captured, 2, process_group=False):
        assert found == (True, "committed", 0)
