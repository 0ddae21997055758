"""Where objects lie, with every change of them for a while: the server's memory.

Objects are never changed: a change puts another object in the place of one. They are
found by what is asked for most without looking at all of them: by namespace, by label, by
the node of a pod, by owner.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cloud.kubernetes import compact_json
from drivetrain_cluster_double import events
from drivetrain_cluster_double.errors import expired

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from drivetrain_cluster_double.kinds import TableName
    from drivetrain_cluster_double.ownership import Manager
    from drivetrain_cluster_double.selectors import Selector

__all__ = ["Change", "Key", "Row", "Store", "Table"]

# Fields by which objects are found at once.
_INDEXED = ("spec.nodeName", "involvedObject.uid", "involvedObject.name")


_NAMES = frozenset({"kind", "apiVersion"})


class Key(NamedTuple):
    """The name of an object among those of its kind."""

    namespace: str
    name: str


class Row:
    """One version of an object.

    Args:
        item: The object; nobody changes it.
        managers: Who has set which of its fields.

    Attributes:
        revision: Its version.
    """

    __slots__ = ("_texts", "item", "managers", "revision")

    def __init__(self, item: dict[str, Any], managers: tuple[Manager, ...]) -> None:
        self.item, self.managers = item, managers
        self.revision = int(item["metadata"]["resourceVersion"])
        self._texts: dict[str, bytes] = {}

    def shown(self, api_version: str = "") -> dict[str, Any]:
        """Returns the object as clients see it, with who manages it."""
        item = self.item
        if api_version.startswith(events.GROUP):
            item = events.from_core(item)
        elif api_version and api_version != item["apiVersion"]:
            item = {**item, "apiVersion": api_version}
        if not self.managers:
            return item
        entries = [manager.entry() for manager in self.managers]
        return {**item, "metadata": {**item["metadata"], "managedFields": entries}}

    def text(self, api_version: str = "", *, is_bare: bool = False) -> bytes:
        """Returns the object as JSON; it is made once.

        Args:
            api_version: In which it is shown.
            is_bare: Whether to leave out which kind it is.
        """
        api_version = api_version or self.item["apiVersion"]
        found = self._texts.get(api_version)
        if found is None:
            bare = {k: v for k, v in self.shown(api_version).items() if k not in _NAMES}
            found = compact_json.dumps(bare)
            self._texts[api_version] = found
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
        if change.before is not None:
            for term in _terms(change.key, change.before.item):
                there = self._by_term[term]
                del there[change.key]
                if not there:
                    del self._by_term[term]
        if change.is_deleted:
            del self.rows[change.key]
        else:
            self.rows[change.key] = change.after
            for term in _terms(change.key, change.after.item):
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
            message = f"too old resource version: {revision} ({self.compacted})"
            raise expired(message)
        at = bisect_right(self._changes, revision, key=attrgetter("revision"))
        return self._changes[at:]

    def rows_at(self, revision: int) -> dict[Key, Row]:
        """Returns the objects as they were at a version.

        Raises:
            StatusError: That is too long ago.
        """
        changes = self.since(revision)
        if not changes:
            return self.rows
        rows = dict(self.rows)
        for change in reversed(changes):
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
        terms = [(f"l:{r.key}", r) for r in selector.labels]
        terms += [(f"f:{r.key}", r) for r in selector.fields if r.key in _INDEXED]
        wanted = [
            (name, one.values[0])
            for name, one in terms
            if one.operator == "In" and len(one.values) == 1 and one.values[0]
        ]
        wanted += [("ns", namespace)] * bool(namespace)
        candidates = [self._by_term.get(term, {}) for term in wanted]
        for key, row in min(candidates, key=len, default=self.rows).items():
            if (not namespace or key.namespace == namespace) and selector.matches(
                row.item
            ):
                yield key, row


def _terms(key: Key, item: dict[str, Any]) -> list[tuple[str, str]]:
    labels = item["metadata"].get("labels")
    found = [(f"l:{name}", value) for name, value in labels.items()] if labels else []
    for path in _INDEXED:
        first, last = path.split(".")
        part = item.get(first)
        value = part.get(last) if isinstance(part, dict) else None
        if value:
            found.append((f"f:{path}", str(value)))
    if key.namespace:
        found.append(("ns", key.namespace))
    return found


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
        self, name: TableName, item: dict[str, Any], managers: tuple[Manager, ...] = ()
    ) -> Row:
        """Adds an object, or puts it in the place of its last version.

        Args:
            name: Of which kind it is.
            item: Whole but for its version; nobody changes it from now on.
            managers: Who has set which of its fields.
        """
        metadata = item["metadata"]
        key = Key(metadata.get("namespace", ""), metadata["name"])
        before = self.get(name, key)
        self.revision += 1
        versioned = {**metadata, "resourceVersion": str(self.revision)}
        row = Row({**item, "metadata": versioned}, managers)
        self._index_owners((name, key), before, row)
        self._by_uid[metadata["uid"]] = name, key
        self._make(Change(self.revision, name, key, before, row))
        return row

    def remove(self, name: TableName, key: Key, last: dict[str, Any]) -> Row:
        """Deletes an object.

        Args:
            name: Of which kind it is.
            key: Which one.
            last: The object as watchers see it go.
        """
        before = self.table(name).rows[key]
        self.revision += 1
        metadata = {**last["metadata"], "resourceVersion": str(self.revision)}
        row = Row({**last, "metadata": metadata}, before.managers)
        self._index_owners((name, key), before, None)
        self._by_uid.pop(metadata["uid"], None)
        self._make(Change(self.revision, name, key, before, row, is_deleted=True))
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

    def _make(self, change: Change) -> None:
        self.table(change.table).put(change)
        for listener in self._listeners:
            listener(change)

    def _index_owners(
        self, place: tuple[TableName, Key], before: Row | None, after: Row | None
    ) -> None:
        old, new = _owners(before), _owners(after)
        if old == new:
            return
        for uid in old:
            there = self._by_owner.get(uid, {})
            there.pop(place, None)
            if not there:
                self._by_owner.pop(uid, None)
        for uid in new:
            self._by_owner.setdefault(uid, {})[place] = None


def _owners(row: Row | None) -> Iterable[str]:
    references = row.item["metadata"].get("ownerReferences") if row else None
    return [one["uid"] for one in references] if references else []
