"""The user's program on its way to the processes of trials."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from drivetrain_core import PlanError, SearchError, register, unregister
from drivetrain_core._program import Program
from drivetrain_search.process.payload import (
    Payload,
    _spawns_workers,
    import_path,
    modules_of,
    read_payload,
    write_payload,
)
from drivetrain_testing import FaultyOptimization


@pytest.fixture
def payload(program, context):
    """The payload of `program`, with fields of the program replaced."""

    def make(**fields):
        changed = dataclasses.replace(program, **fields)
        return Payload(
            program=changed,
            context=context,
            guard_batches=tuple(program.data[:2]),
            device="cpu",
        )

    return make


def same_batches(one, other):
    return all(
        torch.equal(a, b)
        for left, right in zip(one, other, strict=True)
        for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize(
    ("start", "spawns"), [("spawn", True), ("forkserver", True), ("fork", False)]
)
def test_workers_of_a_loader_that_are_new_processes_are_found(start, spawns):
    data = TensorDataset(torch.zeros(2, 1))
    loader = DataLoader(data, num_workers=1, multiprocessing_context=start)
    assert _spawns_workers(loader) is spawns
    assert not _spawns_workers(DataLoader(data))
    assert not _spawns_workers([1, 2])


def test_optimizer_whose_hooks_would_be_lost_is_not_sent(payload, tmp_path):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: None)
    with pytest.raises(PlanError, match="its hooks are lost when it is pickled"):
        write_payload(payload(model=model, optimizer=optimizer), tmp_path)


def test_generators_come_back_with_their_state(payload, tmp_path):
    generator = torch.Generator().manual_seed(11)
    torch.rand(5, generator=generator)
    state = generator.get_state()
    data = TensorDataset(torch.arange(8.0))
    loader = DataLoader(data, shuffle=True, generator=generator)
    got = read_payload(write_payload(payload(data=loader), tmp_path)).program.data
    # The loader and its sampler share it.
    assert got.generator is got.sampler.generator
    assert torch.equal(got.generator.get_state(), state)


def test_modules_of_a_class_of_their_own_travel_by_name(payload, tmp_path):
    # By value, as that of a script does.
    backend, scope = torch.backends.mkldnn, {"__name__": "__main__"}
    scope["used"] = backend
    exec("def loss(output, batch): return used", scope)  # noqa: S102
    read = read_payload(write_payload(payload(loss=scope["loss"]), tmp_path))
    assert read.program.loss(None, None) is backend


def test_payload_comes_back_as_it_was(payload, tmp_path):
    sent = payload(max_grad_norm=1.5, seed=7)
    path = write_payload(sent, tmp_path)
    got = read_payload(path)
    assert path.parent == tmp_path
    assert (got.context, got.device) == (sent.context, "cpu")
    assert (got.program.max_grad_norm, got.program.seed) == (1.5, 7)
    assert same_batches(got.program.data, sent.program.data)
    assert same_batches(got.guard_batches, sent.guard_batches)
    model, batch = got.program.build_model(), got.guard_batches[0]
    expected = sent.program.loss_of(sent.program.build_model(), batch)
    assert torch.equal(got.program.loss_of(model, batch), expected)


@pytest.mark.slow
def test_payload_of_this_module_is_read_in_a_fresh_process(payload, tmp_path):
    path = write_payload(payload(model=Scaled, optimizer=halved), tmp_path)
    code = f"""
import sys
sys.path[:] = {import_path()}
from drivetrain_search.process.payload import read_payload
program = read_payload({str(path)!r}).program
model = program.build_model()
print(type(model).__name__, program.optimizer(model.parameters()).defaults["lr"])
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("Scaled 0.5\n", "")


class Scaled(nn.Module):
    """Of this file, with a function of this file."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), SCALE))


SCALE = 2.0


def halved(parameters):
    return torch.optim.SGD(parameters, lr=SCALE / 4)


def test_payload_of_a_model_instance_carries_its_weights(payload, tmp_path):
    model = nn.Linear(2, 2)
    got = read_payload(write_payload(payload(model=model), tmp_path)).program.model
    assert torch.equal(got.weight, model.weight)
    assert got.weight is not model.weight


def test_payload_keeps_an_optimizer_on_its_models_parameters(payload, tmp_path):
    model = nn.Linear(2, 2)
    sent = payload(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    program = read_payload(write_payload(sent, tmp_path)).program
    (group,) = program.optimizer.param_groups
    assert group["params"][0] is program.model.weight


def test_payload_keeps_a_loader_and_its_shuffle(payload, tmp_path):
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(
        TensorDataset(torch.arange(8)), batch_size=2, shuffle=True, generator=generator
    )
    got = read_payload(write_payload(payload(data=loader), tmp_path)).program.data
    assert isinstance(got, DataLoader)
    assert same_batches(list(got), list(loader))


class Locked:
    """Data that holds what no process can hand to another."""

    def __init__(self):
        self.lock = threading.Lock()

    def __iter__(self):
        return iter([])


def test_data_that_cannot_travel_is_replaced_by_the_recorded_batches(payload, tmp_path):
    sent = payload(data=Locked())
    got = read_payload(write_payload(sent, tmp_path))
    assert isinstance(got.program.data, list)
    assert same_batches(got.program.data, sent.guard_batches)


@pytest.mark.parametrize(
    "field", ["model", "optimizer", "loss", "forward", "scheduler"]
)
def test_part_that_cannot_travel_is_named(payload, tmp_path, field):
    lock = threading.Lock()

    def holds(*_):
        return lock

    with pytest.raises(PlanError) as caught:
        write_payload(payload(**{field: holds}), tmp_path)
    assert f"{field} cannot be sent to a trial process" in caught.value.because
    assert "lock" in caught.value.because
    assert f"pass {field} as a function" in caught.value.fix
    assert list(tmp_path.iterdir()) == []


def test_payload_takes_along_what_was_registered_by_hand(payload, tmp_path):
    assert read_payload(write_payload(payload(), tmp_path)).optimizations == ()
    register(FaultyOptimization(["nan"]))
    try:
        got = read_payload(write_payload(payload(), tmp_path))
    finally:
        unregister("faulty")
    (optimization,) = got.optimizations
    assert (optimization.name, optimization.faults) == ("faulty", ("nan",))


def collate(samples):
    return samples


def test_modules_of_a_program_are_found_wherever_they_hide():
    program = Program(
        model=nn.Sequential(Scaled()),
        optimizer=functools.partial(halved),
        data=DataLoader(TensorDataset(torch.zeros(1)), collate_fn=collate),
    )
    assert {__name__, "torch.nn.modules.linear"} & modules_of(program) == {__name__}
    assert __name__ in modules_of(dataclasses.replace(program, model=Scaled, data=[]))


def test_import_path_is_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "folder", "/absolute"])
    assert import_path() == [
        *(str(tmp_path), str(tmp_path / "folder"), str(Path("/absolute"))),
    ]


def test_loader_with_workers_at_work_travels_without_them(payload, tmp_path):
    dataset = TensorDataset(torch.arange(8.0))
    loader = DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True)
    next(iter(loader))
    program = read_payload(write_payload(payload(data=loader), tmp_path)).program
    assert type(program.data) is DataLoader
    assert program.data.persistent_workers
    assert loader._iterator is not None


def test_folder_without_room_is_one_error(payload, tmp_path, monkeypatch):
    save = torch.save

    def full(value, file, **options):
        if file == tmp_path / "program.pt":
            raise RuntimeError("enforce fail: no space left")
        save(value, file, **options)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(SearchError, match=r"no space left; set TMPDIR"):
        write_payload(payload(), tmp_path)
