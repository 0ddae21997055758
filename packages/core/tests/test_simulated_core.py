"""Core on the simulated accelerator: what an optimization does is right beside streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref

import pytest
import torch
import torch.distributed as dist

from drivetrain_core import (
    ProgramError,
    accelerate,
    destroy_process_group,
    init_process_group,
)
from drivetrain_core._data.batch import move_batch
from drivetrain_core._registry import find
from drivetrain_core.accelerators import accelerator_of
from drivetrain_core.builtin import BUILTINS
from drivetrain_testing import check_accelerator, check_optimization, run_ranks
from drivetrain_testing.programs import Blocks, adamw, loader, mse, run_bytes

pytestmark = pytest.mark.simulated_accelerator

TRAINS = [
    [],
    ["precision"],
    [("precision", "bf16_params")],
    [("micro_batch", 2)],
    ["activation_checkpoint"],
    ["optimizer_impl"],
    [("compile", "whole")],
    [("data_loading", {"workers": 1, "pin_memory": True})],
]


def test_simulated_accelerator_keeps_the_contract():
    check_accelerator(accelerator_of("sim"))


def test_plan_knows_what_the_device_has():
    context = accelerate(
        Blocks, adamw, loader("list"), mse, strategy=[], progress=False
    ).context
    assert context.device.type == "sim"
    assert context.device.collectives == "simccl"
    assert context.device.streams
    assert context.device.pinned_memory
    assert not context.device.can_compile


@pytest.mark.parametrize("name", BUILTINS)
def test_builtin_keeps_the_contract_there(name):
    check_optimization(find(name), device="sim")


def losses_of(strategy, device, steps=6):
    accelerated = accelerate(
        Blocks, adamw, loader("loader"), mse, strategy=strategy, device=device,
        progress=False,
    )  # fmt: skip
    found = []
    while len(found) < steps:
        found += [accelerated.train_step(batch).item() for batch in accelerated.loader]
    accelerated.close()
    return found[:steps]


@pytest.mark.parametrize("strategy", TRAINS, ids=str)
def test_program_trains_there_as_on_the_cpu(strategy):
    from drivetrain_simulated_accelerator import control

    plain = [s for s in strategy if "compile" not in str(s)]
    if "pin_memory" in str(strategy):
        plain = [("data_loading", {"workers": 1})]
    expected = losses_of(plain, "cpu")
    with control.delays(copy_us=2000):
        found = losses_of(strategy, "sim")
    rel = 2e-2 if "precision" in str(strategy) else 1e-5
    assert found == pytest.approx(expected, rel=rel)


class Tied(torch.nn.Module):
    """Two names of one parameter."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4, bias=False)
        self.outer = torch.nn.Linear(4, 4, bias=False)
        self.outer.weight = self.inner.weight

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x))).sum(1, keepdim=True)


@pytest.mark.parametrize("given", [False, True], ids=["made", "given"])
def test_tied_parameters_stay_one_however_the_optimizer_came(given):
    found = []
    for device in ("cpu", "sim"):
        torch.manual_seed(0)
        model = Tied()
        optimizer = adamw(model.parameters()) if given else adamw
        accelerated = accelerate(
            model, optimizer, loader("list"), mse, strategy=[], device=device,
            progress=False,
        )  # fmt: skip
        found.append([accelerated.train_step(b).item() for b in accelerated.loader])
        assert model.outer.weight is model.inner.weight
        assert model.inner.weight.device.type == device
        accelerated.close()
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_language_model_trains_there():
    accelerated = run_bytes(["precision", "activation_checkpoint"])
    assert accelerated.device.type == "sim"
    losses = [
        accelerated.train_step(batch).item()
        for _ in range(2)
        for batch in accelerated.loader
    ][:12]
    assert losses[-1] < losses[0]
    accelerated.close()


def in_ranks(device, strategies):
    init_process_group()
    found = []
    for strategy in strategies:
        accelerated = accelerate(
            Blocks, adamw, loader("list"), mse, strategy=strategy, device=device,
            progress=False,
        )  # fmt: skip
        found.append([accelerated.train_step(b).item() for b in accelerated.loader])
        accelerated.close()
    backend = str(dist.get_backend_config())
    destroy_process_group()
    return backend, found


def test_ranks_meet_by_the_devices_own_collectives():
    strategies = [["ddp"], ["fsdp"], ["fsdp", ("micro_batch", 2)], ["ddp", "precision"]]
    expected = run_ranks(in_ranks, 2, "cpu", strategies, process_group=False)
    found = run_ranks(in_ranks, 2, None, strategies, process_group=False)
    assert "sim:simccl" in found[0][0]
    for (_, theirs), (_, ours) in zip(expected, found, strict=True):
        for a, b, strategy in zip(theirs, ours, strategies, strict=True):
            rel = 2e-2 if "precision" in strategy else 1e-5
            assert b == pytest.approx(a, rel=rel), strategy


def test_batch_is_whole_however_soon_its_memory_is_used_again():
    from drivetrain_simulated_accelerator import control

    def batches(count):
        return [torch.full((1 << 16,), float(n)).pin_memory() for n in range(count)]

    device = torch.device("sim")
    move_batch(batches(1), device)
    with control.delays(copy_us=5000):
        # Each batch is dropped while its copy is queued, and the next takes its memory.
        found = [move_batch(batches(n + 1)[n], device) for n in range(6)]
    assert [int(batch[-1]) for batch in found] == list(range(6))
    assert [int(batch[0]) for batch in found] == list(range(6))


FLAGS = """
import json, torch
from drivetrain_core import accelerate
from drivetrain_core.accelerators import accelerator_of
from drivetrain_testing import check_accelerator
from drivetrain_testing.programs import Blocks, adamw, loader, mse
check_accelerator(accelerator_of("sim"))
from drivetrain_core.extending import find
accelerated = accelerate(Blocks, adamw, loader("loader"), mse, strategy=[], progress=False)
losses = [accelerated.train_step(b).item() for b in accelerated.loader]
device = accelerated.context.device
offered = {
    name: [str(config) for config in find(name).configs(accelerated.context)]
    for name in ("precision", "compile", "data_loading")
}
print(json.dumps([losses, offered, device.graphs, device.streams, device.memory_bytes]))
"""


@pytest.mark.parametrize(
    "flags",
    [
        *(
            pytest.param(flag, marks=pytest.mark.slow)
            for flag in ("bf16=no", "streams=no", "graphs=no", "memory=1GiB")
        ),
        *(
            pytest.param(flag, marks=pytest.mark.slow)
            for flag in ("devices=1", "event_timing=no", "pinned_memory=no")
        ),
        "bf16=no,streams=no,graphs=no,pinned_memory=no,devices=1",
    ],
)
def test_plan_follows_what_a_device_lacks(flags):
    done = subprocess.run(
        [sys.executable, "-c", FLAGS],
        env=os.environ | {"SIMULATED_ACCELERATOR": flags},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    losses, offered, graphs, streams, memory = json.loads(done.stdout.splitlines()[-1])
    assert losses == pytest.approx(losses_of([], "cpu", len(losses)), rel=1e-5)
    assert bool(offered["precision"]) == ("bf16=no" not in flags)
    assert offered["compile"] == []
    assert ("True" in str(offered["data_loading"])) == ("pinned_memory=no" not in flags)
    assert graphs == ("graphs=no" not in flags)
    assert streams == ("streams=no" not in flags)
    assert memory == 1 << 30


def small_program(model):
    batches = [(torch.ones(4, 8), torch.zeros(4, 1))] * 3
    return accelerate(
        model,
        lambda params: torch.optim.SGD(params, lr=0.1),
        batches,
        lambda output, batch: torch.nn.functional.mse_loss(output, batch[1]),
        strategy=[],
        device="sim",
        progress=False,
    )


def test_model_that_is_built_leaves_the_generators_as_they_were():
    torch.manual_seed(5)
    expected = torch.rand(4, device="sim").cpu()
    torch.manual_seed(5)
    small_program(lambda: torch.nn.Linear(8, 1))
    assert torch.equal(torch.rand(4, device="sim").cpu(), expected)


def test_hooks_and_attributes_of_parameters_go_along_to_the_device():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    seen = []
    model[0].weight.register_hook(lambda grad: grad * 0)
    handle = model[1].weight.register_hook(seen.append)
    model[1].weight.register_post_accumulate_grad_hook(seen.append)
    model[1].bias.tag = "mine"
    before = model[0].weight.detach().clone()
    accelerated = small_program(model)
    for batch in accelerated.loader:
        accelerated.train_step(batch)
        handle.remove()
    assert len(seen) == 4
    assert model[1].bias.tag == "mine"
    assert torch.equal(model[0].weight.detach().cpu(), before)


def test_model_that_cannot_move_stays_whole():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    kept = weakref.ref(model[1].weight)
    with pytest.raises(ProgramError, match=r"1\.weight cannot be moved to sim"):
        small_program(model)
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert kept() is model[1].weight
