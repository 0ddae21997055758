"""What a cluster does by itself: definitions, and the garbage of owners."""

from __future__ import annotations

from typing import Any

from drivetrain_cluster_double.api import Api, DeleteOptions
from drivetrain_cluster_double.definitions import established
from drivetrain_cluster_double.kinds import TableName, defined
from drivetrain_cluster_double.loop_thread import LoopThread
from drivetrain_cluster_double.store import Change, Key

_DEFINITIONS: TableName = ("apiextensions.k8s.io", "customresourcedefinitions")


class Controllers:
    """Does what follows from changes, a moment after them.

    Args:
        api: Of the cluster.
        thread: In which it works.
    """

    def __init__(self, api: Api, thread: LoopThread) -> None:
        self._api = api
        api.store.subscribe(lambda change: thread.call(self._follow, change))

    def _follow(self, change: Change) -> None:
        with self._api.store.lock:
            if change.table == _DEFINITIONS:
                self._define(change)
            if change.is_deleted:
                uid = change.after.item["metadata"]["uid"]
                for dependent in self._api.store.owned_by(uid):
                    self._collect(*dependent)
            elif change.before is None:
                self._collect(change.table, change.key)

    def _define(self, change: Change) -> None:
        api, item = self._api, change.after.item
        if change.before is None or change.before.item["spec"] != item["spec"]:
            api.catalog.add(defined(item))
            kind = api.catalog.named("CustomResourceDefinition")
            api.change(kind, "", change.key.name, established)

    def _collect(self, table: TableName, key: Key) -> None:
        """Deletes an object whose owners are gone; if some are left, it names those."""
        api, kind = self._api, self._api.catalog.of_table(table)
        row = api.store.get(table, key)
        metadata = row.item["metadata"] if row else {}
        references = metadata.get("ownerReferences") or []
        kept = [one for one in references if self._is_there(one["uid"], key.namespace)]
        if kind is None or kept == references or "deletionTimestamp" in metadata:
            return
        if not kept:
            api.delete(kind, *key, DeleteOptions(uid=metadata["uid"]))
            return

        def edit(item: dict[str, Any]) -> dict[str, Any]:
            return {**item, "metadata": {**item["metadata"], "ownerReferences": kept}}

        api.change(kind, *key, edit)

    def _is_there(self, uid: str, namespace: str) -> bool:
        # An owner lies in the same namespace, or in none.
        found = self._api.store.find_uid(uid)
        return found is not None and found[1].namespace in {"", namespace}
