"""What is done about a call, without any network: from a request to a reply."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cloud.kubernetes import compact_json
from drivetrain_cluster_double import (
    authorize,
    discovery,
    openapi,
    subresources,
    times,
)
from drivetrain_cluster_double.api import APPLY, Api, WriteOptions
from drivetrain_cluster_double.errors import (
    StatusError,
    bad_request,
    method_not_allowed,
    path_not_found,
    success,
)
from drivetrain_cluster_double.listing import list_page, read_selector
from drivetrain_cluster_double.removal import DeleteOptions
from drivetrain_cluster_double.reviews import review
from drivetrain_cluster_double.store import Key
from drivetrain_cluster_double.table import make_table, metadata_only
from drivetrain_core import MissingLibraryError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from drivetrain_cluster_double.authorize import User
    from drivetrain_cluster_double.kinds import Kind
    from drivetrain_cluster_double.routes import Call
    from drivetrain_cluster_double.store import Row

__all__ = ["Dispatcher", "Reply", "Request", "read_documents", "wants_table"]


class Request(NamedTuple):
    """What a caller sends.

    Attributes:
        query: Of the URL.
        accept: Which types of answers it takes.
        content_type: Of the body.
        body: As it came.
        user: Who calls.
    """

    query: Mapping[str, str]
    accept: str
    content_type: str
    body: bytes
    user: User

    def content(self) -> Any:
        """Returns the body, read.

        Raises:
            StatusError: It cannot be read.
            MissingLibraryError: It is YAML, and the library for it is not installed.
        """
        if "protobuf" in self.content_type:
            message = (
                "the double of an API server reads JSON and YAML, got "
                f"{self.content_type}: use `kubectl apply -f` or `create -f`"
            )
            raise StatusError(415, "UnsupportedMediaType", message)
        try:
            return compact_json.loads(self.body) if self.body else {}
        except ValueError as error:
            if "yaml" in self.content_type:
                return _read_yaml(self.body)
            message = f"the body is not valid JSON: {error}"
            raise bad_request(message) from error


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


def _read_yaml(body: bytes) -> Any:
    try:
        import yaml
    except ImportError as error:
        message = (
            "a body of YAML needs the library PyYAML: "
            "pip install integration/kubernetes"
        )
        raise MissingLibraryError(message) from error
    try:
        return yaml.safe_load(body)
    except yaml.YAMLError as error:
        message = f"the body is not valid YAML: {error}"
        raise bad_request(message) from error


def read_documents(text: str) -> list[dict[str, Any]]:
    """Returns the objects that a file of YAML holds.

    Raises:
        MissingLibraryError: The library for YAML is not installed.
        StatusError: It cannot be read.
    """
    found = [_read_yaml(part.encode()) for part in re.split(r"(?m)^---.*$", text)]
    return [item for item in found if item]


def wants_table(accept: str) -> bool:
    """Whether a caller takes a table before anything else."""
    return "as=Table" in accept.partition(",")[0].replace(" ", "")


def _wants_metadata(accept: str) -> bool:
    return "as=PartialObjectMetadata" in accept.partition(",")[0].replace(" ", "")


def _json(value: Any, status: int = 200) -> Reply:
    return Reply(compact_json.dumps(value), status)


class Dispatcher:
    """Does what calls ask for.

    Args:
        api: The objects of the cluster.
        read_log: Returns what a pod has written: of a namespace, and a name.
        make_token: Returns a token of a service account: of a namespace, and a name.
    """

    def __init__(
        self,
        api: Api,
        *,
        read_log: Callable[[str, str], bytes],
        make_token: Callable[[str, str], str],
    ) -> None:
        self.api = api
        self._read_log, self._make_token = read_log, make_token

    def describe(self, path: str, accept: str) -> Reply | None:
        """Returns what the server says of itself, or None if the path is not about that."""
        catalog = self.api.catalog
        parts = path.strip("/").split("/")
        is_aggregated = "as=APIGroupDiscoveryList" in accept and "v=v2" in accept
        found: Any = None
        match parts:
            case ["healthz" | "readyz" | "livez", *_]:
                return Reply(b"ok", content_type="text/plain")
            case ["version"]:
                found = discovery.VERSION
            case ["api" | "apis" as root] if is_aggregated:
                found = discovery.aggregated(catalog, is_core=root == "api")
                # A client must be told the whole type, or it reads the old form.
                return _json(found)._replace(content_type=discovery.AGGREGATED)
            case ["api"]:
                found = {"kind": "APIVersions", "versions": ["v1"]}
            case ["apis"]:
                found = discovery.group_list(catalog)
            case ["apis", group]:
                found = discovery.group_list(catalog, group)
            case ["api", version]:
                found = discovery.resource_list(catalog, "", version)
            case ["apis", group, version]:
                found = discovery.resource_list(catalog, group, version)
            case ["openapi", "v2"]:
                found = openapi.document_v2()
            case ["openapi", "v3"]:
                found = openapi.index_v3(catalog)
            case ["openapi", "v3", *rest]:
                found = openapi.document_v3(catalog, "/".join(rest))
            case _:
                return None
        if found is None:
            raise path_not_found()
        return _json(found)

    def do(self, call: Call, request: Request) -> Reply:
        """Does what a call asks for, but for watches.

        Raises:
            StatusError: It cannot be done.
        """
        if call.group == "authorization.k8s.io":
            content = _object(request)
            return _json(review(self.api.store, request.user, call, content), 201)
        kind = self.api.catalog.find(call.group, call.version, call.resource)
        if bool(call.namespace) != kind.is_namespaced and (
            call.namespace or call.name or call.verb == "create"
        ):
            raise path_not_found()
        if call.subresource:
            return self._part(kind, call, request)
        with self.api.store.lock:
            match call.verb:
                case "get":
                    row = self.api.get(kind, call.namespace, call.name)
                    return self._one(kind, call, request, row)
                case "list":
                    return self._list(kind, call, request)
                case "create":
                    options = _options(call, request)
                    content = request.content()
                    row = self.api.create(kind, call.namespace, content, options)
                    return self._one(kind, call, request, row, options, 201)
                case "update" | "patch":
                    return self._write(kind, call, request, "")
                case "delete" | "deletecollection":
                    return self._delete(kind, call, request)
        raise method_not_allowed()

    def _one(
        self,
        kind: Kind,
        call: Call,
        request: Request,
        row: Row,
        options: WriteOptions | None = None,
        status: int = 200,
    ) -> Reply:
        version = kind.api_version(call.version)
        warnings = tuple(options.warnings) if options else ()
        if wants_table(request.accept):
            metadata = {"resourceVersion": row.item["metadata"]["resourceVersion"]}
            return _json(self._table(kind, call, request, [row], metadata), status)
        if _wants_metadata(request.accept):
            return _json(metadata_only(row.shown(version)), status)
        return Reply(row.text(version), status, warnings)

    def _table(
        self,
        kind: Kind,
        call: Call,
        request: Request,
        rows: list[Row],
        metadata: dict[str, Any],
    ) -> Any:
        items = (row.shown(kind.api_version(call.version)) for row in rows)
        objects = request.query.get("includeObject", "Metadata")
        return make_table(kind, call.version, items, metadata, objects=objects)

    def _list(self, kind: Kind, call: Call, request: Request) -> Reply:
        selector = read_selector(kind, request.query)
        page = list_page(self.api.store, kind, call.namespace, selector, request.query)
        version = kind.api_version(call.version)
        if wants_table(request.accept):
            return _json(self._table(kind, call, request, page.rows, page.metadata))
        if _wants_metadata(request.accept):
            names = ("PartialObjectMetadataList", "meta.k8s.io/v1")
            shown = (metadata_only(row.shown(version)) for row in page.rows)
            parts = [compact_json.dumps(one) for one in shown]
        else:
            names = (f"{kind.name}List", version)
            # Objects of kinds that come with the server do not say in lists what they are.
            parts = [row.text(version, is_bare=not kind.is_custom) for row in page.rows]
        head = json.dumps(
            {"kind": names[0], "apiVersion": names[1], "metadata": page.metadata}
        )
        body = head[:-1].encode() + b',"items":[' + b",".join(parts) + b"]}"
        return Reply(body)

    def _write(self, kind: Kind, call: Call, request: Request, part: str) -> Reply:
        options = _options(call, request, part)
        content, status = request.content(), 200
        if call.verb == "update":
            content = _with_name(content, call.name)
            row = self.api.replace(kind, call.namespace, content, options)
        else:
            patch_type = request.content_type.partition(";")[0].strip()
            if patch_type == APPLY and not request.query.get("fieldManager"):
                message = "fieldManager is required for apply patch"
                raise bad_request(message)
            key = Key(call.namespace, call.name)
            status = 200 if self.api.store.get(kind.table, key) else 201
            row = self.api.patch(
                kind, call.namespace, call.name, content, patch_type, options
            )
        return self._one(kind, call, request, row, options, status)

    def _delete(self, kind: Kind, call: Call, request: Request) -> Reply:
        content = request.content()
        options = DeleteOptions.read(content, request.query)
        if call.verb == "deletecollection":
            selector = read_selector(kind, request.query)
            rows = self.api.delete_collection(kind, call.namespace, selector, options)
            version = kind.api_version(call.version)
            revision = str(self.api.store.revision)
            found = {
                "kind": f"{kind.name}List",
                "apiVersion": version,
                "metadata": {"resourceVersion": revision},
                "items": [row.shown(version) for row in rows],
            }
            return _json(found)
        row, is_gone = self.api.delete(kind, call.namespace, call.name, options)
        if is_gone and kind.name not in {"Pod", "Service", "Namespace"}:
            uid = row.item["metadata"]["uid"]
            return _json(success(call.name, kind.group, kind.plural, uid))
        return self._one(kind, call, request, row)

    def _part(self, kind: Kind, call: Call, request: Request) -> Reply:
        api, namespace, name = self.api, call.namespace, call.name
        with api.store.lock:
            match (kind.plural, call.subresource, call.verb):
                case (_, "status", "get") if kind.has_status:
                    return self._one(
                        kind, call, request, api.get(kind, namespace, name)
                    )
                case (_, "status", "update" | "patch") if kind.has_status:
                    return self._write(kind, call, request, "status")
                case (_, "scale", verb) if call.version in kind.scale:
                    row = api.get(kind, namespace, name)
                    if verb != "get":
                        patch_type = request.content_type.partition(";")[0].strip()
                        patch_type = patch_type if verb == "patch" else ""
                        options = _options(call, request)
                        row = subresources.write_scale(
                            api, kind, row, request.content(), patch_type, options
                        )
                    return _json(subresources.read_scale(kind, call.version, row.item))
                case ("pods", "eviction", "create"):
                    found = subresources.evict(
                        api, kind, namespace, name, _object(request)
                    )
                    return _json(found, 201)
                case ("pods", "binding", "create"):
                    found = subresources.bind(
                        api, kind, namespace, name, _object(request)
                    )
                    return _json(found, 201)
                case ("namespaces", "finalize", "update"):
                    return self._finalize(kind, call, request)
                case ("serviceaccounts", "token", "create"):
                    api.get(kind, namespace, name)
                    return _json(self._token(namespace, name), 201)
                case ("pods", "log", "get"):
                    api.get(kind, namespace, name)
                case _:
                    raise path_not_found()
        return self._log(call, request)

    def _finalize(self, kind: Kind, call: Call, request: Request) -> Reply:
        finalizers = (_object(request).get("spec") or {}).get("finalizers") or []

        def edit(item: dict[str, Any]) -> dict[str, Any]:
            return {**item, "spec": {**item.get("spec", {}), "finalizers": finalizers}}

        row = self.api.change(kind, "", call.name, edit)
        return self._one(kind, call, request, row)

    def _token(self, namespace: str, name: str) -> dict[str, Any]:
        end = times.format_time(times.now().replace(year=times.now().year + 1))
        status = {
            "token": self._make_token(namespace, name),
            "expirationTimestamp": end,
        }
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {},
            "status": status,
        }

    def _log(self, call: Call, request: Request) -> Reply:
        text = self._read_log(call.namespace, call.name)
        num_lines = request.query.get("tailLines")
        if num_lines is not None:
            text = b"".join(text.splitlines(keepends=True)[-int(num_lines) :])
        return Reply(text, content_type="text/plain")

    def check(self, call: Call, request: Request) -> None:
        """Refuses a call that the roles do not allow.

        Raises:
            StatusError: They do not.
        """
        if call.group == "authorization.k8s.io" and call.resource.startswith("self"):
            return
        error = authorize.refusal(self.api.store, request.user, call)
        if error is not None:
            raise error


def _object(request: Request) -> dict[str, Any]:
    content = request.content()
    if not isinstance(content, dict):
        message = f"the body is no object: it begins with {str(content)[:60]!r}"
        raise bad_request(message)
    return content


def _with_name(content: Any, name: str) -> dict[str, Any]:
    """Returns an object that has the name of its path.

    Raises:
        StatusError: It is no object, or has another name.
    """
    metadata = (content.get("metadata") or {}) if isinstance(content, dict) else None
    if not isinstance(metadata, dict) or metadata.get("name", name) != name:
        message = f"the body is no object of the name in the URL, {name}"
        raise bad_request(message)
    return {**content, "metadata": {**metadata, "name": name}}


def _options(call: Call, request: Request, part: str = "") -> WriteOptions:
    query = request.query
    dry_run = query.get("dryRun")
    if dry_run not in {None, "", "All"}:
        message = f"dryRun must be All, got {dry_run!r}"
        raise StatusError(400, "BadRequest", message)
    agent = call.user_agent.partition("/")[0] or "unknown"
    return WriteOptions(
        manager=query.get("fieldManager") or agent,
        version=call.version,
        subresource=part,
        is_dry_run=bool(dry_run),
        is_forced=query.get("force") in {"true", "1", "True"},
        validation=query.get("fieldValidation", ""),
    )
