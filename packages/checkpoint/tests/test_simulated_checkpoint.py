"""Checkpoints of a device that works on its own: nothing is read before it is there."""

from __future__ import annotations

import logging
import mmap

import pytest
import torch
import torch.distributed.checkpoint as dcp

from drivetrain_checkpoint import Checkpointer, StorageError, _native
from drivetrain_checkpoint._save.device_copy import DeviceLink
from drivetrain_checkpoint.adapters._random import random_states, set_random_states
from drivetrain_checkpoint.dcp import Stager

pytestmark = pytest.mark.simulated_accelerator

ROWS = 300


@pytest.fixture
def control():
    from drivetrain_simulated_accelerator import control

    return control


@pytest.fixture
def checkpointer(tmp_path):
    made = Checkpointer(tmp_path, job="sim")
    yield made
    made.stop_daemon()


@pytest.fixture
def overlapped(tmp_path):
    made = Checkpointer(tmp_path, job="sim", overlap=True)
    yield made
    made.stop_daemon()


def make():
    torch.manual_seed(0)
    model = torch.nn.Linear(ROWS, ROWS, device="sim")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, ROWS, device="sim")).square().mean().backward()
    optimizer.step()
    torch.sim.synchronize()
    return {"model": model, "optimizer": optimizer, "position": 1}


def restored(checkpointer):
    into = make()
    with torch.no_grad():
        for parameter in into["model"].parameters():
            parameter.zero_()
    checkpointer.restore(into)
    return [p.detach().cpu() for p in into["model"].parameters()]


def values(state):
    return [p.detach().cpu() for p in state["model"].parameters()]


def same(found, expected):
    return all(map(torch.equal, found, expected))


def test_state_comes_back(checkpointer):
    state = make()
    before = values(state)
    checkpointer.save(1, state).wait(60)
    assert checkpointer._memory._link._release.alive
    assert same(restored(checkpointer), before)


def test_save_holds_what_was_queued_before_it(checkpointer, control):
    state = make()
    checkpointer.save(1, state).wait(60)  # which makes the memory and the stream
    with control.delays(op_us=150_000), torch.no_grad():
        for parameter in state["model"].parameters():
            parameter.add_(1.0)
        checkpointer.save(2, state).wait(60)
    assert same(restored(checkpointer), values(state))


def test_save_has_ended_when_its_copies_have(checkpointer, control):
    state = make()
    before = values(state)
    with control.delays(copy_us=30_000):
        checkpointer.save(1, state).wait(60)
        found = restored(checkpointer)
    assert same(found, before)


def test_guard_holds_the_step_back_until_an_overlapped_save_is_copied(
    overlapped, control
):
    state = make()
    before = values(state)
    with control.delays(copy_us=30_000):
        handle = overlapped.save(1, state)
        with overlapped.guard(), torch.no_grad():
            for parameter in state["model"].parameters():
                parameter.zero_()
        assert handle.wait(60)
    assert same(restored(overlapped), before)


def test_change_without_a_guard_is_found(overlapped, control):
    state = make()
    with control.delays(copy_us=30_000):
        handle = overlapped.save(1, state)
        with torch.no_grad():
            state["model"].weight.zero_()
        with pytest.raises(StorageError, match="changed while it was being copied"):
            handle.wait(60)


def test_save_that_fails_on_the_device_stands_in_no_ones_way(checkpointer, monkeypatch):
    state = make()
    checkpointer.save(1, state).wait(60)

    def fail(self, copies):
        message = "no memory left"
        raise torch.OutOfMemoryError(message)

    with monkeypatch.context() as patched:
        patched.setattr(DeviceLink, "begin", fail)
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                checkpointer.save(2, state)
    checkpointer.save(3, state).wait(60)
    assert same(restored(checkpointer), values(state))


def test_memory_is_given_back_once_no_copy_writes_into_it(control):
    memory = mmap.mmap(-1, 1 << 20)
    address = _native.address_of(memory)
    link = DeviceLink("sim", address, len(memory), memory)
    source = torch.ones(1 << 18, device="sim")
    target = torch.frombuffer(memory, dtype=torch.float32)
    torch.sim.synchronize()
    with control.delays(copy_us=50_000):
        copy = {source.device: lambda: target.copy_(source, non_blocking=True)}
        (event,) = link.begin(copy)
        link.close()
        assert event.query()
    assert bool((target == 1).all())


def test_state_that_is_staged_is_whole(control):
    stager = Stager()
    state = {"big": torch.randn(1 << 18, device="sim")}
    torch.sim.synchronize()
    for _ in range(3):
        with control.delays(copy_us=20_000):
            staged = stager.stage(state)
            found = staged["big"].clone()
        assert torch.equal(found, state["big"].cpu())
        state["big"].add_(1.0)
    del staged
    stager.close()


def test_large_tensors_come_back_by_way_of_page_locked_memory(
    checkpointer, control, monkeypatch
):
    monkeypatch.setattr(
        "drivetrain_checkpoint._restore.write_blocks._PIECE_BYTES", 1 << 16
    )
    state = {"big": torch.randn(300_001, device="sim")}
    state["turned"] = torch.randn(300, 200, device="sim").T
    checkpointer.save(1, state).wait(60)
    for _ in ("memory", "storage"):
        into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        with control.delays(copy_us=3000):
            checkpointer.restore(into)
        assert all(torch.equal(into[name].cpu(), state[name].cpu()) for name in state)
        checkpointer.stop_daemon()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp_saves_and_loads_there(tmp_path):
    state = {"model": make()["model"].state_dict()}
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    into = {"model": make()["model"].state_dict()}
    into["model"]["weight"].zero_()
    dcp.load(into, checkpoint_id=tmp_path, no_dist=True)
    assert torch.equal(into["model"]["weight"].cpu(), state["model"]["weight"].cpu())


def test_generators_of_the_device_are_part_of_the_states():
    states = random_states()
    assert len(states["sim"]) == torch.sim.device_count()
    first = torch.rand(8, device="sim:1").cpu()
    set_random_states(states)
    assert torch.equal(torch.rand(8, device="sim:1").cpu(), first)


def test_generators_of_another_kind_of_device_are_left_out_with_a_warning(caplog):
    states = random_states()
    states["cuda"] = states.pop("sim")
    with caplog.at_level(logging.WARNING):
        set_random_states(states)
    (record,) = caplog.records
    assert "cuda are left out" in record.getMessage()
    assert "sim" in record.getMessage()
