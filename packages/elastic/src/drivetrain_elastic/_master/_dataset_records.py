"""Datasets as the journal has them: what happened to each, or all of it at once."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from drivetrain_elastic.decisions.interval_set import IntervalSet
from drivetrain_elastic.decisions.shards import (
    Appended,
    Closed,
    Committed,
    DatasetSpec,
    DatasetState,
    Lease,
    Leased,
    Returned,
    Shard,
)
from drivetrain_elastic.journal import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_elastic.decisions.shards import Event

_OPENED, _WHOLE = "dataset", "dataset-state"
_EVENTS: dict[str, Any] = {
    "committed": Committed,
    "returned": Returned,
    "appended": Appended,
    "closed": Closed,
}


def opened(spec: DatasetSpec) -> Record:
    """Returns the record of a new dataset."""
    return Record(_OPENED, asdict(spec))


def record_of(name: str, event: Event) -> Record:
    """Returns the record of what happened to a dataset.

    Example:
        >>> record_of("train", Committed(7, 640))
        Record(kind='committed', body=['train', 7, 640])
    """
    if isinstance(event, Leased):
        rows = [[one.fence, one.worker, *one.shard] for one in event.leases]
        return Record("leased", [name, rows])
    return Record(type(event).__name__.lower(), [name, *event])


def whole(state: DatasetState) -> Record:
    """Returns one record that takes the place of all of a dataset's."""
    return Record(
        _WHOLE,
        {
            "spec": asdict(state.spec),
            "next_shard": state.next_shard,
            "num_samples": state.num_samples,
            "is_closed": state.is_closed,
            "waiting": list(state.waiting),
            "leased": [[o.fence, o.worker, *o.shard] for o in state.leased.values()],
            "dead": state.dead,
            "next_fence": state.next_fence,
            "done": state.done.ranges,
            "num_samples_done": state.num_samples_done,
            "growths": list(state.growths.items()),
        },
    )


def apply_record(datasets: dict[str, DatasetState], record: Record) -> bool:
    """Changes datasets as a record says.

    Args:
        datasets: By name.
        record: Of the journal.

    Returns:
        Whether it was about datasets.

    Raises:
        KeyError: It does not fit what came before it; so do TypeError and ValueError say.
    """
    kind, body = record
    if kind == _OPENED:
        spec = DatasetSpec(**body)
        datasets[spec.name] = DatasetState(spec=spec)
    elif kind == _WHOLE:
        state = _state(body)
        datasets[state.spec.name] = state
    elif kind == "leased":
        name, rows = body
        datasets[name].apply(Leased(tuple(map(_lease, rows))))
    elif kind in _EVENTS:
        name, *fields = body
        datasets[name].apply(_EVENTS[kind](*fields))
    else:
        return False
    return True


def _lease(row: list[Any]) -> Lease:
    fence, worker, *shard = row
    return Lease(fence, Shard(*shard), worker)


def _state(body: Mapping[str, Any]) -> DatasetState:
    return DatasetState(
        spec=DatasetSpec(**body["spec"]),
        next_shard=body["next_shard"],
        num_samples=body["num_samples"],
        is_closed=body["is_closed"],
        waiting=deque(Shard(*row) for row in body["waiting"]),
        leased={row[0]: _lease(row) for row in body["leased"]},
        dead=[(Shard(*shard), reason) for shard, reason in body["dead"]],
        next_fence=body["next_fence"],
        done=IntervalSet([(start, end) for start, end in body["done"]]),
        num_samples_done=body["num_samples_done"],
        growths=OrderedDict((caller, call) for caller, call in body.get("growths", ())),
    )
