"""The contract of a checkpointer."""

from __future__ import annotations

import functools
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from drivetrain_core import CheckpointError
from drivetrain_core.services.checkpointer import Checkpointer, SaveHandle
from drivetrain_testing._checkpointer_misfits import (
    check_misfits_are_told,
    check_what_fits_is_restored,
)
from drivetrain_testing._checkpointer_state import (
    checked_state,
    require_equal,
    snapshot,
)
from drivetrain_testing._clauses import must_raise, no_other_error, require
from drivetrain_testing._models import (
    Block,
    make_trained,
    step_once,
    tensors_equal,
)
from drivetrain_testing._processes import run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    Factory = Callable[[Path], Checkpointer]

_WAIT_S = 60.0


def check_checkpointer(
    factory: Factory, *, world_size: int = 2, timeout_s: float = 120.0
) -> None:
    """Checks that a checkpointer restores exactly what was saved, or says why not.

    Args:
        factory: Makes a checkpointer on a folder. It is called again on the same folder
            to play the process that comes after a crash, and crosses to child processes
            by pickle.
        world_size: The number of ranks that save together; 1 leaves that out.
        timeout_s: How long the ranks may take, in seconds.

    Raises:
        AssertionError: A clause of the contract is broken.
    """
    for check in (
        _check_empty,
        _check_round_trip,
        _check_steps,
        _check_refusals,
        check_misfits_are_told,
        check_what_fits_is_restored,
        _check_damage,
    ):
        with (
            tempfile.TemporaryDirectory(prefix="drivetrain-check-") as folder,
            no_other_error("a checkpointer"),
        ):
            check(factory, Path(folder))
    if world_size > 1:
        with (
            tempfile.TemporaryDirectory(prefix="drivetrain-check-") as folder,
            no_other_error("a checkpointer"),
        ):
            _check_world(factory, Path(folder), world_size, timeout_s)


def _check_empty(factory: Factory, folder: Path) -> None:
    checkpointer = factory(folder)
    require(
        isinstance(checkpointer, Checkpointer),
        "a checkpointer has the methods of Checkpointer",
    )
    require(checkpointer.latest() is None, "where nothing was saved, latest() is None")
    with must_raise(CheckpointError, "where nothing was saved, restore fails"):
        checkpointer.restore(checked_state(0))
    require(checkpointer.flush() is True, "where nothing was saved, flush() is done")


def _check_round_trip(factory: Factory, folder: Path) -> None:
    state = checked_state(3)
    checkpointer = factory(folder)
    handle = checkpointer.save(3, state)
    saved = snapshot(state)
    # The state may change as soon as `save` has returned.
    step_once(state["model"], state["optimizer"], 3)
    state["data"]["position"] = -1
    state["rng"].zero_()
    require(isinstance(handle, SaveHandle), "save returns a SaveHandle")
    require(handle.step == 3, "a handle knows its step")
    require(handle.wait(_WAIT_S) is True, "wait() is True once the save is durable")
    require(handle.done and handle.durable, "a save that is durable is done")
    require(checkpointer.flush(time.monotonic() + _WAIT_S), "flush() is True then")
    require(checkpointer.latest() == 3, "latest() is the step that was saved")

    new = checked_state(0, seed=1)
    new["model"] = nn.DataParallel(new["model"])
    data = new["data"]
    require(factory(folder).restore(new) == 3, "restore returns the step it restored")
    require_equal(snapshot(new), saved, "after restore in a new process")
    require(new["data"] is data, "a dictionary is restored in place")

    again = checked_state(1, seed=2)
    factory(folder).restore(again)
    model, optimizer = make_trained(3)
    losses = (
        step_once(model, optimizer, 3),
        step_once(again["model"], again["optimizer"], 3),
    )
    require(
        tensors_equal(*losses),
        "a run that was restored goes on as if nothing had happened",
    )
    part: dict[str, Any] = {"data": {}}
    factory(folder).restore(part)
    require_equal(part["data"], saved["data"], "when restored alone", "state.data")


def _check_steps(factory: Factory, folder: Path) -> None:
    checkpointer = factory(folder)
    for step in (1, 2):
        checkpointer.save(step, {"data": {"step": step}}).wait(_WAIT_S)
    checkpointer.save(2, {"data": {"step": "two"}}).wait(_WAIT_S)
    into: dict[str, Any] = {"data": {}}
    require(factory(folder).restore(into) == 2, "the step saved last is restored")
    require(into["data"] == {"step": "two"}, "saving a step again replaces it")
    require(factory(folder).restore(into, 1) == 1, "an earlier step can be restored")
    require(into["data"] == {"step": 1}, "an earlier step is as it was saved")
    with must_raise(CheckpointError, "a step that was not saved cannot be restored"):
        factory(folder).restore(into, 7)


def _check_refusals(factory: Factory, folder: Path) -> None:
    checkpointer = factory(folder)
    checkpointer.save(1, checked_state(1)).wait(_WAIT_S)
    with must_raise(ValueError, "a negative step is refused"):
        checkpointer.save(-1, {})
    with must_raise(TypeError, "an object without state is refused"):
        checkpointer.save(2, {"data": {"object": object()}})
    require(
        factory(folder).latest() == 1, "a save that was refused leaves no checkpoint"
    )
    with must_raise(CheckpointError, "an entry that was not saved is missed"):
        factory(folder).restore({"data": {}, "sampler": {}})
    other = checked_state(0, seed=1)
    other["model"].up = nn.Linear(7, 4, bias=False)
    before = snapshot(other)
    with must_raise(CheckpointError, "a model of another shape is refused"):
        factory(folder).restore(other)
    require_equal(snapshot(other), before, "after a refusal")
    other = checked_state(0, seed=1)
    other["model"].extra = nn.Linear(1, 1)
    before = snapshot(other)
    with must_raise(CheckpointError, "a model with more tensors is refused"):
        factory(folder).restore(other)
    require_equal(snapshot(other), before, "after a refusal")


def _check_damage(factory: Factory, folder: Path) -> None:
    good = folder / "good"
    good.mkdir()
    state = checked_state(2)
    # Most bytes are a tensor's, so that most damage is to values and not to structure.
    state["data"]["ballast"] = torch.arange(1 << 15)
    factory(good).save(2, state).wait(_WAIT_S)
    saved = snapshot(state)
    files = sorted(p.relative_to(good) for p in good.rglob("*") if p.is_file())
    require(bool(files), "what is durable is in the folder")
    harms: tuple[Callable[[Path], None], ...] = (*_FLIPS, _cut_short, Path.unlink)
    for name in files:
        for harm in harms:
            bad = folder / "bad"
            shutil.copytree(good, bad)
            harm(bad / name)
            new = checked_state(0, seed=1)
            try:
                factory(bad).restore(new)
            except CheckpointError:
                pass
            # Damage must be told as what it is; this is shown beside the clause.
            except Exception as error:
                message = (
                    f"broken clause: damage to {name} is a CheckpointError, got "
                    f"{type(error).__name__}: {error}"
                )
                raise AssertionError(message) from error
            else:
                where = f"although {name} was damaged"
                require_equal(snapshot(new), saved, where)
            shutil.rmtree(bad)


def _flip_byte(path: Path, eighths: int) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[len(content) * eighths // 8] ^= 0x10
    path.write_bytes(content)


_FLIPS = tuple(functools.partial(_flip_byte, eighths=i) for i in range(8))


def _cut_short(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _check_world(
    factory: Factory, folder: Path, world_size: int, timeout_s: float
) -> None:
    run_ranks(_check_rank, world_size, factory, folder, timeout_s=timeout_s)
    torch.manual_seed(1)
    model = Block()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    alone: dict[str, Any] = {"model": model, "optimizer": optimizer, "data": {}}
    require(
        factory(folder).restore(alone, 2) == 2,
        f"what {world_size} ranks have saved, one process can restore",
    )
    require(alone["data"] == {"position": 64}, "plain data is restored in any world")
    torch.manual_seed(0)
    expected = Block()
    expected_optimizer = torch.optim.Adam(expected.parameters(), lr=0.01)
    for step in range(2):
        step_once(expected, expected_optimizer, step)
    for (name, one), other in zip(
        model.named_parameters(), expected.parameters(), strict=True
    ):
        # Sharded arithmetic may round otherwise, so this is near and not equal.
        require(
            torch.allclose(one, other, rtol=1e-4, atol=1e-6),
            f"what {world_size} ranks have saved of {name} is the whole tensor",
        )


def _check_rank(factory: Factory, folder: Path) -> None:
    def sharded(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = Block()
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        return {"model": model, "optimizer": optimizer, "data": {"position": 0}}

    state = sharded(0)
    for step in range(2):
        step_once(state["model"], state["optimizer"], step)
    state["data"]["position"] = 64
    checkpointer = factory(folder)
    require(checkpointer.save(2, state).wait(_WAIT_S), "ranks can save together")
    new = sharded(1)
    require(factory(folder).restore(new) == 2, "ranks can restore together")
    for one, other in zip(
        new["model"].parameters(), state["model"].parameters(), strict=True
    ):
        require(
            tensors_equal(one.to_local(), other.to_local()),
            "each rank gets its own part back",
        )
    losses = [step_once(s["model"], s["optimizer"], 2) for s in (state, new)]
    require(tensors_equal(*losses), "ranks that restore go on as if nothing happened")
    own = {"data": {"rank": dist.get_rank()}}
    last = 3
    try:
        checkpointer.save(3, own).wait(_WAIT_S)
    except ValueError:
        last = 2
    dist.barrier()
    require(checkpointer.latest() == last, "a save that was refused leaves nothing")
    if last == 3:
        into: dict[str, Any] = {"data": {}}
        factory(folder).restore(into)
        require(into == own, "ranks that save different plain data get their own back")
