"""What a cluster does by itself: definitions, namespaces, and the garbage of owners."""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING, Any

from drivetrain_cluster_double import garbage, times
from drivetrain_cluster_double.definitions import (
    CLEAN_UP,
    established,
    kind_of,
)
from drivetrain_cluster_double.errors import StatusError
from drivetrain_cluster_double.removal import (
    FOREGROUND,
    ORPHAN,
    DeleteOptions,
)
from drivetrain_cluster_double.selectors import EVERYTHING
from drivetrain_cluster_double.store import Key

if TYPE_CHECKING:
    from drivetrain_cluster_double.api import Api
    from drivetrain_cluster_double.kinds import Kind, TableName
    from drivetrain_cluster_double.store import Change

__all__ = ["Controllers"]

logger = logging.getLogger(__name__)

_DEFINITIONS: TableName = ("apiextensions.k8s.io", "customresourcedefinitions")
_NAMESPACES: TableName = ("", "namespaces")
_Place = tuple["TableName", Key]


class Controllers:
    """Does what follows from changes, a moment after them, in a thread of its own.

    Args:
        api: Of the cluster.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._changes: queue.SimpleQueue[Change | None] = queue.SimpleQueue()
        self._unsubscribe = api.store.subscribe(self._changes.put)
        self._thread = threading.Thread(
            target=self._run, name="kubernetes-double-controllers", daemon=True
        )

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends, when what has happened before is done."""
        self._unsubscribe()
        self._changes.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (change := self._changes.get()) is not None:
            try:
                with self._api.store.lock:
                    self._follow(change)
            except StatusError as error:
                # It has changed again, and comes again.
                logger.debug("%s of %s: %s", change.key, change.table, error)
            except Exception:
                # One object that cannot be handled must not stop the cluster.
                logger.exception("%s of %s", change.key, change.table)

    def _follow(self, change: Change) -> None:
        if change.table == _DEFINITIONS:
            self._define(change)
        elif change.table == _NAMESPACES and not change.is_deleted:
            self._empty_namespace(change.key.name)
        self._empty_owner_of_place(change)
        self._collect(change)

    # Definitions

    def _define(self, change: Change) -> None:
        api, item = self._api, change.after.item
        if change.is_deleted:
            names = item["spec"]["names"]
            api.catalog.remove(item["spec"]["group"], names["plural"])
            return
        row = api.store.get(_DEFINITIONS, change.key)
        if row is None:
            return
        item, definition = row.item, api.catalog.named("CustomResourceDefinition")
        if "deletionTimestamp" in item["metadata"]:
            self._undefine(item)
            return
        api.catalog.add(kind_of(item))
        if change.before is None or change.before.item["spec"] != item["spec"]:
            time = times.format_time(times.now())
            api.change(
                definition, "", change.key.name, lambda there: established(there, time)
            )

    def _undefine(self, item: dict[str, Any]) -> None:
        """Deletes the objects of a definition, and then lets it go."""
        api, kind = self._api, kind_of(item)
        rows = api.store.table(kind.table).rows
        if rows:
            self._delete_all(kind, "")
        if not rows:
            definition = api.catalog.named("CustomResourceDefinition")
            self._drop_finalizer(
                definition, Key("", item["metadata"]["name"]), CLEAN_UP
            )

    def _delete_all(self, kind: Kind, namespace: str) -> None:
        options = DeleteOptions()
        for key, row in list(
            self._api.store.table(kind.table).find(namespace, EVERYTHING)
        ):
            if "deletionTimestamp" not in row.item["metadata"]:
                self._api.delete(kind, key.namespace, key.name, options)

    # Namespaces

    def _empty_namespace(self, name: str) -> None:
        """Deletes what is in a namespace that is being deleted, and then lets it go."""
        api = self._api
        row = api.store.get(_NAMESPACES, Key("", name))
        if row is None:
            return
        if "deletionTimestamp" not in row.item["metadata"]:
            self._furnish(name)
            return
        kinds = [kind for kind in api.catalog if kind.is_namespaced]
        for kind in kinds:
            self._delete_all(kind, name)
        is_empty = not any(
            next(api.store.table(kind.table).find(name, EVERYTHING), None)
            for kind in kinds
        )
        if is_empty and row.item["spec"].get("finalizers"):
            kind = api.catalog.named("Namespace")
            api.change(kind, "", name, lambda item: {**item, "spec": {}})

    def _furnish(self, namespace: str) -> None:
        """Makes the service account that every namespace has."""
        kind = self._api.catalog.named("ServiceAccount")
        if self._api.store.get(kind.table, Key(namespace, "default")) is None:
            metadata = {"name": "default", "namespace": namespace}
            item = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
            self._api.create(kind, namespace, item)

    def _empty_owner_of_place(self, change: Change) -> None:
        """Looks again at a namespace or a definition that waits for its last object."""
        if not change.is_deleted:
            return
        store = self._api.store
        namespace = change.key.namespace
        there = store.get(_NAMESPACES, Key("", namespace)) if namespace else None
        if there is not None and "deletionTimestamp" in there.item["metadata"]:
            self._empty_namespace(namespace)
        group, plural = change.table
        definition = store.get(_DEFINITIONS, Key("", f"{plural}.{group}"))
        if definition and "deletionTimestamp" in definition.item["metadata"]:
            self._undefine(definition.item)

    # Owners

    def _collect(self, change: Change) -> None:
        store, item = self._api.store, change.after.item
        metadata = item["metadata"]
        place = change.table, change.key
        if change.is_deleted:
            for dependent in store.owned_by(metadata["uid"]):
                self._attempt(dependent)
        elif change.before is None:
            self._attempt(place)
        if "deletionTimestamp" in metadata and not change.is_deleted:
            self._finish(place)
        old = change.before.item["metadata"] if change.before else {}
        before, after = old.get("ownerReferences"), metadata.get("ownerReferences")
        if change.is_deleted or before != after:
            for one in (*(before or ()), *(after or ())):
                owner = store.find_uid(one["uid"])
                if owner is not None:
                    self._finish(owner)

    def _attempt(self, place: _Place) -> None:
        """Deletes an object whose owners are gone."""
        store = self._api.store
        row = store.get(*place)
        references = row.item["metadata"].get("ownerReferences") if row else None
        if row is None or not references:
            return
        owners = {one["uid"]: self._owner(place, one["uid"]) for one in references}
        has_dependents = bool(store.owned_by(row.item["metadata"]["uid"]))
        fate = garbage.decide(row.item, owners, has_dependents=has_dependents)
        kind, key = self._kind(place[0]), place[1]
        if kind is None:
            return
        if fate.propagation:
            uid = row.item["metadata"]["uid"]
            options = DeleteOptions(propagation=fate.propagation, uid=uid)
            self._api.delete(kind, key.namespace, key.name, options)
        elif fate.lost_uids:
            self._api.change(
                kind,
                key.namespace,
                key.name,
                lambda item: garbage.without_owners(item, fate.lost_uids),
            )

    def _owner(self, place: _Place, uid: str) -> dict[str, Any] | None:
        found = self._api.store.find_uid(uid)
        # An owner lies in the same namespace, or in none.
        if found is None or found[1].namespace not in {"", place[1].namespace}:
            return None
        row = self._api.store.get(*found)
        return row.item if row else None

    def _finish(self, place: _Place) -> None:
        """Lets an object go that waits for those that it owns."""
        store = self._api.store
        row, kind = store.get(*place), self._kind(place[0])
        if row is None or kind is None:
            return
        metadata = row.item["metadata"]
        finalizers = metadata.get("finalizers") or ()
        if "deletionTimestamp" not in metadata:
            return
        dependents = store.owned_by(metadata["uid"])
        if ORPHAN in finalizers:
            for table, key in dependents:
                if (other := self._kind(table)) is not None:
                    self._api.change(
                        other,
                        key.namespace,
                        key.name,
                        lambda item: garbage.without_owners(item, [metadata["uid"]]),
                    )
            self._drop_finalizer(kind, place[1], ORPHAN)
        elif FOREGROUND in finalizers:
            for dependent in dependents:
                self._attempt(dependent)
            left = [r.item for p in dependents if (r := store.get(*p)) is not None]
            if garbage.is_released(metadata["uid"], left):
                self._drop_finalizer(kind, place[1], FOREGROUND)

    def _drop_finalizer(self, kind: Kind, key: Key, name: str) -> None:
        def edit(item: dict[str, Any]) -> dict[str, Any]:
            metadata = dict(item["metadata"])
            kept = [one for one in metadata.pop("finalizers", ()) if one != name]
            if kept:
                metadata["finalizers"] = kept
            return {**item, "metadata": metadata}

        if self._api.store.get(kind.table, key) is not None:
            self._api.change(kind, key.namespace, key.name, edit)

    def _kind(self, table: TableName) -> Kind | None:
        return next((kind for kind in self._api.catalog if kind.table == table), None)
