"""What can be tried: the candidates of each slot, and those ruled out before a trial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_core import Choice, Code, Numerics, PlanError, Reject, Rejected, Slot
from drivetrain_core.extending import arrange, available, find, problems

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from drivetrain_core import Context, Optimization

_ORDER = (
    Slot.PRECISION,
    Slot.MESH,
    Slot.DATA_PARALLEL,
    Slot.COMPILE,
    Slot.OPTIMIZER_IMPL,
    Slot.MICRO_BATCH,
    Slot.ACTIVATION_CHECKPOINT,
    Slot.MEMORY_FORMAT,
    Slot.CPU_THREADS,
    Slot.LOADER,
)
"""Slots with the largest expected gain first; the others follow in their own order."""

# What saves memory costs time, and gains it back only together with something else.
_SAVERS = frozenset({Slot.MICRO_BATCH, Slot.ACTIVATION_CHECKPOINT})

# A candidate whose most optimistic estimate is above this cannot pay for its trial.
_NO_GAIN = 0.995


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotSpace:
    """The candidates of one slot.

    Args:
        slot: The question.
        candidates: The answers worth a trial, besides leaving the program as it is.
        monotone: Whether they go from mild to strong.
        optional: Whether leaving the slot open is an answer.
    """

    slot: Slot
    candidates: tuple[Choice, ...]
    monotone: bool
    optional: bool = True


def make_space(
    context: Context,
    *,
    allow: Collection[str] | None = None,
    deny: Collection[str] = (),
    changes_algorithm: bool = False,
    given: Mapping[str, Sequence[Choice]] | None = None,
) -> tuple[tuple[SlotSpace, ...], tuple[Rejected, ...]]:
    """Returns the candidates of each slot, and what was ruled out with its reason.

    Args:
        context: The facts of device, model, batch, loop and world.
        allow: Names of optimizations to consider; all when None.
        deny: Names to leave out.
        changes_algorithm: Whether optimizations that change the algorithm may be
            chosen.
        given: Candidates by name, in place of those that an optimization proposes;
            what changes the algorithm is asked for when it is named here.

    Raises:
        PlanError: `allow` or `deny` holds an unknown name.
    """
    given = given or {}
    for name in (*(allow or ()), *deny):
        find(name)
    rejected: list[Rejected] = []
    by_slot: dict[Slot, list[Choice]] = {}
    monotone: dict[Slot, bool] = {}
    for name, optimization in available().items():
        # Gradient averaging stays a candidate whatever the user allows.
        averages = name == "ddp" and context.world.size > 1
        allowed = allow is None or name in allow or averages
        if name in deny or not allowed:
            continue
        try:
            judged = _judged(
                name, optimization, context, changes_algorithm, given.get(name)
            )
        except Exception as error:  # noqa: BLE001
            # A package of others may fail in any way.
            rejected.append(Rejected(plan=name, code=Code.PLUGIN, because=repr(error)))
            continue
        for choice, reject in judged:
            if reject is not None:
                rejected.append(_rejected(choice, reject))
                continue
            by_slot.setdefault(optimization.slot, []).append(choice)
            monotone[optimization.slot] = optimization.monotone
    space = tuple(
        SlotSpace(
            slot=slot,
            candidates=tuple(by_slot[slot]),
            monotone=monotone[slot],
            optional=not (slot is Slot.DATA_PARALLEL and context.world.size > 1),
        )
        for slot in _in_order()
        if slot in by_slot
    )
    return space, tuple(rejected)


def _judged(
    name: str,
    optimization: Optimization,
    context: Context,
    changes_algorithm: bool,
    given: Sequence[Choice] | None,
) -> list[tuple[Choice, Reject | None]]:
    """Returns each configuration, with why it cannot be tried."""
    judged: list[tuple[Choice, Reject | None]] = []
    proposed = given
    if proposed is None:
        configs = map(optimization.normalize, optimization.configs(context))
        proposed = [Choice(name, config) for config in configs]
    for choice in proposed:
        config = choice.config
        changes = optimization.numerics(config) is Numerics.CHANGES_ALGORITHM
        if changes and not changes_algorithm and given is None:
            judged.append((choice, _algorithm(choice)))
            continue
        answer = optimization.check(context, config, (choice,))
        judged.append((choice, answer if isinstance(answer, Reject) else None))
    return judged


def _algorithm(choice: Choice) -> Reject:
    return Reject(
        Code.ALGORITHM,
        "it changes the algorithm, which is never chosen unasked",
        f"name it in the strategy, as in [{choice.name!r}]",
    )


def _rejected(choice: Choice, reject: Reject) -> Rejected:
    return Rejected(
        plan=str(choice), code=reject.code, because=reject.because, fix=reject.fix
    )


def require(
    space: Sequence[SlotSpace], fixed: Sequence[Choice], named: Collection[str]
) -> tuple[SlotSpace, ...]:
    """Returns a space whose every plan holds what the user requires.

    Args:
        space: The candidates of each slot.
        fixed: Choices that every plan holds, options and all.
        named: Optimizations that every plan holds, their options left to the search.

    Raises:
        PlanError: A named one has no candidate here, or two ask for one slot.
    """
    by_slot = {entry.slot: entry for entry in space}
    taken: dict[Slot, str] = {}
    wanted: list[tuple[str, tuple[Choice, ...]]] = [(c.name, (c,)) for c in fixed]
    for name in named:
        entry = by_slot.get(find(name).slot)
        mine = tuple(c for c in entry.candidates if c.name == name) if entry else ()
        wanted.append((name, mine))
    for name, candidates in wanted:
        slot = find(name).slot
        if slot in taken:
            raise PlanError(
                Code.CONFLICT,
                name,
                because=f"it is required, and so is {taken[slot]}, for slot {slot!s}",
                fix="require one of them",
            )
        if not candidates:
            raise PlanError(
                Code.NOT_APPLICABLE,
                name,
                because="it is required, and no configuration of it can be tried here",
                fix="drop it from require, or give its options",
            )
        taken[slot] = name
        by_slot[slot] = SlotSpace(
            slot=slot,
            candidates=candidates,
            monotone=find(name).monotone,
            optional=False,
        )
    return tuple(by_slot[slot] for slot in _in_order() if slot in by_slot)


def _in_order() -> list[Slot]:
    return [*_ORDER, *(slot for slot in Slot if slot not in _ORDER)]


def savers_last(space: Sequence[SlotSpace]) -> tuple[SlotSpace, ...]:
    """Returns a space in the order for few trials: what saves memory alone comes last.

    Example:
        >>> parts = Choice("micro_batch", {"num": 2})
        >>> one = Choice("cpu_threads", {"num": 1})
        >>> space = [
        ...     SlotSpace(slot=find(c.name).slot, candidates=(c,), monotone=False)
        ...     for c in (parts, one)
        ... ]
        >>> [entry.slot.value for entry in savers_last(space)]
        ['cpu_threads', 'micro_batch']
    """
    return tuple(sorted(space, key=lambda entry: entry.slot in _SAVERS))


def base_plan(
    space: Sequence[SlotSpace], written: Sequence[Choice], required: Collection[str]
) -> tuple[Choice, ...]:
    """Returns the program as written with the mildest form of what is required."""
    plan = {find(c.name).slot: c for c in written}
    for entry in space:
        if entry.candidates[0].name in required:
            plan[entry.slot] = entry.candidates[0]
    return arrange(plan.values())


def seed_plans(
    space: Sequence[SlotSpace], baseline: Sequence[Choice], context: Context
) -> list[tuple[Choice, ...]]:
    """Returns what an expert would try first, the most promising first.

    That is bf16 autocast, compiled blocks, and a fused optimizer, on a CPU with memory
    that is kept: the choices that win most often, together, since they feed on one
    another. Where a device multiplies bf16 slowly, the same without it; where there is
    no time to compile, without that.
    """
    wanted = [Slot.OPTIMIZER_IMPL]
    if context.device.type == "cpu":
        wanted.append(Slot.ALLOCATOR)
    found = []
    for more in (
        (Slot.PRECISION, Slot.COMPILE),
        (Slot.COMPILE,),
        (Slot.PRECISION,),
        (),
    ):
        plan = _seed(space, baseline, (*wanted, *more))
        if plan != tuple(baseline) and plan not in found:
            found.append(plan)
    return [plan for plan in found if not problems(plan, context)]


def calm_plans(
    space: Sequence[SlotSpace], baseline: Sequence[Choice]
) -> list[tuple[Choice, ...]]:
    """Returns the baseline with fewer threads, as a busy machine may want it.

    Where others compute on the same cores, threads wait for each other at the end of
    each operator for as long as a scheduler gives a core away.
    """
    rest = [c for c in baseline if find(c.name).slot is not Slot.CPU_THREADS]
    return [
        arrange([*rest, choice])
        for entry in space
        if entry.slot is Slot.CPU_THREADS
        for choice in entry.candidates[-1:]
    ]


def _seed(
    space: Sequence[SlotSpace], baseline: Sequence[Choice], wanted: Collection[Slot]
) -> tuple[Choice, ...]:
    preferred = {Slot.PRECISION: "bf16_autocast"}
    plan = {find(c.name).slot: c for c in baseline}
    for entry in space:
        if entry.slot in wanted:
            liked = [
                c
                for c in entry.candidates
                if preferred.get(entry.slot) in (None, c.config.get("dtype"))
            ]
            plan[entry.slot] = (liked or list(entry.candidates))[0]
    return arrange(plan.values())


def reference_plans(
    space: Sequence[SlotSpace], baseline: Sequence[Choice]
) -> list[tuple[Choice, ...]]:
    """Returns plans that need less memory than the baseline, should it not fit.

    The first that runs takes the baseline's place: same numbers, least change.
    """
    by_slot = {entry.slot: entry for entry in space}
    saving: list[Choice] = []
    plans = []
    for slot in (Slot.ACTIVATION_CHECKPOINT, Slot.MICRO_BATCH, Slot.DATA_PARALLEL):
        if slot not in by_slot:
            continue
        strongest = by_slot[slot].candidates[-1]
        rest = [c for c in baseline if find(c.name).slot is not slot]
        baseline = (*rest, strongest)
        saving.append(strongest)
        plans.append(arrange(baseline))
    return plans


def with_unused_parameters(baseline: Sequence[Choice]) -> tuple[Choice, ...]:
    """Returns a baseline whose `ddp` allows parameters that a step does not use."""
    return tuple(
        Choice(c.name, {**c.config, "find_unused_parameters": True})
        if c.name == "ddp"
        else c
        for c in baseline
    )


def skip_reason(choices: Sequence[Choice], context: Context) -> Rejected | None:
    """Returns why a plan needs no trial, or None when it deserves one."""
    found = problems(choices, context)
    if found:
        choice, reject = found[0]
        return _rejected(choice, reject)
    for choice in choices:
        estimate = find(choice.name).estimate(context, choice.config, choices)
        if estimate is not None and estimate.step_time >= _NO_GAIN:
            return Rejected(
                plan=str(choice),
                code=Code.SLOWER,
                because=f"no trial: {estimate.because}",
            )
    return None
