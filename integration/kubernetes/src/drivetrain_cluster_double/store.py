"""Where objects lie, with every change of them for a while: the server's memory.

Objects are never changed: a change puts another object in the place of one. They are
found by what is asked for most without looking at all of them: by namespace, by label, by
the node of a pod, by owner.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from drivetrain_cloud.kubernetes import compact_json
from drivetrain_cluster_double import events
from drivetrain_cluster_double.errors import expired
from drivetrain_cluster_double.kinds import TableName
from drivetrain_cluster_double.selectors import Selector

# Fields by which objects are found at once.
_INDEXED = ("spec.nodeName", "involvedObject.uid", "involvedObject.name")


class Key(NamedTuple):
    """The name of an object among those of its kind."""

    namespace: str
    name: str


def key_of(item: dict[str, Any]) -> Key:
    """Returns the name of an object."""
    return Key(item["metadata"].get("namespace", ""), item["metadata"]["name"])


class Row:
    """One version of an object.

    Args:
        item: The object; nobody changes it.

    Attributes:
        revision: Its version.
    """

    __slots__ = ("_texts", "item", "revision")

    def __init__(self, item: dict[str, Any]) -> None:
        self.item, self.revision = item, int(item["metadata"]["resourceVersion"])
        self._texts: dict[str, bytes] = {}

    def shown(self, api_version: str) -> dict[str, Any]:
        """Returns the object as it is in a version."""
        if api_version.startswith(events.GROUP):
            return events.from_core(self.item)
        return {**self.item, "apiVersion": api_version}

    def text(self, api_version: str, *, is_bare: bool = False) -> bytes:
        """Returns the object as JSON; it is made once.

        Args:
            api_version: In which it is shown.
            is_bare: Whether to leave out which kind it is.
        """
        found = self._texts.get(api_version)
        if found is None:
            shown = self.shown(api_version).items()
            bare = {k: v for k, v in shown if k not in {"kind", "apiVersion"}}
            found = self._texts[api_version] = compact_json.dumps(bare)
        if is_bare:
            return found
        names = f'{{"kind":"{self.item["kind"]}","apiVersion":"{api_version}",'
        return names.encode() + found[1:]


class Change(NamedTuple):
    """What has happened to an object.

    Attributes:
        revision: When.
        table: Of which kind it is.
        key: Its name.
        before: The version before; None if it was added.
        after: The version since, or the last one if it was deleted.
        is_deleted: Whether it is gone.
    """

    revision: int
    table: TableName
    key: Key
    before: Row | None
    after: Row
    is_deleted: bool = False


class Table:
    """The objects of one kind.

    Args:
        num_changes: How many changes are remembered at least.

    Attributes:
        rows: All of them, by name.
        compacted: Changes up to this version are forgotten.
    """

    def __init__(self, num_changes: int) -> None:
        self.rows: dict[Key, Row] = {}
        self.compacted = self._lost = 0
        self._num_changes = num_changes
        self._changes: list[Change] = []
        self._by_term: dict[tuple[str, str], dict[Key, Row]] = {}

    def put(self, change: Change) -> None:
        """Makes a change."""
        for term in _terms(change.before):
            del self._by_term[term][change.key]
        if change.is_deleted:
            del self.rows[change.key]
        else:
            self.rows[change.key] = change.after
            for term in _terms(change.after):
                self._by_term.setdefault(term, {})[change.key] = change.after
        self._changes.append(change)
        if len(self._changes) > 2 * self._num_changes:
            self.compact(self._changes[-self._num_changes].revision)

    def compact(self, revision: int) -> None:
        """Forgets the changes up to a version."""
        self.compacted = max(self.compacted, revision)
        at = bisect_right(self._changes, revision, key=attrgetter("revision"))
        if at:
            self._lost = self._changes[at - 1].revision
            del self._changes[:at]
        self._by_term = {term: rows for term, rows in self._by_term.items() if rows}

    def since(self, revision: int, *, is_followed: bool = False) -> list[Change]:
        """Returns the changes after a version.

        Args:
            revision: The version.
            is_followed: Whether the caller has seen all up to there as they came. It is
                told that something was forgotten only if that is a change of this kind.

        Raises:
            StatusError: They are not all remembered.
        """
        if revision < (self._lost if is_followed else self.compacted):
            raise expired(f"too old resource version: {revision} ({self.compacted})")
        at = bisect_right(self._changes, revision, key=attrgetter("revision"))
        return self._changes[at:]

    def rows_at(self, revision: int) -> dict[Key, Row]:
        """Returns the objects as they were at a version.

        Raises:
            StatusError: That is too long ago.
        """
        rows = dict(self.rows)
        for change in reversed(self.since(revision)):
            if change.before is None:
                del rows[change.key]
            else:
                rows[change.key] = change.before
        return rows

    def find(self, namespace: str, selector: Selector) -> Iterator[tuple[Key, Row]]:
        """Yields the objects that are selected, in no order.

        Args:
            namespace: Of the objects; empty for all namespaces.
            selector: Of the objects.
        """
        wanted = [("ns", namespace)] if namespace else []
        for one in (*selector.labels, *selector.fields):
            if one.operator == "In" and len(one.values) == 1 and one.values[0]:
                if one in selector.labels:
                    wanted.append((f"l:{one.key}", one.values[0]))
                elif one.key in _INDEXED:
                    wanted.append((f"f:{one.key}", one.values[0]))
        candidates = [self._by_term.get(term, {}) for term in wanted]
        for key, row in min(candidates, key=len, default=self.rows).items():
            if namespace in {"", key.namespace} and selector.matches(row.item):
                yield key, row


def _terms(row: Row | None) -> Iterator[tuple[str, str]]:
    if row is None:
        return
    metadata = row.item["metadata"]
    for name, value in (metadata.get("labels") or {}).items():
        yield f"l:{name}", value
    for path in _INDEXED:
        first, last = path.split(".")
        if value := (row.item.get(first) or {}).get(last):
            yield f"f:{path}", str(value)
    if "namespace" in metadata:
        yield "ns", metadata["namespace"]


class Store:
    """All objects. Methods may be called from any thread that holds `lock`.

    Args:
        num_changes: How many changes of each kind are remembered at least.

    Attributes:
        lock: Whoever reads more than once, or writes, holds it meanwhile.
        revision: The version of the last change.
    """

    def __init__(self, num_changes: int = 20_000) -> None:
        self.lock = threading.RLock()
        self.revision = 1
        self._num_changes = num_changes
        self._tables: dict[TableName, Table] = {}
        self._by_uid: dict[str, tuple[TableName, Key]] = {}
        self._by_owner: dict[str, dict[tuple[TableName, Key], None]] = {}
        self._listeners: list[Callable[[Change], None]] = []

    def table(self, name: TableName) -> Table:
        """Returns the objects of a kind."""
        if name not in self._tables:
            self._tables[name] = Table(self._num_changes)
        return self._tables[name]

    def get(self, name: TableName, key: Key) -> Row | None:
        """Returns an object, or None."""
        return self.table(name).rows.get(key)

    def put(
        self, name: TableName, item: dict[str, Any], *, is_deleted: bool = False
    ) -> Row:
        """Adds an object, puts it in the place of its last version, or deletes it.

        Args:
            name: Of which kind it is.
            item: Whole but for its version; nobody changes it from now on.
            is_deleted: Whether it is gone; `item` is what watchers see go.
        """
        key = key_of(item)
        before = self.get(name, key)
        self.revision += 1
        version = {"resourceVersion": str(self.revision)}
        row = Row({**item, "metadata": {**item["metadata"], **version}})
        self._index((name, key), before, None if is_deleted else row)
        change = Change(self.revision, name, key, before, row, is_deleted)
        self.table(name).put(change)
        for listener in self._listeners:
            listener(change)
        return row

    def find_uid(self, uid: str) -> tuple[TableName, Key] | None:
        """Returns which object has a uid, or None."""
        return self._by_uid.get(uid)

    def owned_by(self, uid: str) -> list[tuple[TableName, Key]]:
        """Returns the objects that name an owner."""
        return list(self._by_owner.get(uid, ()))

    def compact(self) -> None:
        """Forgets all changes: whoever asks for older ones has to list again."""
        for table in self._tables.values():
            table.compact(self.revision)

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Calls a function with each change, which must be quick; returns what ends that."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            with self.lock:
                self._listeners.remove(listener)

        return unsubscribe

    def _index(
        self, place: tuple[TableName, Key], before: Row | None, after: Row | None
    ) -> None:
        for uid in _owners(before):
            self._by_owner.get(uid, {}).pop(place, None)
        for uid in _owners(after):
            self._by_owner.setdefault(uid, {})[place] = None
        if before is not None:
            self._by_uid.pop(before.item["metadata"]["uid"], None)
        if after is not None:
            self._by_uid[after.item["metadata"]["uid"]] = place


def _owners(row: Row | None) -> Iterable[str]:
    references = row.item["metadata"].get("ownerReferences") if row else None
    return [one["uid"] for one in references or ()]
