"""Makes a program out of a strategy: read, complete, order, check; `_build` applies.

Everything but `build` is a pure function of its arguments.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core._choice import Choice, Numerics, Reject, Slot
from drivetrain_core._errors import Code, PlanError, PlanFormatError, PluginError
from drivetrain_core._plan import Plan
from drivetrain_core._registry import find
from drivetrain_core.mesh_shape import asks_for_mesh, mesh_of

if TYPE_CHECKING:
    from drivetrain_core._context import Context

Strategy = (
    str
    | os.PathLike[str]
    | Plan
    | Mapping[str, object]
    | Sequence[str | tuple[str, object] | Mapping[str, object] | Choice]
)
"""`"auto"`, a plan, the path of one, a mapping, or a list of names and pairs."""

Problem = tuple[Choice, Reject]
"""A choice of a plan, and why it cannot be used."""

_SLOT_ORDER = {slot: index for index, slot in enumerate(Slot)}


def read_strategy(strategy: Strategy) -> Plan:
    """Returns the plan that a user's strategy describes, options filled in.

    Raises:
        PlanError: A name or an option is unknown, or a value is not allowed.
        PlanFormatError: A plan file cannot be read.

    Example:
        >>> print(read_strategy(["compile", ("precision", "bf16_autocast")]))
        precision(dtype=bf16_autocast) + compile(scope=block)
    """
    source = ""
    if isinstance(strategy, Plan):
        plan = strategy
    elif isinstance(strategy, str | os.PathLike):
        source = str(strategy)
        if isinstance(strategy, str) and not strategy.endswith((".yaml", ".yml")):
            raise PlanFormatError(
                Code.FORMAT,
                strategy,
                because="a strategy given as text is 'auto' or the path of a .yaml",
                fix=f"for one optimization write [{strategy!r}]",
            )
        plan = Plan.load(Path(strategy))
    elif isinstance(strategy, Mapping):
        plan = Plan(choices=tuple(_entry((k, v)) for k, v in strategy.items()))
    elif isinstance(strategy, Iterable):
        entries = list(strategy)
        _require_no_pair(entries)
        plan = Plan(choices=tuple(_entry(item) for item in entries))
    else:
        raise PlanFormatError(
            Code.FORMAT,
            "strategy",
            because=f"it must be 'auto', a plan, a path, a mapping or a list, got "
            f"{type(strategy).__name__}",
        )
    try:
        full = [_filled(choice) for choice in plan.choices]
    except PlanError as error:
        if not source:
            raise
        raise PlanError(
            error.code,
            error.optimization,
            because=f"in {source}: {error.because}",
            fix=error.fix,
            evidence=error.evidence,
        ) from error
    return replace(plan, choices=arrange(full))


def _filled(choice: Choice) -> Choice:
    raw = choice.config
    value = raw.get(_BARE) if set(raw) == {_BARE} else raw
    return Choice(choice.name, find(choice.name).normalize(value))


def _require_no_pair(entries: Sequence[object]) -> None:
    """Refuses one (name, options) pair in the place of a list of pairs."""
    if len(entries) != 2 or not isinstance(entries[0], str):
        return
    name, value = entries
    with suppress(PlanError, PluginError):
        if isinstance(value, str) and find(value) is not None:
            return
    try:
        find(name).normalize(value)  # type: ignore[arg-type]
    except (PlanError, PluginError):
        return  # No such pair: what is wrong with the entries is said of each.
    raise PlanFormatError(
        Code.FORMAT,
        "strategy",
        because=f"it is one pair, {(name, value)!r}, and must be a list of names and pairs",
        fix=f"write [{(name, value)!r}]",
    )


# Stands for the key of a bare value until the optimization's shorthand is known.
_BARE = "\0value"


def _raw(value: object) -> Mapping[str, object]:  # type: ignore[type-arg,unused-ignore]
    return value if isinstance(value, Mapping) else {_BARE: value}


def _entry(item: object) -> Choice:
    if isinstance(item, Choice):
        return item
    if isinstance(item, str):
        return Choice(item, {_BARE: None})
    if isinstance(item, Mapping) and len(item) == 1:
        ((name, config),) = item.items()
        return Choice(str(name), _raw(config))  # type: ignore[arg-type]
    if isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[0], str):
        return Choice(item[0], _raw(item[1]))  # type: ignore[arg-type]
    raise PlanFormatError(
        Code.FORMAT,
        "strategy",
        because=f"an entry must be a name or a (name, options) pair, got {item!r}",
    )


def arrange(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    """Returns choices in the order of apply: by phase, then slot, then name."""

    def key(choice: Choice) -> tuple[int, int, str]:
        optimization = find(choice.name)
        return (optimization.phase, _SLOT_ORDER[optimization.slot], choice.name)

    return tuple(sorted(choices, key=key))


def complete(choices: Sequence[Choice], context: Context) -> tuple[Choice, ...]:
    """Returns choices with what the world asks for: with several ranks, `ddp`.

    Without gradient averaging the replicas would drift apart in silence. Of a mesh, the
    ranks that its axes leave share a model, unless it asks for copies: `fsdp`.
    """
    if context.world.size == 1:
        return tuple(choices)
    if any(find(c.name).slot is Slot.DATA_PARALLEL for c in choices):
        return tuple(choices)
    name = "fsdp" if _leaves_shards(choices, context.world.size) else "ddp"
    return arrange([*choices, Choice(name, find(name).normalize(None))])


def _leaves_shards(choices: Sequence[Choice], world_size: int) -> bool:
    if not asks_for_mesh(choices):
        return False
    try:
        return mesh_of(choices, world_size).shard > 1
    except PlanError:
        # The mesh's own check says what is wrong with it, and not with a `ddp` that
        # nobody asked for.
        return any(choice.config.get("shard") for choice in choices)


def problems(choices: Sequence[Choice], context: Context) -> list[Problem]:
    """Returns every reason why a plan cannot be used, in order; empty if it can."""
    found: list[Problem] = []
    names = [choice.name for choice in choices]
    owner: dict[Slot, str] = {}
    for choice in choices:
        optimization = find(choice.name)
        slot = optimization.slot
        if slot in owner:
            fix = f"keep one of {owner[slot]} and {choice.name}"
            because = f"slot {slot.value!r} is taken by {owner[slot]}"
            if owner[slot] == choice.name:
                because, fix = f"{choice.name} stands twice", "keep one of the two"
            found.append((choice, Reject(Code.CONFLICT, because, fix)))
        owner.setdefault(slot, choice.name)
        for name in optimization.requires:
            if name not in names:
                reject = Reject(Code.REQUIRES, f"it needs {name}", f"add {name}")
                found.append((choice, reject))
        for name in optimization.conflicts:
            if name in names:
                reject = Reject(
                    Code.CONFLICT,
                    f"it excludes {name}",
                    f"drop {name} or {choice.name}",
                )
                found.append((choice, reject))
        answer = optimization.check(context, choice.config, choices)
        if isinstance(answer, Reject):
            found.append((choice, answer))
    return found


def require_usable(choices: Sequence[Choice], context: Context) -> None:
    """Raises the first problem of a plan, with the others as evidence.

    Raises:
        PlanError: The plan cannot be used here. Nothing was changed.
    """
    found = problems(choices, context)
    if not found:
        return
    choice, reject = found[0]
    raise PlanError(
        reject.code,
        choice.name,
        because=reject.because,
        fix=reject.fix,
        evidence={other.name: r.because for other, r in found[1:]},
    )


def numerics_of(choices: Iterable[Choice]) -> Numerics:
    """Returns the strongest change to the numbers that a plan makes."""
    kinds = [find(choice.name).numerics(choice.config) for choice in choices]
    return max(kinds, default=Numerics.EXACT)
