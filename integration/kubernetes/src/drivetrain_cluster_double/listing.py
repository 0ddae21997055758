"""Lists and watches: what there is, in pages, and what happens from then on."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cluster_double import events
from drivetrain_cluster_double.errors import (
    bad_request,
    expired,
    too_large_revision,
)
from drivetrain_cluster_double.selectors import (
    Selector,
    parse_fields,
    parse_labels,
)
from drivetrain_cluster_double.store import Change, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from drivetrain_cluster_double.kinds import Kind
    from drivetrain_cluster_double.store import Store

__all__ = ["Page", "list_page", "read_revision", "read_selector", "watch_events"]


class Page(NamedTuple):
    """A list, or a part of one.

    Attributes:
        rows: The objects, by namespace and name.
        metadata: Of the list: its version, and where the next page begins.
    """

    rows: list[Row]
    metadata: dict[str, Any]


def read_selector(kind: Kind, query: Mapping[str, str], name: str = "") -> Selector:
    """Returns what a call selects.

    Args:
        kind: Of the objects.
        query: Of the call.
        name: Of the one object that is watched; empty for all.

    Raises:
        StatusError: A selector cannot be read, or is not supported.
    """
    labels = parse_labels(query.get("labelSelector", "")).labels
    fields = parse_fields(query.get("fieldSelector", ""), kind.fields).fields
    if name:
        fields += parse_fields(f"metadata.name={name}", kind.fields).fields
    if kind.group == events.GROUP:
        fields = tuple(
            one._replace(key=".".join([events.FIELDS.get(first, first), *rest]))
            for one in fields
            for first, *rest in [one.key.split(".")]
        )
    return Selector(labels, fields)


def read_revision(text: str) -> int | None:
    """Returns the version that a call names, or None.

    Raises:
        StatusError: It is no version.
    """
    if not text:
        return None
    if not text.isdigit():
        message = f'invalid resource version "{text}": it must be a number'
        raise bad_request(message)
    return int(text)


def list_page(
    store: Store,
    kind: Kind,
    namespace: str,
    selector: Selector,
    query: Mapping[str, str],
) -> Page:
    """Returns a page of a list.

    Args:
        store: Where the objects lie; the caller holds its lock.
        kind: Of the objects.
        namespace: Of the objects; empty for all.
        selector: Of the objects.
        query: Of the call: `limit`, `continue`, `resourceVersion` and
            `resourceVersionMatch` are looked at.

    Raises:
        StatusError: The version is too old, or has not been reached.
    """
    table, start = store.table(kind.table), ("", "")
    at, match = read_revision(query.get("resourceVersion", "")), ""
    if token := query.get("continue"):
        at, start, match = *_read_token(token), "Exact"
    else:
        match = query.get("resourceVersionMatch", "")
        if match and at is None:
            message = (
                "resourceVersionMatch is forbidden unless resourceVersion is provided"
            )
            raise bad_request(message)
    if at is not None and at > store.revision:
        raise too_large_revision(at, store.revision)
    if match == "Exact" and at is not None:
        revision = at
        if at < table.compacted:
            message = (
                "The provided continue parameter is too old to display a consistent list "
                "result. You must start a new list without the continue parameter."
            )
            raise expired(message)
        found: Iterable[tuple[Any, Row]] = [
            (key, row)
            for key, row in table.rows_at(at).items()
            if (not namespace or key.namespace == namespace)
            and key > start
            and selector.matches(row.item)
        ]
    else:
        revision, found = store.revision, table.find(namespace, selector)
    rows = sorted(found, key=lambda entry: entry[0])
    metadata: dict[str, Any] = {"resourceVersion": str(revision)}
    limit = int(query.get("limit") or 0)
    if 0 < limit < len(rows):
        metadata["continue"] = _make_token(revision, rows[limit - 1][0])
        if not selector.labels and not selector.fields:
            metadata["remainingItemCount"] = len(rows) - limit
        rows = rows[:limit]
    return Page([row for _, row in rows], metadata)


def _make_token(revision: int, last: tuple[str, str]) -> str:
    text = json.dumps({"v": "meta.k8s.io/v1", "rv": revision, "start": last})
    return base64.urlsafe_b64encode(text.encode()).decode()


def _read_token(token: str) -> tuple[int, tuple[str, str]]:
    try:
        found = json.loads(base64.urlsafe_b64decode(token))
        namespace, name = found["start"]
        return int(found["rv"]), (str(namespace), str(name))
    except (ValueError, KeyError, TypeError) as error:
        message = "continue key is not valid: use the one of the page before"
        raise bad_request(message) from error


def watch_events(
    changes: Iterable[Change], namespace: str, selector: Selector
) -> Iterator[tuple[str, Row]]:
    """Yields what a watch is told of changes.

    An object that is selected no more is deleted, as far as this watch is concerned.

    Args:
        changes: Of the objects of a kind.
        namespace: Of the objects; empty for all.
        selector: Of the objects.
    """
    for change in changes:
        if namespace and change.key.namespace != namespace:
            continue
        before = change.before
        was_seen = before is not None and selector.matches(before.item)
        is_seen = not change.is_deleted and selector.matches(change.after.item)
        if is_seen:
            yield ("MODIFIED" if was_seen else "ADDED"), change.after
        elif was_seen:
            yield "DELETED", (change.after if change.is_deleted else _last(change))


def _last(change: Change) -> Row:
    """Returns the object as it was selected last, at the version at which it is no more."""
    before = change.before
    assert before is not None
    metadata = {**before.item["metadata"], "resourceVersion": str(change.revision)}
    return Row({**before.item, "metadata": metadata}, before.managers)
