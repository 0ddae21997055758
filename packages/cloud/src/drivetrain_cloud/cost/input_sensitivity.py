"""How much the saving hangs on what is assumed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from drivetrain_cloud.cost.compare import Scenario, Summary, simulate_all
from drivetrain_cloud.cost.job_profile import with_number
from drivetrain_cloud.cost.trace import TraceShape
from drivetrain_cloud.spot.capacity import Market

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

INPUTS: Mapping[str, str] = {
    "spot_price": "the price of a spot node",
    "up_h": "how long a spot node stays",
    "down_h": "how long its successor takes to be offered",
    "notice_s": "how long before it goes a node hears of it",
    "start_s": "how long a node takes to start",
    "restore_s": "how long training takes to begin from a checkpoint",
    "resize_s": "how long training stands still for a change of nodes",
    "save_s": "how long a checkpoint takes",
    "sample_s": "how long a sample takes",
}
"""What can be changed, with what it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """What the saving is when an input is another one.

    Args:
        name: Of the input.
        factor: By what it was multiplied.
        summary: What came out.
    """

    name: str
    factor: float
    summary: Summary


def changed(scenario: Scenario, name: str, factor: float) -> Scenario | None:
    """Returns a scenario with another input; None if it has no such input.

    Args:
        scenario: To be changed; a trace that was read has no shape to be changed.
        name: Of the input, as in `INPUTS`.
        factor: By what it is multiplied.

    Raises:
        KeyError: There is no such input.
        ProgramError: It would be out of its range.
    """
    if name not in INPUTS:
        raise KeyError(name)
    if name == "spot_price":
        prices = scenario.prices.scaled(Market.SPOT, factor)
        return replace(scenario, prices=prices, begin=scenario.begins)
    if name in {"up_h", "down_h"}:
        if not isinstance(scenario.traces, TraceShape):
            return None
        shape = scenario.traces
        if name == "up_h":
            # A cap on the time that nodes stay, and bursts, belong to it.
            shape = replace(
                shape,
                up_h=shape.up_h * factor,
                longest_h=shape.longest_h * factor,
                bursts_per_day=shape.bursts_per_day / factor,
            )
        else:
            shape = replace(shape, down_h=shape.down_h * factor)
        return replace(scenario, traces=shape)
    if name in {"notice_s", "start_s"}:
        changes = {name: getattr(scenario.cloud, name) * factor}
        return replace(scenario, cloud=replace(scenario.cloud, **changes))
    profile = scenario.profile
    value = getattr(profile, name) * factor
    if name == "save_s":
        profile = with_number(profile, "stall_s", min(profile.stall_s, value))
    return replace(scenario, profile=with_number(profile, name, value))


def sensitivity(
    scenario: Scenario,
    *,
    factors: Sequence[float] = (0.5, 2.0),
    seeds: Sequence[int],
    processes: int = 1,
    report: Callable[[int, int], None] = lambda *_: None,
) -> list[Effect]:
    """Returns what the saving is when one input at a time is another one.

    Args:
        scenario: With the usual inputs.
        factors: By what each is multiplied.
        seeds: One for each run.
        processes: As for `simulate_all`.
        report: Called with how many of how many are done.

    Raises:
        ProgramError: An input would be out of its range.
    """
    cases = [
        (name, factor, other)
        for name in INPUTS
        for factor in factors
        if (other := changed(scenario, name, factor)) is not None
    ]
    found = simulate_all(
        [other for *_, other in cases], seeds=seeds, processes=processes, report=report
    )
    return [
        Effect(name=name, factor=factor, summary=summary)
        for (name, factor, _), summary in zip(cases, found, strict=True)
    ]
