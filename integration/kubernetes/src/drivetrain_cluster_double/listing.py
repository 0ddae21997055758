"""Lists, in pages, and watches: what has happened, told as it happens."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from drivetrain_cloud.kubernetes import compact_json
from drivetrain_cluster_double import errors
from drivetrain_cluster_double.kinds import Kind
from drivetrain_cluster_double.routes import Request
from drivetrain_cluster_double.selectors import Selector, parse_fields, parse_labels
from drivetrain_cluster_double.store import Change, Row, Store
from drivetrain_cluster_double.table import make_table


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
    fields = [query.get("fieldSelector", ""), f"metadata.name={name}" if name else ""]
    return Selector(
        parse_labels(query.get("labelSelector", "")),
        parse_fields(",".join(filter(None, fields)), kind.fields),
    )


def read_revision(text: str) -> int | None:
    """Returns the version that a call names, or None.

    Raises:
        StatusError: It is no version.
    """
    if text and not text.isdigit():
        raise errors.bad_request(f'invalid resource version: Invalid value: "{text}"')
    return int(text) if text else None


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
        query: Of the call: `limit`, `continue` and `resourceVersion` are looked at.

    Raises:
        StatusError: The version is too old, or has not been reached.
    """
    if query.get("resourceVersionMatch"):
        raise errors.not_done("a list with resourceVersionMatch")
    table, revision, token = (
        store.table(kind.table),
        store.revision,
        query.get("continue"),
    )
    asked = read_revision(query.get("resourceVersion", ""))
    if asked is not None and asked > revision:
        raise errors.too_large_revision(asked, revision)
    try:
        limit = int(query.get("limit") or 0)
    except ValueError as error:
        message = f'strconv.ParseInt: parsing "{query["limit"]}": invalid syntax'
        raise errors.bad_request(message) from error
    if token and asked:
        raise errors.bad_request(
            "specifying resource version is not allowed when using continue"
        )
    found: Iterable[tuple[Any, Row]] = table.find(namespace, selector)
    if token:
        revision, start = _read_token(token)
        found = (
            (key, row)
            for key, row in table.rows_at(revision).items()
            if namespace in {"", key.namespace}
            and key > start
            and selector.matches(row.item)
        )
    rows = sorted(found, key=lambda entry: entry[0])
    metadata: dict[str, Any] = {"resourceVersion": str(revision)}
    if 0 < limit < len(rows):
        place = json.dumps({"rv": revision, "start": rows[limit - 1][0]})
        metadata["continue"] = base64.urlsafe_b64encode(place.encode()).decode()
        if selector == Selector():
            metadata["remainingItemCount"] = len(rows) - limit
        rows = rows[:limit]
    return Page([row for _, row in rows], metadata)


def _read_token(token: str) -> tuple[int, tuple[str, str]]:
    try:
        found = json.loads(base64.urlsafe_b64decode(token))
        namespace, name = found["start"]
        return int(found["rv"]), (str(namespace), str(name))
    except (ValueError, KeyError, TypeError) as error:
        message = "invalid continue token: continue key is not valid"
        raise errors.bad_request(message) from error


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
        if namespace not in {"", change.key.namespace}:
            continue
        before = change.before
        was_seen = before is not None and selector.matches(before.item)
        is_seen = not change.is_deleted and selector.matches(change.after.item)
        if is_seen:
            yield ("MODIFIED" if was_seen else "ADDED"), change.after
        elif before is not None and was_seen:
            # As it was selected last, at the version at which it is no more.
            version = {"resourceVersion": str(change.revision)}
            last = {**before.item, "metadata": {**before.item["metadata"], **version}}
            yield "DELETED", change.after if change.is_deleted else Row(last)


class Watch:
    """What one caller is told; used in the thread of the server's loop.

    Args:
        store: Where the objects lie.
        kind: Of the objects.
        asked: What was asked for.

    Attributes:
        asked: What was asked for.
        news: Set when there may be something to tell.
        is_over: Whether nothing more will be told.
        is_dropped: Whether the connection is to be cut.

    Raises:
        StatusError: A selector or a version cannot be read.
    """

    def __init__(self, store: Store, kind: Kind, asked: Request) -> None:
        self._store, self._kind, self.asked = store, kind, asked
        call, query = asked.call, asked.query
        self._version = call.version
        self._selector = read_selector(kind, query, call.name)
        revision = read_revision(query.get("resourceVersion", ""))
        self._is_marked = query.get("sendInitialEvents") == "true"
        if self._is_marked and query.get("resourceVersionMatch") != "NotOlderThan":
            message = "sendInitialEvents requires resourceVersionMatch"
            raise errors.wrong_option(
                "ListOptions", "resourceVersionMatch", "Forbidden", message
            )
        # Without a version, and with 0, what there is comes first.
        self._starts_with_list = not revision or self._is_marked
        self._revision = self._told = revision or 0
        self.news = asyncio.Event()
        self.is_over = self.is_dropped = self._is_followed = self._is_called = False
        self._loop = asyncio.get_running_loop()
        self.close = store.subscribe(self._note)

    def _note(self, change: Change) -> None:
        # One call of the loop tells of all changes that came before it.
        if change.table == self._kind.table and not self._is_called:
            self._is_called = True
            self._loop.call_soon_threadsafe(self.news.set)

    def drop(self) -> None:
        """Cuts it."""
        self.is_dropped = True
        self.news.set()

    def read(self) -> list[bytes]:
        """Returns what is to be told now."""
        self.news.clear()
        with self._store.lock:
            self._is_called = False
            table, namespace = (
                self._store.table(self._kind.table),
                self.asked.call.namespace,
            )
            if self._starts_with_list:
                self._starts_with_list, self._is_followed = False, True
                page = list_page(self._store, self._kind, namespace, self._selector, {})
                self._revision = self._told = self._store.revision
                found = [self._event("ADDED", row) for row in page.rows]
                return [*found, self._mark(is_first=True)] if self._is_marked else found
            try:
                changes = table.since(self._revision, is_followed=self._is_followed)
            except errors.StatusError as error:
                self.is_over = True
                return [event_line("ERROR", error.status())]
            self._is_followed = True
            self._revision = max(self._revision, self._store.revision)
        told = list(watch_events(changes, namespace, self._selector))
        self._told = told[-1][1].revision if told else self._told
        return [self._event(name, row) for name, row in told]

    def bookmark(self) -> bytes | None:
        """Returns what tells up to which version everything was told, if that is news."""
        is_wanted = self.asked.query.get("allowWatchBookmarks") == "true"
        if not is_wanted or self._told == self._revision:
            return None
        self._told = self._revision
        return self._mark()

    def _mark(self, *, is_first: bool = False) -> bytes:
        metadata: dict[str, Any] = {"resourceVersion": str(self._revision)}
        if is_first:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        version = self._kind.api_version(self._version)
        item = {"kind": self._kind.name, "apiVersion": version, "metadata": metadata}
        return event_line("BOOKMARK", item)

    def _event(self, name: str, row: Row) -> bytes:
        if self.asked.wants_table:
            metadata = {"resourceVersion": str(row.revision)}
            table = make_table(
                self._kind, self._version, [row], metadata, self.asked.query
            )
            return event_line(name, table)
        text = row.text(self._kind.api_version(self._version))
        return b'{"type":"' + name.encode() + b'","object":' + text + b"}\n"


def event_line(name: str, item: dict[str, Any]) -> bytes:
    """Returns what tells an event of a watch."""
    return compact_json.dumps({"type": name, "object": item}) + b"\n"
