"""`drivetrain diff`: how two plans differ in choices, facts, speeds and reasons."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drivetrain_core import Choice, Plan
from drivetrain_core.extending import find, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping


def run(arguments: argparse.Namespace) -> int:
    """Prints how two plan files differ."""
    diff = diff_plans(Plan.load(arguments.before), Plan.load(arguments.after))
    if arguments.json:
        sys.stdout.write(f"{json.dumps(diff.to_dict(), indent=2, default=str)}\n")
    else:
        show_diff(diff, (arguments.before, arguments.after))
    return int(arguments.exit_code and not diff.same_strategy)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One thing with two values.

    Args:
        what: Its name: a slot, a fact, or a measured value.
        before: Its value in the first plan; None when it is not there.
        after: Its value in the second.
        detail: The options that differ, or the ratio of two numbers; empty without.
    """

    what: str
    before: Any
    after: Any
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns the change as plain data."""
        return {"what": self.what, "before": self.before, "after": self.after} | (
            {"detail": self.detail} if self.detail else {}
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanDiff:
    """How a second plan differs from a first.

    Args:
        choices: The slots with another answer.
        fingerprint: What differs of model and batch.
        made: What differs of the surroundings.
        measured: Every measured value of both, whether or not it differs.
        why: The slots with another reason.
    """

    choices: tuple[Change, ...]
    fingerprint: tuple[Change, ...]
    made: tuple[Change, ...]
    measured: tuple[Change, ...]
    why: tuple[Change, ...]

    @property
    def same_strategy(self) -> bool:
        """Whether both plans do the same."""
        return not self.choices

    def to_dict(self) -> dict[str, Any]:
        """Returns the difference as plain data."""
        parts = ("choices", "fingerprint", "made", "measured", "why")
        changes = {name: [c.to_dict() for c in getattr(self, name)] for name in parts}
        return {"same_strategy": self.same_strategy, **changes}


def diff_plans(before: Plan, after: Plan) -> PlanDiff:
    """Returns how two plans differ.

    Options that a plan leaves out count with their defaults, and the order of a
    strategy does not count, since it is always applied in one order.

    Args:
        before: The first plan.
        after: The second.

    Example:
        >>> from drivetrain_core import Plan
        >>> plans = Plan(choices=(Choice("micro_batch", {"num": 2}),)), Plan()
        >>> [(change.what, change.before) for change in diff_plans(*plans).choices]
        [('micro_batch', 'micro_batch(num=2)')]
    """
    first, second = _by_slot(before), _by_slot(after)
    choices = [
        _choice_change(slot, first.get(slot), second.get(slot))
        for slot in dict.fromkeys([*first, *second])
        if first.get(slot) != second.get(slot)
    ]
    reasons = [{r.slot: r.because for r in plan.why} for plan in (before, after)]
    return PlanDiff(
        choices=tuple(choices),
        fingerprint=_changes(before.fingerprint, after.fingerprint),
        made=_changes(before.made, after.made),
        measured=tuple(
            _measured_change(key, before.measured.get(key), after.measured.get(key))
            for key in dict.fromkeys([*before.measured, *after.measured])
        ),
        why=_changes(*reasons),
    )


def _by_slot(plan: Plan) -> dict[str, Choice]:
    found: dict[str, Choice] = {}
    for choice in plan.choices:
        slot, full = _known(choice)
        # What is unknown here, or shares its slot with another, is told by its name.
        found[choice.name if slot in found else slot] = full
    return found


def _known(choice: Choice) -> tuple[str, Choice]:
    """Returns the slot of a choice and its full configuration, as far as known here."""
    try:
        optimization = find(choice.name)
        slot = str(optimization.slot.value)
        return slot, Choice(choice.name, optimization.normalize(choice.config))
    except Exception:  # noqa: BLE001
        # A package of others may fail in any way, and a plan need not fit this machine.
        return choice.name, choice


def _choice_change(slot: str, before: Choice | None, after: Choice | None) -> Change:
    detail = ""
    if before is not None and after is not None and before.name == after.name:
        options = _changes(before.config, after.config)
        detail = ", ".join(f"{c.what}: {c.before} -> {c.after}" for c in options)
    return Change(
        what=slot,
        before=before and str(before),
        after=after and str(after),
        detail=detail
        or ("added" if before is None else "removed" if not after else ""),
    )


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    return tuple(
        Change(what=str(key), before=before.get(key), after=after.get(key))
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key)
    )


def _measured_change(key: str, before: Any, after: Any) -> Change:
    ratio = f"{after / before:.2f}x" if _counts(before) and _counts(after) else ""
    return Change(what=str(key), before=before, after=after, detail=ratio)


def _counts(value: object) -> bool:
    """Returns whether a ratio can be made of a value."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and bool(value) and abs(value) < 1e30  # type: ignore[arg-type]


def show_diff(
    diff: PlanDiff, names: tuple[str, str], console: Console | None = None
) -> None:
    """Prints a difference as tables.

    Args:
        diff: What `diff_plans` returned.
        names: What to call the two plans, such as their paths.
        console: Where to; standard output by default.
    """
    console = console or Console()
    if diff.same_strategy:
        console.print("the strategies are equal", style="bold")
    parts = {
        "strategy": ("slot", diff.choices, "change"),
        "measured": ("value", diff.measured, "ratio"),
        "fingerprint": ("of", diff.fingerprint, ""),
        "made": ("fact", diff.made, ""),
        "why": ("slot", diff.why, ""),
    }
    for title, (what, changes, detail) in parts.items():
        if not changes:
            continue
        table = Table(title=title, title_justify="left")
        columns = [what, *names, detail] if detail else [what, *names]
        for column in columns:
            table.add_column(Text(column), overflow="fold")
        for change in changes:
            cells = [change.what, _cell(change.before), _cell(change.after)]
            texts = map(visible, [*cells, change.detail][: len(columns)])
            table.add_row(*map(Text, texts))
        console.print(table)


def _cell(value: object) -> str:
    return "-" if value is None else str(value)
