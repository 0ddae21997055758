"""The file in which a supervisor keeps what a bill is made from."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.notices.sighting import BadAnswerError, wall_time
from drivetrain_cloud.spot.capacity import JobPhase, Market
from drivetrain_cloud.spot.cost_observability import NodeUse, PhaseTime, Usage
from drivetrain_core import ProgramError
from drivetrain_core.services import write_whole

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

_VERSION = 1


class UsageError(ProgramError):
    """A record of a job contradicts itself, or is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageRecord:
    """What is kept of a job; all times are seconds since 1970.

    Args:
        job: Its name.
        usage: Who was there, and what the job did.
        until_s: When this was last known to be so.
        samples: Samples whose steps count.
        reference_nodes: Nodes that the job asked for.
        reference_speed: Samples a second with all of them and nothing that happens; 0
            if it is not known.

    Raises:
        UsageError: A node was in two places at once, a time runs backwards, or a number
            is out of its range.
    """

    job: str
    usage: Usage
    until_s: float
    samples: float
    reference_nodes: int
    reference_speed: float = 0.0

    def __post_init__(self) -> None:
        """Checks the fields."""
        for name in ("samples", "reference_speed"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                message = f"{name} must be a number from 0, got {value}"
                raise UsageError(message)
        if self.reference_nodes < 1:
            message = f"reference_nodes must be at least 1, got {self.reference_nodes}"
            raise UsageError(message)
        ends: dict[str, float] = {}
        for use in sorted(self.usage.nodes, key=lambda use: use.begin_s):
            end_s = self.until_s if use.end_s is None else use.end_s
            if not use.begin_s <= end_s <= self.until_s:
                message = (
                    f"node {use.node} cannot be there from {_text(use.begin_s)} to "
                    f"{_text(end_s)} when all is known until {_text(self.until_s)}"
                )
                raise UsageError(message)
            if use.begin_s < ends.get(use.node, -math.inf):
                message = (
                    f"node {use.node} is there twice at {_text(use.begin_s)}; it would "
                    "be paid for twice"
                )
                raise UsageError(message)
            ends[use.node] = end_s
        for one in self.usage.phases:
            if one.end_s is not None and not one.begin_s <= one.end_s:
                message = (
                    f"the phase {one.phase.value} cannot last from "
                    f"{_text(one.begin_s)} to {_text(one.end_s)}"
                )
                raise UsageError(message)


def record_usage(
    usage: Usage,
    *,
    now_s: float,
    epoch_s: float,
    job: str,
    samples: float,
    reference_nodes: int,
    reference_speed: float = 0.0,
    offer: str = "",
) -> UsageRecord:
    """Returns the record of a job whose times are of a monotonic clock.

    Args:
        usage: Who was there.
        now_s: The time on the clock of `usage`.
        epoch_s: The same moment in seconds since 1970.
        job: Its name.
        samples: Samples whose steps count.
        reference_nodes: Nodes that the job asked for.
        reference_speed: Samples a second of all of them; 0 if it is not known.
        offer: What nodes are in a list of prices that do not say it.

    Example:
        >>> from drivetrain_cloud.spot import Market
        >>> from drivetrain_cloud.spot.cost_observability import NodeUse, Usage
        >>> use = NodeUse(node="a", market=Market.SPOT, offer="", begin_s=5.0)
        >>> record = record_usage(Usage(nodes=(use,)), now_s=9.0, epoch_s=1e9, job="j",
        ...                       samples=0.0, reference_nodes=1, offer="small")
        >>> record.usage.nodes[0].begin_s, record.usage.nodes[0].offer
        (999999996.0, 'small')
    """
    shift_s = epoch_s - now_s

    def moved(time_s: float | None) -> float | None:
        return None if time_s is None else time_s + shift_s

    nodes = tuple(
        replace(
            use,
            begin_s=use.begin_s + shift_s,
            end_s=moved(use.end_s),
            offer=use.offer or offer,
        )
        for use in usage.nodes
    )
    phases = tuple(
        replace(one, begin_s=one.begin_s + shift_s, end_s=moved(one.end_s))
        for one in usage.phases
    )
    return UsageRecord(
        job=job,
        usage=Usage(nodes=nodes, phases=phases),
        until_s=epoch_s,
        samples=samples,
        reference_nodes=reference_nodes,
        reference_speed=reference_speed,
    )


def write_usage(path: str | os.PathLike[str], record: UsageRecord) -> None:
    """Writes a record, whole or not at all.

    Args:
        path: Where to; what was there is replaced.
        record: Of a job.

    Raises:
        OSError: It cannot be written.
    """
    plain = {
        "drivetrain_usage": _VERSION,
        "job": record.job,
        "until": _text(record.until_s),
        "samples": record.samples,
        "reference_nodes": record.reference_nodes,
        "reference_speed": record.reference_speed,
        "nodes": [
            {
                "node": use.node,
                "market": use.market.value,
                "offer": use.offer,
                "begin": _text(use.begin_s),
                "end": None if use.end_s is None else _text(use.end_s),
                "was_taken": use.was_taken,
            }
            for use in record.usage.nodes
        ],
        "phases": [
            {
                "phase": one.phase.value,
                "begin": _text(one.begin_s),
                "end": None if one.end_s is None else _text(one.end_s),
            }
            for one in record.usage.phases
        ],
    }
    write_whole(path, json.dumps(plain, indent=1))


def read_usage(path: str | os.PathLike[str]) -> UsageRecord:
    """Reads what `write_usage` has written.

    Args:
        path: Where it lies.

    Raises:
        UsageError: It is no record, with the entry that is wrong.
        OSError: It cannot be read.
    """
    path = Path(path)
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        message = f"{path}: expected JSON: {error}"
        raise UsageError(message) from None
    version = said.get("drivetrain_usage") if isinstance(said, dict) else None
    if version != _VERSION:
        message = (
            f"{path}: expected a record of a job with drivetrain_usage: {_VERSION}, got "
            f"{version!r}"
        )
        raise UsageError(message)
    try:
        usage = Usage(
            nodes=tuple(_entries(said, "nodes", _use)),
            phases=tuple(_entries(said, "phases", _phase)),
        )
        return UsageRecord(
            job=str(said["job"]),
            usage=usage,
            until_s=_seconds(said["until"]),
            samples=_number(said["samples"]),
            reference_nodes=_whole(said["reference_nodes"]),
            reference_speed=_number(said.get("reference_speed", 0.0)),
        )
    except KeyError as error:
        message = f"{path}: {error} is missing"
        raise UsageError(message) from None
    except (BadAnswerError, UsageError) as error:
        message = f"{path}: {error}"
        raise UsageError(message) from None


def _entries(
    said: dict[str, Any], name: str, read: Callable[[dict[str, Any]], Any]
) -> Iterable[Any]:
    entries = said[name]
    if not isinstance(entries, list):
        message = f"{name} must be a list, got {entries!r:.80}"
        raise UsageError(message)
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            message = f"{name}[{number}] must be an object, got {entry!r:.80}"
            raise UsageError(message)
        try:
            yield read(entry)
        except KeyError as error:
            message = f"{name}[{number}]: {error} is missing"
            raise UsageError(message) from None
        except (ValueError, BadAnswerError, UsageError) as error:
            message = f"{name}[{number}]: {error}"
            raise UsageError(message) from None


def _use(entry: dict[str, Any]) -> NodeUse:
    end = entry["end"]
    return NodeUse(
        node=str(entry["node"]),
        market=Market(entry["market"]),
        offer=str(entry["offer"]),
        begin_s=_seconds(entry["begin"]),
        end_s=None if end is None else _seconds(end),
        was_taken=bool(entry.get("was_taken", False)),
    )


def _phase(entry: dict[str, Any]) -> PhaseTime:
    end = entry["end"]
    return PhaseTime(
        phase=JobPhase(entry["phase"]),
        begin_s=_seconds(entry["begin"]),
        end_s=None if end is None else _seconds(end),
    )


def _seconds(said: Any) -> float:
    if not isinstance(said, str):
        message = f"expected a time, got {said!r:.80}"
        raise UsageError(message)
    found = wall_time(said).timestamp()
    if found < 0:
        message = f"expected a time since 1970, got {said!r}"
        raise UsageError(message)
    return found


def _number(said: Any) -> float:
    if isinstance(said, bool) or not isinstance(said, int | float):
        message = f"expected a number, got {said!r:.80}"
        raise UsageError(message)
    try:
        return float(said)
    except OverflowError:
        message = f"expected a number, got one of {len(str(said))} digits"
        raise UsageError(message) from None


def _whole(said: Any) -> int:
    found = _number(said)
    if not found.is_integer():
        message = f"expected a whole number, got {said!r:.80}"
        raise UsageError(message)
    return int(found)


def _text(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat()
