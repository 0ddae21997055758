"""What the API server does with objects of any kind: create, read, change, delete."""

from __future__ import annotations

import random
import string
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from drivetrain_cluster_double import events, ownership, times
from drivetrain_cluster_double.admit import (
    check,
    clean,
    first_state,
    next_state,
    require_named,
)
from drivetrain_cluster_double.allocation import Allocation, admit_pod
from drivetrain_cluster_double.apply import apply
from drivetrain_cluster_double.errors import (
    Cause,
    StatusError,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    not_found,
)
from drivetrain_cluster_double.ownership import Manager, Owner
from drivetrain_cluster_double.patch import json_patch, merge_patch
from drivetrain_cluster_double.removal import DeleteOptions, is_over, remove
from drivetrain_cluster_double.store import Key, Row, Store
from drivetrain_cluster_double.strategic import strategic_patch

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_cluster_double.catalog import Catalog
    from drivetrain_cluster_double.kinds import Kind
    from drivetrain_cluster_double.selectors import Selector

__all__ = ["APPLY", "Api", "WriteOptions"]

APPLY = "application/apply-patch+yaml"
"""The type of a patch that is applied on the server's side."""

_Item = dict[str, Any]
_PATIENCE = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteOptions:
    """How an object is written.

    Args:
        manager: Who writes it.
        version: Of the kind, in which it comes; the kept one if it is empty.
        subresource: Through which; `server` for what only the server itself may do.
        is_dry_run: Whether nothing is to happen.
        is_forced: Whether to take fields that others have applied.
        validation: What becomes of unknown fields: `Ignore`, `Warn` or `Strict`.
        warnings: Filled with what the caller is to be told.
    """

    manager: str = "double"
    version: str = ""
    subresource: str = ""
    is_dry_run: bool = False
    is_forced: bool = False
    validation: str = ""
    warnings: list[str] = field(default_factory=list)


_DEFAULT = WriteOptions()


class Api:
    """The objects of a cluster, and what may be done with them; for any thread.

    Args:
        store: Where the objects lie.
        catalog: Which kinds there are.

    Example:
        >>> from drivetrain_cluster_double.catalog import Catalog
        >>> from drivetrain_cluster_double.store import Store
        >>> api = Api(Store(), Catalog())
        >>> kind = api.catalog.named("Namespace")
        >>> item = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}
        >>> api.create(kind, "", item).item["status"]
        {'phase': 'Active'}
    """

    def __init__(self, store: Store, catalog: Catalog) -> None:
        self.store, self.catalog = store, catalog
        self._allocation = Allocation()

    def get(self, kind: Kind, namespace: str, name: str) -> Row:
        """Returns an object.

        Raises:
            StatusError: It is not there.
        """
        row = self.store.get(kind.table, Key(namespace, name))
        if row is None:
            raise not_found(kind.group, kind.plural, name)
        return row

    def create(
        self, kind: Kind, namespace: str, item: _Item, options: WriteOptions = _DEFAULT
    ) -> Row:
        """Creates an object.

        Raises:
            StatusError: It is there, breaks a rule, or its namespace is missing.
        """
        item = require_named(kind, item, "", namespace)
        metadata = dict(item.get("metadata") or {})
        if metadata.get("resourceVersion"):
            message = "resourceVersion should not be set on objects to be created"
            raise bad_request(message)
        if namespace:
            metadata["namespace"] = namespace
        else:
            metadata.pop("namespace", None)
        with self.store.lock:
            self._check_namespace(kind, namespace, metadata.get("name", ""))
            metadata["name"] = self._new_name(kind, namespace, metadata)
            item = self._kept(kind, {**item, "metadata": metadata})
            item, warnings = clean(kind, options.version, item, options.validation)
            options.warnings.extend(warnings)
            check(kind, options.version, item)
            item = self._filled(kind, first_state(kind, item))
            owner = Owner(options.manager, "Update", options.subresource)
            fields = ownership.fields_of(
                ownership.owned_part({k: v for k, v in item.items() if k != "status"}),
                kind.schema(options.version),
            )
            now = times.format_time(times.now())
            managers = (Manager(owner, item["apiVersion"], now, fields),)
            return self._add(kind, item, managers, options)

    def _add(
        self,
        kind: Kind,
        item: _Item,
        managers: tuple[Manager, ...],
        options: WriteOptions,
    ) -> Row:
        metadata = item["metadata"]
        key = Key(metadata.get("namespace", ""), metadata["name"])
        if self.store.get(kind.table, key) is not None:
            raise already_exists(kind.group, kind.plural, key.name)
        metadata = {
            **metadata,
            "uid": str(uuid.uuid4()),
            "creationTimestamp": times.format_time(times.now()),
        }
        item = {**item, "metadata": metadata}
        if options.is_dry_run:
            return Row(
                {**item, "metadata": {**metadata, "resourceVersion": "0"}}, managers
            )
        return self.store.put(kind.table, item, managers)

    def replace(
        self, kind: Kind, namespace: str, item: _Item, options: WriteOptions = _DEFAULT
    ) -> Row:
        """Puts an object in the place of its last version.

        Raises:
            StatusError: It is not there, was changed meanwhile, or breaks a rule.
        """
        name = (item.get("metadata") or {}).get("name", "")
        item = require_named(kind, item, name, namespace)
        with self.store.lock:
            row = self.get(kind, namespace, name)
            revision = item["metadata"].get("resourceVersion")
            if not revision and (kind.is_custom or kind.needs_version):
                message = "Invalid value: 0x0: must be specified for an update"
                cause = Cause("FieldValueInvalid", message, "metadata.resourceVersion")
                raise invalid(kind.group, kind.name, name, [cause])
            item = self._kept(kind, item)
            metadata = {**item["metadata"], "name": name}
            if namespace:
                metadata["namespace"] = namespace
            return self._change(kind, row, {**item, "metadata": metadata}, options)

    def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        patch: Any,
        patch_type: str,
        options: WriteOptions = _DEFAULT,
    ) -> Row:
        """Changes a part of an object; what is applied may create it.

        Args:
            kind: Of the object.
            namespace: Of the object.
            name: Of the object.
            patch: What to change.
            patch_type: Which kind of patch it is, as `application/merge-patch+json`.
            options: How it is written.

        Raises:
            StatusError: The object is not there, the patch does not fit it, or the result
                breaks a rule.
        """
        with self.store.lock:
            if patch_type == APPLY:
                return self._apply(kind, namespace, name, patch, options)
            row = self.get(kind, namespace, name)
            item = row.shown(kind.api_version(options.version))
            match patch_type:
                case "application/json-patch+json":
                    changed = json_patch(item, patch)
                case "application/merge-patch+json":
                    changed = merge_patch(item, patch)
                case "application/strategic-merge-patch+json" if not kind.is_custom:
                    changed = strategic_patch(item, patch, kind.schema(options.version))
                case _:
                    message = (
                        "the body of the request was in an unknown format - accepted "
                        "media types include: application/json-patch+json, "
                        f"application/merge-patch+json, {APPLY}"
                    )
                    raise StatusError(415, "UnsupportedMediaType", message)
            changed = require_named(kind, changed, name, namespace)
            return self._change(kind, row, self._kept(kind, changed), options)

    def _change(self, kind: Kind, row: Row, item: _Item, options: WriteOptions) -> Row:
        before = row.item
        self._check_version(kind, before, item["metadata"])
        if options.subresource != "server":
            item, warnings = clean(kind, options.version, item, options.validation)
            options.warnings.extend(warnings)
        item = next_state(kind, before, item, options.subresource)
        if item == before:
            return row
        if options.subresource != "server":
            check(kind, options.version, item, before)
        shape = kind.schema(options.version)
        owner = Owner(options.manager, "Update", options.subresource)
        change = ownership.difference(
            ownership.owned_part(before), ownership.owned_part(item), shape
        )
        now = times.format_time(times.now())
        managers = ownership.note_change(
            row.managers, owner, change, api_version=item["apiVersion"], time=now
        )
        return self._keep(kind, item, managers, options)

    def _apply(
        self, kind: Kind, namespace: str, name: str, wanted: Any, options: WriteOptions
    ) -> Row:
        wanted = require_named(kind, wanted, name, namespace)
        if (wanted.get("metadata") or {}).get("managedFields"):
            message = "metadata.managedFields must be nil"
            raise bad_request(message)
        row = self.store.get(kind.table, Key(namespace, name))
        if row is None and options.subresource:
            raise not_found(kind.group, kind.plural, name)
        wanted = self._kept(kind, wanted)
        # What is filled in belongs to nobody.
        unfilled, shape = wanted, kind.schema(options.version)
        filled, warnings = clean(kind, options.version, wanted, options.validation)
        options.warnings.extend(warnings)
        metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
        if row is None:
            self._check_namespace(kind, namespace, name)
            filled = {
                **filled,
                "metadata": {**(filled.get("metadata") or {}), **metadata},
            }
            check(kind, options.version, filled)
            live = self._filled(kind, first_state(kind, filled))
        else:
            live = row.item
            self._check_version(kind, live, wanted.get("metadata") or {})
            known = (
                {"status"}
                if options.subresource == "status"
                else set(wanted) - {"status"}
            )
            always = {"apiVersion", "kind", "metadata"}
            unfilled = {k: v for k, v in wanted.items() if k in known | always}
        if row is None and kind.has_status:
            unfilled = {k: v for k, v in unfilled.items() if k != "status"}
        applied = apply(
            live,
            unfilled,
            row.managers if row else (),
            Owner(options.manager, "Apply", options.subresource),
            schema=shape,
            api_version=kind.api_version(options.version),
            time=times.format_time(times.now()),
            is_forced=options.is_forced,
        )
        if row is None:
            return self._add(kind, live, applied.managers, options)
        item, _ = clean(kind, options.version, applied.item)
        item = next_state(kind, live, item, options.subresource)
        if item == live and applied.managers == row.managers:
            return row
        check(kind, options.version, item, live)
        return self._keep(kind, item, applied.managers, options)

    def _keep(
        self,
        kind: Kind,
        item: _Item,
        managers: tuple[Manager, ...],
        options: WriteOptions,
    ) -> Row:
        if options.is_dry_run:
            return Row(item, managers)
        if is_over(item):
            metadata = item["metadata"]
            key = Key(metadata.get("namespace", ""), metadata["name"])
            return self.store.remove(kind.table, key, item)
        return self.store.put(kind.table, item, managers)

    def delete(
        self, kind: Kind, namespace: str, name: str, options: DeleteOptions
    ) -> tuple[Row, bool]:
        """Deletes an object, now or when it may go.

        Returns:
            The object as it is left, or was last, and whether it is gone.

        Raises:
            StatusError: It is not there, or not the one that is meant.
        """
        with self.store.lock:
            row = self.get(kind, namespace, name)
            metadata = row.item["metadata"]
            for what, wanted, found in (
                ("UID", options.uid, metadata["uid"]),
                ("ResourceVersion", options.revision, metadata["resourceVersion"]),
            ):
                if wanted and wanted != found:
                    why = (
                        f"Precondition failed: {what} in precondition: {wanted}, {what} "
                        f"in object meta: {found}"
                    )
                    raise conflict(kind.group, kind.plural, name, why)
            removal = remove(row.item, options, times.now())
            if kind.name == "Namespace":
                status = {**row.item.get("status", {}), "phase": "Terminating"}
                removal = removal._replace(item={**removal.item, "status": status})
            if options.is_dry_run:
                return row, removal.is_gone
            if removal.is_gone:
                key = Key(namespace, name)
                return self.store.remove(kind.table, key, row.item), True
            if removal.item == row.item:
                return row, False
            return self.store.put(kind.table, removal.item, row.managers), False

    def delete_collection(
        self, kind: Kind, namespace: str, selector: Selector, options: DeleteOptions
    ) -> list[Row]:
        """Deletes all objects that are selected; returns them."""
        with self.store.lock:
            found = list(self.store.table(kind.table).find(namespace, selector))
            return [
                self.delete(kind, key.namespace, key.name, options)[0]
                for key, _ in found
            ]

    def change(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        edit: Callable[[_Item], _Item],
        options: WriteOptions = _DEFAULT,
    ) -> Row:
        """Changes an object as the server's own parts do, whatever its rules.

        Args:
            kind: Of the object.
            namespace: Of the object.
            name: Of the object.
            edit: Returns the object as it is to be; it must not change what it is given.
            options: Who does it.

        Raises:
            StatusError: It is not there.
        """
        with self.store.lock:
            row = self.get(kind, namespace, name)
            own = replace(options, subresource="server")
            return self._change(kind, row, edit(row.item), own)

    def _kept(self, kind: Kind, item: _Item) -> _Item:
        """Returns an object in the version in which it is kept."""
        if kind.table != (kind.group, kind.plural):
            return events.to_core(item)
        return {**item, "apiVersion": kind.api_version()}

    def _filled(self, kind: Kind, item: _Item) -> _Item:
        if kind.name == "Service":
            return self._allocation.address_service(item)
        return admit_pod(self.store, item) if kind.name == "Pod" else item

    def _check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        if not namespace:
            return
        row = self.store.get(("", "namespaces"), Key("", namespace))
        if row is None:
            message = ""
            raise not_found(message, "namespaces", namespace)
        if "deletionTimestamp" in row.item["metadata"]:
            why = (
                f"unable to create new content in namespace {namespace} because it is "
                "being terminated"
            )
            raise forbidden(kind.group, kind.plural, name, why)

    def _new_name(self, kind: Kind, namespace: str, metadata: _Item) -> str:
        if metadata.get("name"):
            return str(metadata["name"])
        prefix = metadata.get("generateName")
        if not prefix:
            message = "Required value: name or generateName is required"
            cause = Cause("FieldValueRequired", message, "metadata.name")
            raise invalid(kind.group, kind.name, "", [cause])
        for _ in range(_PATIENCE):
            # Names need not be hard to guess.
            tail = "".join(random.choices(string.ascii_lowercase, k=5))
            name = f"{prefix[:58]}{tail}"
            if self.store.get(kind.table, Key(namespace, name)) is None:
                return name
        raise already_exists(kind.group, kind.plural, f"{prefix}?")

    def _check_version(self, kind: Kind, before: _Item, wanted: _Item) -> None:
        there = before["metadata"]
        uid, revision = wanted.get("uid"), wanted.get("resourceVersion")
        if uid and uid != there["uid"]:
            why = (
                f"Precondition failed: UID in precondition: {uid}, UID in object meta: "
                f"{there['uid']}"
            )
            raise conflict(kind.group, kind.plural, there["name"], why)
        if revision and revision not in {"0", there["resourceVersion"]}:
            raise conflict(kind.group, kind.plural, there["name"])
