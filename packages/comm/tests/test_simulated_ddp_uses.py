"""DDP on simulated devices in unusual uses: what is learned stays stock's."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist
from simulated_worlds import started
from torch.nn.parallel import DistributedDataParallel

from drivetrain_core import DistributedError
from drivetrain_testing import run_ranks

pytestmark = pytest.mark.simulated_accelerator


def layers(num=6, dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(33, 33) for _ in range(num))).to(dtype)


def batch(step, rank, dtype=torch.float32):
    generator = torch.Generator().manual_seed(3 * step + rank)
    return torch.rand(8, 33, generator=generator).to("sim", dtype)


def gradients(module):
    return [p.grad.detach().cpu() for p in module.parameters()]


class OnTwoStreams(torch.nn.Module):
    """Its second half runs on a stream of its own, in both directions."""

    def __init__(self):
        super().__init__()
        self.layers = layers().to("sim")
        self.side = torch.Stream("sim")
        with self.side:
            second = self.layers[3:].parameters()
            self.kept = [p.expand_as(p).grad_fn for p in second]

    def forward(self, x):
        here = torch.accelerator.current_stream()
        x = self.layers[:3](x)
        self.side.wait_stream(here)
        with self.side:
            x = self.layers[3:](x)
        here.wait_stream(self.side)
        return x


def steps(ddp, rank, num_steps=26, dtype=torch.float32):
    """Returns the gradients of all steps."""
    found = []
    for step in range(num_steps):
        ddp.zero_grad()
        ddp(batch(step, rank, dtype)).square().mean().backward()
        found += gradients(ddp)
    return found


def on_two_streams(rank):
    return steps(DistributedDataParallel(OnTwoStreams(), bucket_cap_mb=0.005), rank)


def frozen_between_the_passes(rank):
    ddp = DistributedDataParallel(layers().to("sim"), bucket_cap_mb=0.005)
    loss = ddp(batch(0, rank)).square().mean()
    ddp.requires_grad_(False)
    loss.backward()
    found = gradients(ddp)
    ddp.requires_grad_(True)
    return found + steps(ddp, rank)


def freed_between_the_passes(rank):
    module = layers().to("sim")
    ddp = DistributedDataParallel(module, bucket_cap_mb=0.005)
    reducer, loss = ddp.reducer, ddp(batch(0, rank)).square().mean()
    del ddp
    gc.collect()
    loss.backward()
    assert reducer is not None
    return gradients(module)


def in_one_bucket(rank, dtype=torch.float32):
    # Of a bucket that is the same, the order of a sum of three is the same, too.
    ddp = DistributedDataParallel(layers(2, dtype).to("sim"))
    return steps(ddp, rank, 3, dtype)


def in_one_bucket_bfloat16(rank):
    return in_one_bucket(rank, torch.bfloat16)


def both_ways(uses):
    """Returns, for each use, the results over stock and over tuned groups."""
    from drivetrain_simulated_accelerator import control

    found = {}
    for use in uses:
        both = []
        for settings in (None, {}):
            rank = started(settings)
            with control.delays(collective_us=300, op_us=20):
                both.append(use(rank))
            dist.barrier()
            dist.destroy_process_group()
        found[use.__name__] = both
    return found


@pytest.mark.parametrize(
    ("num_ranks", "uses"),
    [
        (
            2,
            [on_two_streams, frozen_between_the_passes, freed_between_the_passes],
        ),
        (3, [in_one_bucket, in_one_bucket_bfloat16]),
    ],
)
def test_gradients_are_those_of_stock_ddp_in(num_ranks, uses):
    env = {"SIMULATED_ACCELERATOR": f"devices={num_ranks}"}
    for found in run_ranks(both_ways, num_ranks, uses, process_group=False, env=env):
        for name, (stock, ours) in found.items():
            assert stock
            assert all(map(torch.equal, stock, ours)), name


def refused(settings, is_on_device):
    started(settings)
    module = layers(1).to("sim") if is_on_device else layers(1)
    try:
        DistributedDataParallel(module)
    except DistributedError as error:
        return str(error)
    finally:
        dist.barrier()
        dist.destroy_process_group()
    return "taken"


def all_refused(cases, is_on_device):
    return [refused(settings, is_on_device) for settings in cases]


FOR_CPU = [{"algorithm": "ring"}, {"compression": "bf16"}, {"streams": 2}]


def test_settings_for_the_cpu_are_refused_on_a_device(monkeypatch):
    monkeypatch.setenv("SIMULATED_ACCELERATOR", "devices=2")
    stock = {"algorithm": "stock"}
    cases = [*FOR_CPU, {"schedule": "file.json"}, stock, {"bucket_mb": 1}]
    for *said, fixed, size in run_ranks(
        all_refused, 2, cases, True, process_group=False
    ):
        for text, settings in zip(said, cases, strict=False):
            ((name, value),) = settings.items()
            assert f"{name}={value}, " in f"{text.split(':')[0]}, "
            assert text.endswith(f": leave {name} out, which is for the CPU only")
        assert fixed == size == "taken"
    for said in run_ranks(all_refused, 2, FOR_CPU, False, process_group=False):
        assert set(said) == {"taken"}
