"""A watch: what has happened to the objects of a kind, told as it happens."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes import compact_json
from drivetrain_cluster_double.errors import StatusError, expired
from drivetrain_cluster_double.listing import (
    list_page,
    read_revision,
    read_selector,
    watch_events,
)
from drivetrain_cluster_double.table import make_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from drivetrain_cluster_double.kinds import Kind, TableName
    from drivetrain_cluster_double.routes import Call
    from drivetrain_cluster_double.store import Change, Row, Store

__all__ = ["Watch", "WatchHub"]


class Watch:
    """What one caller is told; used in the thread of the server's loop.

    Args:
        store: Where the objects lie.
        kind: Of the objects.
        call: What was asked for.
        query: Of the call.
        is_table: Whether to tell it in tables.

    Attributes:
        query: Of the call.
        news: Set when there may be something to tell.
        revision: Up to which version everything was told.
        is_over: Whether nothing more will be told.
        is_dropped: Whether the connection is to be cut.

    Raises:
        StatusError: A selector or a version cannot be read.
    """

    def __init__(
        self,
        store: Store,
        kind: Kind,
        call: Call,
        query: Mapping[str, str],
        *,
        is_table: bool = False,
    ) -> None:
        self._store, self.kind, self.query = store, kind, query
        self._namespace, self._is_table = call.namespace, is_table
        self._version = call.version
        self._api_version = kind.api_version(call.version)
        self._selector = read_selector(kind, query, call.name)
        asked = read_revision(query.get("resourceVersion", ""))
        self._is_marked = query.get("sendInitialEvents") == "true"
        # Without a version, and with 0, what there is comes first.
        self._starts_with_list = not asked or self._is_marked
        self.revision = asked or 0
        self._told = self.revision
        self.news = asyncio.Event()
        self.is_over = self.is_dropped = self._is_followed = False

    def read(self) -> list[bytes]:
        """Returns what is to be told now."""
        found = []
        with self._store.lock:
            if self._starts_with_list:
                self._starts_with_list, self._is_followed = False, True
                page = list_page(
                    self._store, self.kind, self._namespace, self._selector, {}
                )
                found = [self._event("ADDED", row) for row in page.rows]
                self.revision = self._told = self._store.revision
                if self._is_marked:
                    found.append(self._mark(is_initial_end=True))
                return found
            try:
                changes = self._store.table(self.kind.table).since(
                    self.revision, is_followed=self._is_followed
                )
                self._is_followed = True
            except StatusError as error:
                self.is_over = True
                return [self.error(expired(error.message))]
            self.revision = self._store.revision
        for name, row in watch_events(changes, self._namespace, self._selector):
            found.append(self._event(name, row))
            self._told = row.revision
        return found

    def bookmark(self) -> bytes | None:
        """Returns what tells up to which version everything was told, if that is news."""
        if (
            self.query.get("allowWatchBookmarks") != "true"
            or self._told == self.revision
        ):
            return None
        self._told = self.revision
        return self._mark()

    def error(self, error: StatusError) -> bytes:
        """Returns what tells that the watch has failed."""
        return _line({"type": "ERROR", "object": error.status()})

    def _mark(self, *, is_initial_end: bool = False) -> bytes:
        metadata: dict[str, Any] = {"resourceVersion": str(self.revision)}
        if is_initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        item = {
            "kind": self.kind.name,
            "apiVersion": self._api_version,
            "metadata": metadata,
        }
        return _line({"type": "BOOKMARK", "object": item})

    def _event(self, name: str, row: Row) -> bytes:
        if self._is_table:
            item = row.shown(self._api_version)
            metadata = {"resourceVersion": str(row.revision)}
            objects = self.query.get("includeObject", "Metadata")
            table = make_table(
                self.kind, self._version, [item], metadata, objects=objects
            )
            return _line({"type": name, "object": table})
        text = row.text(self._api_version)
        return b'{"type":"' + name.encode() + b'","object":' + text + b"}\n"


def _line(value: Any) -> bytes:
    return compact_json.dumps(value) + b"\n"


class WatchHub:
    """Wakes the watches of a kind when one of its objects has changed.

    Args:
        store: Whose changes they are; they may come from any thread.
        loop: In which the watches are.
    """

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watches: dict[TableName, set[Watch]] = {}
        self._changed: set[TableName] = set()
        self._lock = store.lock
        self._is_called = False
        self._unsubscribe = store.subscribe(self._note)

    @contextlib.contextmanager
    def joined(self, watch: Watch) -> Iterator[None]:
        """Wakes a watch for as long as the block lasts."""
        there = self._watches.setdefault(watch.kind.table, set())
        there.add(watch)
        try:
            yield
        finally:
            there.discard(watch)

    def drop_all(self) -> None:
        """Cuts all watches."""
        for watch in [one for there in self._watches.values() for one in there]:
            watch.is_dropped = True
            watch.news.set()

    def close(self) -> None:
        """Wakes nobody any more."""
        self._unsubscribe()

    def _note(self, change: Change) -> None:
        # One call of the loop wakes all, however many changes came before it.
        self._changed.add(change.table)
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        with self._lock:
            changed, self._changed, self._is_called = self._changed, set(), False
        for table in changed:
            for watch in self._watches.get(table, ()):
                watch.news.set()
