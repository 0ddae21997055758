"""What the API server does with objects of any kind: create, read, change, delete."""

from __future__ import annotations

import itertools
import random
import string
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from drivetrain_cluster_double import admit, errors, events, patches, times
from drivetrain_cluster_double.kinds import Catalog, Kind
from drivetrain_cluster_double.store import Key, Row, Store, key_of

_Item = dict[str, Any]
_SERVICES = "127.2."


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteOptions:
    """How an object is written.

    Args:
        version: Of the kind, in which it comes; the kept one if it is empty.
        subresource: Through which; `server` for what only the server itself may do.
        validation: What becomes of unknown fields: `Ignore`, `Warn` or `Strict`.
        warnings: Filled with what the caller is to be told.
    """

    version: str = ""
    subresource: str = ""
    validation: str = ""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteOptions:
    """How an object is deleted.

    Args:
        grace_s: How long it may take to end; None for what the object says.
        uid: The object must have it.
        revision: The object must have this version.
    """

    grace_s: int | None = None
    uid: str = ""
    revision: str = ""

    @classmethod
    def read(cls, body: Any, query: Mapping[str, str]) -> DeleteOptions:
        """Reads the options of a call.

        Raises:
            StatusError: They cannot be read, or ask for what is not done here (501).
        """
        wanted = body.get("preconditions") or {} if isinstance(body, dict) else None
        if not isinstance(wanted, dict):
            raise errors.bad_request(
                f"the options of a deletion are an object, got {str(body)[:60]}"
            )
        policy = body.get("propagationPolicy") or query.get("propagationPolicy")
        orphans = body.get("orphanDependents", query.get("orphanDependents"))
        told = ("DeleteOptions", "propagationPolicy")
        if policy not in {None, "", "Background", "Foreground", "Orphan"}:
            raise errors.wrong_option(*told, "NotSupported", f'"{policy}"')
        if policy and orphans is not None:
            raise errors.wrong_option(
                *told, "Invalid", f"{policy}: orphanDependents is set too"
            )
        if policy in {"Foreground", "Orphan"} or orphans in {True, "true"}:
            raise errors.not_done(
                f"a deletion with propagationPolicy {policy or 'Orphan'}"
            )
        if body.get("dryRun"):
            raise errors.not_done("dryRun")
        grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        try:
            grace_s = None if grace is None else int(grace)
        except (TypeError, ValueError) as error:
            raise errors.bad_request(
                f"gracePeriodSeconds is a whole number: {error}"
            ) from error
        uid, revision = wanted.get("uid"), wanted.get("resourceVersion")
        return cls(grace_s=grace_s, uid=uid or "", revision=revision or "")


_DEFAULT = WriteOptions()
_SERVER = WriteOptions(subresource="server")


def grace_of(item: _Item, options: DeleteOptions) -> int:
    """Returns how many seconds an object may take to end once it is deleted."""
    is_idle = item["kind"] != "Pod" or not item["spec"].get("nodeName")
    if is_idle or item.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
        return 0
    asked = options.grace_s
    given = item["spec"]["terminationGracePeriodSeconds"] if asked is None else asked
    return max(given, 0)


class Api:
    """The objects of a cluster, and what may be done with them; for any thread.

    Args:
        store: Where the objects lie.
        catalog: Which kinds there are.

    Example:
        >>> from drivetrain_cluster_double.kinds import Catalog
        >>> from drivetrain_cluster_double.store import Store
        >>> api = Api(Store(), Catalog())
        >>> kind = api.catalog.named("Namespace")
        >>> api.create(kind, "", {"metadata": {"name": "a"}}).item["status"]
        {'phase': 'Active'}
    """

    def __init__(self, store: Store, catalog: Catalog) -> None:
        self.store, self.catalog = store, catalog
        self._numbers = itertools.count(2)

    def get(self, kind: Kind, namespace: str, name: str) -> Row:
        """Returns an object.

        Raises:
            StatusError: It is not there.
        """
        row = self.store.get(kind.table, Key(namespace, name))
        if row is None:
            raise errors.not_found(kind.group, kind.plural, name)
        return row

    def create(
        self, kind: Kind, namespace: str, item: Any, options: WriteOptions = _DEFAULT
    ) -> Row:
        """Creates an object.

        Raises:
            StatusError: It is there, breaks a rule, or its namespace is missing.
        """
        item = admit.require_named(kind, item, "", namespace)
        metadata = dict(item["metadata"])
        if metadata.get("resourceVersion"):
            # So says the real one, without a reason.
            message = "resourceVersion should not be set on objects to be created"
            raise errors.StatusError(500, "", message)
        if kind.has_status and kind.name != "Node":
            item.pop("status", None)
        with self.store.lock:
            if namespace and not self.store.get(("", "namespaces"), Key("", namespace)):
                raise errors.not_found("", "namespaces", namespace)
            metadata["name"] = self._new_name(kind, metadata)
            item = self._kept(kind, {**item, "metadata": metadata})
            item, warnings = admit.clean(
                kind, options.version, item, options.validation
            )
            options.warnings.extend(warnings)
            admit.check(kind, options.version, item)
            if kind.name == "Service" and not kind.is_custom:
                item = self._with_address(item)
            if kind.name == "Pod" and not kind.is_custom:
                self._check_account(item)
            item = admit.first_state(kind, item)
            if self.store.get(kind.table, key_of(item)) is not None:
                raise errors.already_exists(kind.group, kind.plural, metadata["name"])
            made = {"uid": str(uuid.uuid4()), "creationTimestamp": times.format_time()}
            return self.store.put(
                kind.table, {**item, "metadata": {**item["metadata"], **made}}
            )

    def replace(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        item: Any,
        options: WriteOptions = _DEFAULT,
    ) -> Row:
        """Puts an object in the place of its last version.

        Raises:
            StatusError: It is not there, was changed meanwhile, or breaks a rule.
        """
        item = admit.require_named(kind, item, name, namespace)
        with self.store.lock:
            row = self.get(kind, namespace, name)
            there, wanted = row.item["metadata"], item["metadata"]
            if not wanted.get("resourceVersion") and kind.needs_version:
                what = "metadata.resourceVersion", "0: must be specified for an update"
                causes = [errors.wrong("Invalid", *what)]
                raise errors.invalid(kind.group, kind.name, name, causes)
            if wanted.get("uid", there["uid"]) != there["uid"]:
                why = (
                    f"the UID {wanted['uid']} is not that of the object, {there['uid']}"
                )
                raise errors.conflict(kind.group, kind.plural, name, why)
            return self._change(kind, row, self._kept(kind, item), options)

    def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        patch: Any,
        patch_type: str = patches.MERGE,
        options: WriteOptions = _DEFAULT,
    ) -> Row:
        """Changes a part of an object.

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
            row = self.get(kind, namespace, name)
            item = row.shown(kind.api_version(options.version))
            changed = apply_patch(item, patch, patch_type, is_custom=kind.is_custom)
            changed = admit.require_named(kind, changed, name, namespace)
            if changed["metadata"].get("uid") != item["metadata"]["uid"]:
                what = "metadata.uid", "field is immutable"
                causes = [errors.wrong("Invalid", *what)] * 2
                raise errors.invalid(kind.group, kind.name, name, causes)
            return self._change(kind, row, self._kept(kind, changed), options)

    def _change(self, kind: Kind, row: Row, item: _Item, options: WriteOptions) -> Row:
        before, is_own = row.item, options.subresource == "server"
        revision = item["metadata"].get("resourceVersion")
        if revision and revision not in {"0", before["metadata"]["resourceVersion"]}:
            raise errors.conflict(kind.group, kind.plural, key_of(before).name)
        if not is_own:
            item, warnings = admit.clean(
                kind, options.version, item, options.validation
            )
            options.warnings.extend(warnings)
        item = admit.next_state(kind, before, item, options.subresource)
        if item == before:
            return row
        if not is_own:
            admit.check(kind, options.version, item, before)
        return self._keep(kind, item)

    def _keep(self, kind: Kind, item: _Item) -> Row:
        metadata = item["metadata"]
        is_over = "deletionTimestamp" in metadata and not (
            metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
        )
        return self.store.put(kind.table, item, is_deleted=is_over)

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
            metadata = dict(row.item["metadata"])
            for what, wanted, found in (
                ("UID", options.uid, metadata["uid"]),
                ("ResourceVersion", options.revision, metadata["resourceVersion"]),
            ):
                if wanted and wanted != found:
                    why = (
                        f"the {what} in the precondition ({wanted}) does not match the "
                        f"{what} in record ({found})"
                    )
                    raise errors.conflict(kind.group, kind.plural, name, why)
            grace_s = grace_of(row.item, options)
            is_first = "deletionTimestamp" not in metadata
            if is_first or grace_s < metadata.get("deletionGracePeriodSeconds", 0):
                end = times.now() + timedelta(seconds=grace_s)
                metadata["deletionTimestamp"] = times.format_time(end)
                metadata["deletionGracePeriodSeconds"] = grace_s
                if "generation" in metadata:
                    metadata["generation"] += 1
            else:
                return row, False
            kept = self._keep(kind, {**row.item, "metadata": metadata})
            return kept, self.store.get(kind.table, Key(namespace, name)) is None

    def change(
        self, kind: Kind, namespace: str, name: str, edit: Callable[[_Item], _Item]
    ) -> Row:
        """Changes an object as the server's own parts do, whatever its rules.

        Args:
            kind: Of the object.
            namespace: Of the object.
            name: Of the object.
            edit: Returns the object as it is to be; it must not change what it is given.

        Raises:
            StatusError: It is not there.
        """
        with self.store.lock:
            row = self.get(kind, namespace, name)
            return self._change(kind, row, edit(row.item), _SERVER)

    def bind(self, namespace: str, name: str, node: str) -> None:
        """Gives a pod to a node.

        Raises:
            StatusError: It is not there, has one, or is being deleted.
        """

        def edit(item: _Item) -> _Item:
            if item["spec"].get("nodeName") or "deletionTimestamp" in item["metadata"]:
                why = f"pod {name} has a node, or is being deleted"
                raise errors.conflict("", "pods/binding", name, why)
            item = {**item, "spec": {**item["spec"], "nodeName": node}}
            return set_condition(item, {"type": "PodScheduled", "status": "True"})

        self.change(self.catalog.named("Pod"), namespace, name, edit)

    def _kept(self, kind: Kind, item: _Item) -> _Item:
        """Returns an object in the version in which it is kept."""
        if kind.group == events.GROUP:
            return events.to_core({**item, "kind": kind.name})
        return {**item, "apiVersion": kind.api_version(), "kind": kind.name}

    def _with_address(self, item: _Item) -> _Item:
        """Returns a new service with an address, unless it has one or wants none.

        They are of 127.2.0.0/16, which any process on Linux may bind.

        Raises:
            StatusError: It asks for one that is taken, or of another network.
        """
        address, rows = (
            item["spec"].get("clusterIP"),
            self.store.table(("", "services")).rows,
        )
        taken = {row.item["spec"].get("clusterIP") for row in rows.values()} - {"None"}
        if address and address != "None":
            why = "provided IP is already allocated" if address in taken else ""
            if not address.startswith(_SERVICES):
                why = "the provided network does not match the current range"
            if why:
                why = f"failed to allocate IP {address}: {why}"
                causes = [errors.wrong("Invalid", "spec.clusterIPs", why)]
                raise errors.invalid("", "Service", item["metadata"]["name"], causes)
        while not address or address in taken:
            number = next(self._numbers) % 65_000
            address = f"{_SERVICES}{number // 250}.{number % 250 + 1}"
        spec = {**item["spec"], "clusterIP": address, "clusterIPs": [address]}
        return {**item, "spec": spec}

    def _check_account(self, pod: _Item) -> None:
        metadata, account = pod["metadata"], pod["spec"]["serviceAccountName"]
        namespace = metadata["namespace"]
        key = Key(namespace, account)
        # The default one comes a moment after its namespace.
        if account != "default" and not self.store.get(("", "serviceaccounts"), key):
            why = (
                f"error looking up service account {namespace}/{account}: "
                f'serviceaccount "{account}" not found'
            )
            raise errors.forbidden("", "pods", metadata["name"], why)

    def _new_name(self, kind: Kind, metadata: _Item) -> str:
        if metadata.get("name"):
            return str(metadata["name"])
        prefix = metadata.get("generateName")
        if not prefix:
            cause = errors.wrong(
                "Required", "metadata.name", "name or generateName is required"
            )
            raise errors.invalid(kind.group, kind.name, "", [cause])
        # Names need not be hard to guess.
        tail = "".join(random.choices(string.ascii_lowercase, k=5))
        return f"{prefix[:58]}{tail}"


def apply_patch(item: _Item, patch: Any, patch_type: str, *, is_custom: bool) -> Any:
    """Returns an object with a patch applied.

    Raises:
        StatusError: The patch does not fit the object, or is of an unknown type.
    """
    if patch_type == patches.JSON:
        return patches.json_patch(item, patch)
    if patch_type == patches.MERGE or (
        patch_type == patches.STRATEGIC and not is_custom
    ):
        if not isinstance(patch, dict):
            raise errors.bad_request("error decoding patch: a merge patch is an object")
        is_merge = patch_type == patches.MERGE
        return (patches.merge_patch if is_merge else patches.strategic_patch)(
            item, patch
        )
    message = f"415: {patch_type} is no patch"
    raise errors.StatusError(415, "UnsupportedMediaType", message)


def set_condition(item: _Item, condition: _Item) -> _Item:
    """Returns an object with a condition of its status, in the place of one of its type.

    The time of the last transition stands if the status of the condition does.
    """
    status = item.get("status") or {}
    others, now = [], times.format_time()
    for one in status.get("conditions") or ():
        if one["type"] != condition["type"]:
            others.append(one)
        elif one.get("status") == condition["status"]:
            now = one.get("lastTransitionTime", now)
    found = [*others, {"lastTransitionTime": now, **condition}]
    return {**item, "status": {**status, "conditions": found}}
