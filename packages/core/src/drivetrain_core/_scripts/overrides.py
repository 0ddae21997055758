"""What the command line puts in place of a script's own arguments to `accelerate`."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivetrain_core._partial import read_partial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drivetrain_core._accelerated import Accelerated
    from drivetrain_core._scripts.replay import Replay, Script


@dataclass(frozen=True, kw_only=True, slots=True)
class Overrides:
    """Arguments that win over those of the script; None leaves the script's.

    Args:
        strategy: Instead of `strategy`.
        budget: Instead of `budget`.
        plan_out: Instead of `plan_out`.
        on_accelerated: Called with the result, before the script goes on.
        started: The script that a command runs.
        replay: What a script that runs again in a trial does at its calls.
    """

    strategy: Any = None
    budget: Any = None
    plan_out: str | None = None
    on_accelerated: Callable[[Accelerated], None] | None = None
    started: Script | None = None
    replay: Replay | None = None

    def strategy_for(self, written: Any) -> Any:
        """Returns the strategy in force; a search keeps to what a script leaves open."""
        if self.strategy is None:
            return written
        partial = self.strategy == "auto" and read_partial(written) is not None
        return written if partial else self.strategy


_NONE = Overrides()
_current: ContextVar[Overrides] = ContextVar("drivetrain_overrides", default=_NONE)


def current_overrides() -> Overrides:
    """Returns the overrides in force."""
    return _current.get()


@contextmanager
def overriding(overrides: Overrides) -> Iterator[None]:
    """Puts overrides in force inside."""
    token = _current.set(overrides)
    try:
        yield
    finally:
        _current.reset(token)
