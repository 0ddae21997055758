"""What the server says of itself, as far as kubectl asks for it."""

from __future__ import annotations

from typing import Any

from drivetrain_cluster_double.kinds import Catalog, Kind

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
"""The type of what tells everything at once."""

VERSION: dict[str, Any] = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0+drivetrain",
    "platform": "linux/amd64",
}
"""Which version of Kubernetes the server behaves like."""

_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for name in ("fieldManager", "fieldValidation")
]


def _gvk(kind: Kind, version: str) -> dict[str, str]:
    return {"group": kind.group, "version": version, "kind": kind.name}


def _versions(catalog: Catalog) -> dict[tuple[str, str], list[Kind]]:
    """Returns the kinds of each version of each group."""
    found: dict[tuple[str, str], list[Kind]] = {}
    for kind in catalog:
        for version in kind.versions:
            found.setdefault((kind.group, version), []).append(kind)
    return found


def aggregated(catalog: Catalog, *, is_core: bool) -> dict[str, Any]:
    """Returns everything of the core, or of all groups, at once."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for (group, version), kinds in _versions(catalog).items():
        if is_core == (not group):
            listed = [_resource(kind, version) for kind in kinds]
            entry = {"version": version, "resources": listed, "freshness": "Current"}
            groups.setdefault(group, []).append(entry)
    items = [
        {"metadata": {"name": group}, "versions": versions}
        for group, versions in groups.items()
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def _resource(kind: Kind, version: str) -> dict[str, Any]:
    scale = {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    parts = [
        {
            "subresource": part,
            "responseKind": scale if part == "scale" else _gvk(kind, version),
            "verbs": list(verbs),
        }
        for part, verbs in kind.parts.items()
    ]
    return {
        "resource": kind.plural,
        "responseKind": _gvk(kind, version),
        "scope": "Namespaced" if kind.is_namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
        "shortNames": list(kind.short_names),
        "categories": list(kind.categories),
        "subresources": parts,
    }


def openapi(catalog: Catalog, path: str) -> dict[str, Any] | None:
    """Returns which patches may ask for a strict reading, or where that is said.

    Args:
        catalog: The kinds that are served.
        path: As `apis/apps/v1`; empty for what all of them are.
    """
    found = {}
    for (group, version), kinds in _versions(catalog).items():
        where = f"apis/{group}/{version}" if group else f"api/{version}"
        found[where] = [
            (f"/{where}/{kind.plural}/{{name}}", _gvk(kind, version)) for kind in kinds
        ]
    if not path:
        return {"paths": {p: {"serverRelativeURL": f"/openapi/v3/{p}"} for p in found}}
    if path not in found:
        return None
    paths = {
        where: {
            "patch": {
                "x-kubernetes-action": "patch",
                "x-kubernetes-group-version-kind": gvk,
                "parameters": _PARAMETERS,
                "responses": {"200": {"description": "OK"}},
            }
        }
        for where, gvk in found[path]
    }
    info = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
    return {"openapi": "3.0.0", "info": info, "paths": paths}
