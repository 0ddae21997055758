"""The part of a checkpointer's contract that is about states that do not fit."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from drivetrain_core import CheckpointError
from drivetrain_testing._checkpointer_state import (
    checked_state,
    require_equal,
    snapshot,
)
from drivetrain_testing._clauses import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from drivetrain_core.services.checkpointer import Checkpointer

    Factory = Callable[[Path], Checkpointer]

_WAIT_S = 60.0


def check_misfits_are_told(factory: Factory, folder: Path) -> None:
    """Checks that a refusal names all of its reasons and changes nothing."""
    factory(folder).save(2, checked_state(2)).wait(_WAIT_S)
    other = _misfit_state()
    before = snapshot(other)
    try:
        factory(folder).restore(other)
    except CheckpointError as error:
        mismatches = error.mismatches
    else:
        require(False, "a state that does not fit is refused")
    for name in _MISFITS:
        require(
            any(name in mismatch for mismatch in mismatches),
            f"a refusal tells of all that does not fit, {name} among it",
        )
    require_equal(snapshot(other), before, "after a refusal")


def check_what_fits_is_restored(factory: Factory, folder: Path) -> None:
    """Checks that a restore that is not strict does all it can, and tells the rest."""
    state = checked_state(2)
    factory(folder).save(2, state).wait(_WAIT_S)
    saved = snapshot(state)
    fitting = checked_state(0, seed=1)
    # What other threads of the process have to tell is not about this.
    with _warnings(threading.get_ident()) as told:
        factory(folder).restore(fitting, strict=False)
    require_equal(snapshot(fitting), saved, "after a restore of what fits")
    require(not told, f"where all fits, nothing is told: {told}")

    other = _misfit_state()
    before = snapshot(other)
    with _warnings() as told:
        step = factory(folder).restore(other, 2, strict=False)
    require(step == 2, "a restore of what fits returns the step")
    for name in _MISFITS:
        require(
            any(name in text for text in told),
            f"what is not restored is logged as a warning, {name} among it",
        )
    after = snapshot(other)
    for name, value in after["model"].items():
        fits = name not in {"up.weight", "extra.weight", "extra.bias"}
        source = saved if fits else before
        where = f"after a restore of {'what fits' if fits else 'all but this'}"
        require_equal(value, source["model"][name], where, f"state.model.{name}")
    for key in ("rng", "data", "scheduler"):
        require_equal(after[key], saved[key], "after a restore of what fits", key)
    require(other["sampler"] == {"seed": 5}, "what was not saved is left as it is")


def _misfit_state() -> dict[str, Any]:
    """Returns a state that `_state` does not fit in the places of `_MISFITS`.

    What was tied to one of them is not tied here, and takes what it was.
    """
    state = checked_state(1, seed=1)
    state["model"].up = nn.Linear(7, 4, bias=False)
    state["model"].extra = nn.Linear(1, 1)
    state["sampler"] = {"seed": 5}
    return state


_MISFITS = ("model.up.weight", "model.extra.bias", "sampler")


@contextmanager
def _warnings(thread: int | None = None) -> Iterator[list[str]]:
    """Yields the warnings that are logged meanwhile, by one thread or by any."""
    told: list[str] = []
    root = logging.getLogger()
    level = root.level
    handler = logging.Handler(logging.WARNING)
    handler.addFilter(lambda record: thread in (None, record.thread))
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    try:
        yield told
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
