"""What is done about a call, without any network: from a request to a reply."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from drivetrain_cloud.kubernetes import compact_json
from drivetrain_cluster_double import discovery, errors
from drivetrain_cluster_double.api import Api, DeleteOptions, WriteOptions, apply_patch
from drivetrain_cluster_double.kinds import Kind
from drivetrain_cluster_double.listing import list_page, read_selector
from drivetrain_cluster_double.routes import Call, Request
from drivetrain_cluster_double.store import Row
from drivetrain_cluster_double.table import make_table, value_at

_Item = dict[str, Any]
_LOG_OPTIONS = {"container"}


class Reply(NamedTuple):
    """What the caller gets.

    Attributes:
        body: As it goes.
        status: Of HTTP.
        warnings: For people.
        content_type: Of the body.
    """

    body: bytes
    status: int = 200
    warnings: tuple[str, ...] = ()
    content_type: str = "application/json"


def _json(value: Any, status: int = 200) -> Reply:
    return Reply(compact_json.dumps(value), status)


class Dispatcher:
    """Does what calls ask for.

    Args:
        api: The objects of the cluster.
        read_log: Returns what a pod has written: of a namespace, and a name.
    """

    def __init__(self, api: Api, read_log: Callable[[str, str], bytes]) -> None:
        self.api, self._read_log = api, read_log

    def describe(self, path: str, accept: str) -> Reply | None:
        """Returns what the server says of itself, or None if the path is not about that.

        Raises:
            StatusError: It says no such thing (501).
        """
        catalog, parts = self.api.catalog, path.strip("/").split("/")
        found: Any = None
        match parts:
            case ["healthz" | "readyz" | "livez"]:
                return Reply(b"ok", content_type="text/plain")
            case ["version"]:
                found = discovery.VERSION
            case ["api" | "apis" as root] if "as=APIGroupDiscoveryList" in accept:
                # A client must be told the whole type, or it reads another form.
                found = discovery.aggregated(catalog, is_core=root == "api")
                return _json(found)._replace(content_type=discovery.AGGREGATED)
            case ["openapi", "v3", *rest]:
                found = discovery.openapi(catalog, "/".join(rest))
            case ["api" | "apis", _, _, _, *_] | ["api", _, _, *_]:
                return None
        if found is None:
            raise errors.not_done(f"an answer about {path}")
        return _json(found)

    def kind_of(self, call: Call) -> Kind:
        """Returns the kind that a call is about.

        Raises:
            StatusError: There is none, or not this is done with it (501).
        """
        kind = self.api.catalog.find(call.group, call.version, call.resource)
        part, is_for_all = call.subresource, not (call.namespace or call.name)
        verbs = kind.parts.get(part, ()) if part else kind.verbs
        if call.verb not in verbs or (
            call.verb in {"update", "patch"} and not call.name
        ):
            raise errors.not_done(f"{call.verb} {call.target}")
        is_for_all &= call.verb != "create"
        if bool(call.namespace) != kind.is_namespaced and not is_for_all:
            raise errors.path_not_found()
        return kind

    def do(self, request: Request) -> Reply:
        """Does what a call asks for, but for watches.

        Raises:
            StatusError: It cannot be done.
        """
        call, api, query = request.call, self.api, request.query
        kind, place = self.kind_of(call), (call.namespace, call.name)
        if query.get("dryRun"):
            raise errors.not_done("dryRun")
        with api.store.lock:
            match call.subresource, call.verb:
                case "log", _:
                    api.get(kind, *place)
                case "scale", _:
                    return self._scale(kind, request)
                case _, "list":
                    return self._list(kind, request)
                case _, "get":
                    return _one(kind, request, api.get(kind, *place))
                case _, "delete":
                    options = DeleteOptions.read(request.content(), query)
                    row, is_gone = api.delete(kind, *place, options)
                    if is_gone and kind.name not in {"Pod", "Service"}:
                        uid = row.item["metadata"]["uid"]
                        return _json(
                            errors.success(kind.group, kind.plural, call.name, uid)
                        )
                    return _one(kind, request, row)
                case _:
                    return self._write(kind, request)
        if other := set(query) - _LOG_OPTIONS:
            raise errors.not_done(f"a log with {', '.join(other)}")
        return Reply(self._read_log(*place), content_type="text/plain")

    def _list(self, kind: Kind, request: Request) -> Reply:
        call, query = request.call, request.query
        selector = read_selector(kind, query)
        page = list_page(self.api.store, kind, call.namespace, selector, query)
        if request.wants_table:
            return _json(
                make_table(kind, call.version, page.rows, page.metadata, query)
            )
        version = kind.api_version(call.version)
        # Objects of kinds that come with the server do not say in lists what they are.
        parts = [row.text(version, is_bare=not kind.is_custom) for row in page.rows]
        names = {"kind": f"{kind.name}List", "apiVersion": version}
        head = json.dumps({**names, "metadata": page.metadata})
        return Reply(head[:-1].encode() + b',"items":[' + b",".join(parts) + b"]}")

    def _write(self, kind: Kind, request: Request) -> Reply:
        call, form, query = request.call, request.content_type, request.query
        validation = query.get("fieldValidation", "")
        options = WriteOptions(
            version=call.version, subresource=call.subresource, validation=validation
        )
        if call.verb == "patch" and form.endswith("json") and "force" in query:
            message = "may not be specified for non-apply patch"
            raise errors.wrong_option("PatchOptions", "force", "Forbidden", message)
        place, content = (kind, call.namespace), request.content()
        if call.verb == "patch":
            row = self.api.patch(*place, call.name, content, form, options)
        elif call.verb == "update":
            row = self.api.replace(*place, call.name, content, options)
        else:
            row = self.api.create(*place, content, options)
        reply = _one(kind, request, row, 201 if call.verb == "create" else 200)
        return reply._replace(warnings=tuple(options.warnings))

    def _scale(self, kind: Kind, request: Request) -> Reply:
        """Tells or sets the replicas of an object through its scale."""
        call, wanted = request.call, request.content()
        place = kind, call.namespace, call.name
        row = self.api.get(*place)
        scale = read_scale(kind, call.version, row.item)
        if call.verb == "get":
            return _json(scale)
        if call.verb == "patch":
            wanted = apply_patch(scale, wanted, request.content_type, is_custom=True)
        parts = [wanted.get(p) or {} for p in ("spec", "metadata")] if wanted else []
        if not parts or not all(isinstance(one, dict) for one in parts):
            raise errors.bad_request("a scale is an object with spec.replicas")
        replicas, revision = parts[0].get("replicas", 0), str(row.revision)
        if parts[1].get("resourceVersion", revision) != revision:
            raise errors.conflict(kind.group, kind.plural, call.name)
        if not isinstance(replicas, int) or replicas < 0:
            message = f"{replicas}: must be greater than or equal to 0"
            causes = [errors.wrong("Invalid", "spec.replicas", message)]
            raise errors.invalid("autoscaling", "Scale", call.name, causes)
        patch: Any = replicas
        for part in reversed(
            kind.scale[call.version].spec_replicas.strip(".").split(".")
        ):
            patch = {part: patch}
        row = self.api.patch(*place, patch, options=WriteOptions(version=call.version))
        return _json(read_scale(kind, call.version, row.item))


def _one(kind: Kind, request: Request, row: Row, status: int = 200) -> Reply:
    version = request.call.version
    if request.wants_table:
        metadata = {"resourceVersion": str(row.revision)}
        return _json(make_table(kind, version, [row], metadata, request.query), status)
    return Reply(row.text(kind.api_version(version)), status)


def read_scale(kind: Kind, version: str, item: _Item) -> _Item:
    """Returns the scale of an object."""
    paths, metadata = kind.scale[version], item["metadata"]
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: _Item = {"replicas": value_at(item, paths.status_replicas) or 0}
    if paths.selector and (selector := value_at(item, paths.selector)):
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in names if name in metadata},
        "spec": {"replicas": value_at(item, paths.spec_replicas)},
        "status": status,
    }
