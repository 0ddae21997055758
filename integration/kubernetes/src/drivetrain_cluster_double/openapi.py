"""As much of the OpenAPI documents as clients look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drivetrain_cluster_double.catalog import Catalog
    from drivetrain_cluster_double.kinds import Kind

__all__ = ["document_v2", "document_v3", "index_v3"]

_INFO = {"title": "Kubernetes", "version": "v1.34.0"}
_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for name in ("dryRun", "fieldManager", "fieldValidation", "force", "pretty")
]


def document_v2() -> dict[str, Any]:
    """Returns the old document, of which nothing is told."""
    return {"swagger": "2.0", "info": _INFO, "paths": {}, "definitions": {}}


def _versions(catalog: Catalog) -> list[tuple[str, str]]:
    found = {(kind.group, version) for kind in catalog for version in kind.versions}
    return sorted(found)


def _path(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def index_v3(catalog: Catalog) -> dict[str, Any]:
    """Returns where the documents of each version of a group are."""
    paths = [_path(group, version) for group, version in _versions(catalog)]
    return {"paths": {p: {"serverRelativeURL": f"/openapi/v3/{p}"} for p in paths}}


def document_v3(catalog: Catalog, path: str) -> dict[str, Any] | None:
    """Returns the document of a version of a group; None if it is not served.

    Args:
        catalog: The kinds that are served.
        path: As `apis/apps/v1`.
    """
    for group, version in _versions(catalog):
        if _path(group, version) == path:
            break
    else:
        return None
    paths, schemas = {}, {}
    for kind in catalog:
        if kind.group != group or version not in kind.versions:
            continue
        where, operations = _operations(kind, version)
        paths[where] = operations
        name = f"{kind.group or 'core'}.{version}.{kind.name}"
        shape = dict(kind.schema(version))
        known = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
        shape["properties"] = {**known, **shape.get("properties", {})}
        shape["x-kubernetes-group-version-kind"] = [_gvk(kind, version)]
        schemas[name] = shape
    return {
        "openapi": "3.0.0",
        "info": _INFO,
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _gvk(kind: Kind, version: str) -> dict[str, str]:
    return {"group": kind.group, "version": version, "kind": kind.name}


def _operations(kind: Kind, version: str) -> tuple[str, dict[str, Any]]:
    inner = "namespaces/{namespace}/" if kind.is_namespaced else ""
    where = f"/{_path(kind.group, version)}/{inner}{kind.plural}/{{name}}"
    found: dict[str, Any] = {}
    for method, action in (("patch", "patch"), ("put", "put"), ("get", "get")):
        found[method] = {
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": _gvk(kind, version),
            "parameters": _PARAMETERS if method != "get" else [],
            "responses": {"200": {"description": "OK"}},
        }
    return where, found
