"""Ships the user's program to the processes of trials, through a private folder.

In one of three ways, the first that can be. A function that can be imported travels by
name, and makes the model in the trial. A module travels whole, from the CPU, pickled
with all else by cloudpickle into a folder that only this user can read. What cannot be
pickled is made again: the trial runs the user's script up to the same call, and gets
the batches and the weights of this process.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import io
import logging
import os
import random
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import cloudpickle
import numpy as np
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils.data import DataLoader

from drivetrain_core import Code, PlanError, ProgramError, SearchError, register
from drivetrain_core.extending import (
    Overrides,
    Replay,
    by_value,
    overriding,
    registered,
    run_script,
    step_hooks,
)
from drivetrain_search.process.mapped_arrays import reduce_mapped
from drivetrain_search.process.modules_by_value import provide_modules
from drivetrain_search.process.torch_settings import apply_settings, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from drivetrain_core import Context, Optimization
    from drivetrain_core.extending import Program, Script

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Payload:
    """What a trial needs besides the plan.

    Args:
        program: The user's program.
        context: The facts it was probed to have.
        guard_batches: Global batches, on the CPU, that every trial is observed on.
        device: Where to train, as torch names it; of several ranks, the first.
        optimizations: What the user registered by hand.
        script: How to run the user's script again, if there is one.
        must_replay: Whether trials run the script even if the program can be pickled.
        weights: What the model of a script that runs again starts from.
        by_value: The modules that parts of it were defined in and trials cannot import.
        settings: What the process has set in torch, as `read_settings` says it.
        replayed: Why trials run the script again; empty where they do not.
    """

    program: Program | None
    context: Context
    guard_batches: tuple[Any, ...]
    device: str
    optimizations: tuple[Optimization, ...] = ()
    script: Script | None = None
    must_replay: bool = False
    weights: Mapping[str, Any] | None = None
    by_value: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    replayed: str = ""


def write_payload(payload: Payload, folder: Path) -> Path:
    """Writes the payload and returns its path.

    Where the program cannot be pickled and there is no script to run again, a loader
    is replaced by the batches that were looked at.

    Raises:
        PlanError: The program can be shipped in no way; what hinders it is named.
        SearchError: The folder has no room for it.
    """
    program = payload.program
    assert program is not None
    with by_value(*modules_of(program)) as names:
        shippable = _shippable(payload, program, names)
        settings = read_settings()
        shippable = dataclasses.replace(shippable, by_value=names, settings=settings)
        return _save(shippable, folder)


def _shippable(payload: Payload, program: Program, by_value: Sequence[str]) -> Payload:
    """Returns the payload in a form that can be pickled."""
    if payload.must_replay:
        return _to_replay(payload, program, "ship='replay' asks for it")
    program = dataclasses.replace(program, data=_at_rest(program.data))
    hindered = _hindrances(program)
    if by_value and _spawns_workers(program.data):
        where = ", ".join(by_value)
        hindered["data"] = f"its workers are new processes, which cannot import {where}"
    if hindered and payload.script is not None:
        part, problem = next(iter(hindered.items()))
        because = f"{part} cannot be pickled ({problem})"
        logger.info("trials run %s again: %s", payload.script.path, because)
        return _to_replay(payload, program, because)
    if "data" in hindered:
        program = dataclasses.replace(program, data=list(payload.guard_batches))
        hindered = _hindrances(program)
    for part, problem in hindered.items():
        raise PlanError(
            Code.NOT_APPLICABLE,
            "search",
            because=f"{part} cannot be sent to a trial process: {problem}",
            fix=f"pass {part} as a function that makes it, search from a script, "
            "which can be run again, or give a plan",
        )
    return dataclasses.replace(
        payload, program=program, optimizations=registered(), script=None
    )


def _to_replay(payload: Payload, program: Program, because: str) -> Payload:
    if payload.script is None:
        raise PlanError(
            Code.NOT_APPLICABLE,
            "search",
            because="ship='replay' runs the script again, and this process runs none",
            fix="start the program as a script, or use ship='pickle'",
        )
    weights = None
    if isinstance(program.model, torch.nn.Module):
        weights = dict(program.model.state_dict())
    batches = payload.guard_batches
    if _why_not_picklable(batches):
        batches = ()  # The script's own first batches stand in for them.
    return dataclasses.replace(
        payload, program=None, guard_batches=batches, weights=weights, replayed=because
    )


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # It has no types.
    """Writes what cloudpickle does not, or not well.

    Random generators are read among fake tensors too; arrays of a file are mapped from it
    again; modules of a class of their own, such as `torch.backends.cudnn`, are imported.
    """

    def reducer_override(self, obj: Any) -> Any:
        mapped = reduce_mapped(obj) if type(obj) is np.memmap else None
        if mapped is not None:
            return mapped
        # Not by `isinstance`, at which objects that load lazily do so.
        if types.ModuleType in type(obj).__mro__[1:] and _is_imported(obj):
            return importlib.import_module, (obj.__name__,)
        if type(obj) is torch.Generator:
            return _generator, (str(obj.device), obj.get_state().numpy().tobytes())
        return super().reducer_override(obj)


def _is_imported(module: types.ModuleType) -> bool:
    by_value = cloudpickle.list_registry_pickle_by_value()
    name = module.__name__
    return sys.modules.get(name) is module and name not in by_value


def _generator(device: str, state: bytes) -> torch.Generator:
    with unset_fake_temporarily():
        generator = torch.Generator(device)
        values = torch.frombuffer(bytearray(state), dtype=torch.uint8)
        return generator.set_state(values)


# torch.save takes a module.
_PICKLE = types.SimpleNamespace(__name__=__name__, Pickler=_Pickler)


def _save(payload: Payload, folder: Path) -> Path:
    path = folder / "program.pt"
    try:
        torch.save(payload, path, pickle_module=_PICKLE)
    except (OSError, RuntimeError) as error:  # torch's own writer raises the latter.
        message = (
            f"the program cannot be written to {folder} for the trials: {error}; set "
            "TMPDIR to a folder with more room"
        )
        raise SearchError(message) from error
    return path


def _hindrances(program: Program) -> dict[str, str]:
    """Returns the parts that cannot be pickled, and why."""
    found = {
        field.name: _why_not_picklable(getattr(program, field.name))
        for field in dataclasses.fields(program)
    }
    optimizer = program.optimizer
    if isinstance(optimizer, torch.optim.Optimizer) and step_hooks(optimizer):
        found["optimizer"] = "its hooks are lost when it is pickled"
    return {part: problem for part, problem in found.items() if problem}


def _spawns_workers(data: Any) -> bool:
    """Returns whether a loader's workers are other than forks of this process."""
    context = getattr(data, "multiprocessing_context", None)
    return context is not None and context.get_start_method() != "fork"


def read_payload(path: str | Path) -> Payload:
    """Returns the payload, with every tensor on the CPU."""
    # What cloudpickle writes, the standard pickle reads.
    payload: Payload = torch.load(path, map_location="cpu", weights_only=False)
    apply_settings(payload.settings)
    if payload.program is not None:
        provide_modules(payload.by_value)
    return payload


def with_program(payload: Payload, run: Callable[[Payload, Program], int]) -> int:
    """Calls `run` with the payload and its program, wherever that comes from.

    Where the script makes the program, this process ends with the exit code that
    `run` returns: within the script's own call, so that all it holds is still open.

    Raises:
        ProgramError: The script ended without the call that is meant.
    """
    if payload.program is not None:
        for optimization in payload.optimizations:
            register(optimization)
        return run(payload, payload.program)
    script = payload.script
    assert script is not None

    def take(program: Program) -> NoReturn:
        code = run(payload, _as_it_was(payload, program))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    # What a script draws without a seed of its own, it draws alike in every trial.
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    try:
        with overriding(Overrides(replay=Replay(script, take))):
            run_script(script)
    except Exception as error:
        message = (
            f"trials run {script.path} again, since {payload.replayed}, and it fails "
            f"then: {type(error).__name__}: {error}; what stands before accelerate must "
            "run more than once"
        )
        raise ProgramError(message) from error
    number = len(script.earlier) + 1
    message = (
        f"{script.path} ended in a trial without its call {number} of accelerate; what "
        "stands before that call must run again alike"
    )
    raise ProgramError(message)


def _as_it_was(payload: Payload, program: Program) -> Program:
    """Returns the script's program, with the weights that the search began with."""
    if payload.weights is None:
        return program
    model = program.model
    try:
        if not isinstance(model, torch.nn.Module):
            kind = type(model).__name__
            message = f"the model is {kind}, and was a module"
            raise TypeError(message)  # noqa: TRY301
        model.load_state_dict(dict(payload.weights))
    except (RuntimeError, TypeError) as error:
        message = f"the script makes another model when it runs again: {error}"
        raise ProgramError(message) from error
    return program


def _at_rest(data: Iterable[Any]) -> Iterable[Any]:
    """Returns a loader without the persistent workers of a pass that was begun."""
    if isinstance(data, DataLoader) and data._iterator is not None:
        rested: DataLoader[Any] = copy.copy(data)
        rested._iterator = None
        return rested
    return data


class _Nowhere(io.RawIOBase):
    """A file that forgets what is written to it."""

    def write(self, data: Any) -> int:
        return len(data)


def _why_not_picklable(value: object) -> str:
    try:
        # Nothing is kept: what is pickled may be large.
        _Pickler(_Nowhere()).dump(value)
    except Exception as error:  # noqa: BLE001
        # Pickling runs the user's code: it may raise anything.
        return f"{type(error).__name__}: {error}"
    return ""


def modules_of(program: Program) -> set[str]:
    """Returns the names of the modules that the parts of a program were defined in."""
    values: list[object] = [
        getattr(program, field.name) for field in dataclasses.fields(program)
    ]
    if isinstance(program.model, torch.nn.Module):
        values += program.model.modules()
    data = program.data
    for part in ("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn"):
        values.append(getattr(data, part, None))
    values += [part.func for part in values if isinstance(part, functools.partial)]
    names = {getattr(value, "__module__", None) for value in values}
    names |= {type(value).__module__ for value in values}
    return {name for name in names if name is not None}


def import_path() -> list[str]:
    """Returns where this process imports from, so that trials import the same."""
    return [str(Path(entry or ".").resolve()) for entry in sys.path]
