"""What the server says of itself: which groups, versions and resources there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_cluster_double.kinds import Kind, ScalePaths

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drivetrain_cluster_double.catalog import Catalog

__all__ = ["AGGREGATED", "VERSION", "aggregated", "group_list", "resource_list"]

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
"""The type of what tells everything at once."""

VERSION: dict[str, Any] = {
    "major": "1",
    "minor": "34",
    "gitVersion": "v1.34.0+drivetrain",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}
"""Which version of Kubernetes the server behaves like."""

_READ = ["get"]
_PART = ["get", "patch", "update"]
_ALL = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
]
# Those of pods and service accounts that are no parts of the object.
_OTHERS = {
    "pods": [
        ("binding", "Binding", "", "v1", ["create"]),
        ("eviction", "Eviction", "policy", "v1", ["create"]),
        ("log", "Pod", "", "v1", _READ),
    ],
    "serviceaccounts": [
        ("token", "TokenRequest", "authentication.k8s.io", "v1", ["create"])
    ],
}
_REVIEWS = [
    ("selfsubjectaccessreviews", "SelfSubjectAccessReview"),
    ("selfsubjectrulesreviews", "SelfSubjectRulesReview"),
    ("subjectaccessreviews", "SubjectAccessReview"),
]


def _subresources(
    kind: Kind, version: str
) -> Iterable[tuple[str, str, str, str, list[str]]]:
    if kind.has_status:
        yield "status", kind.name, kind.group, version, _PART
    if isinstance(kind.scale.get(version), ScalePaths):
        yield "scale", "Scale", "autoscaling", "v1", _PART
    if not kind.group:
        yield from _OTHERS.get(kind.plural, ())


def resource_list(catalog: Catalog, group: str, version: str) -> dict[str, Any] | None:
    """Returns the resources of a version of a group, or None if it is not served."""
    found: list[dict[str, Any]] = []
    for kind in catalog:
        if kind.group != group or version not in kind.versions:
            continue
        entry: dict[str, Any] = {
            "name": kind.plural,
            "singularName": kind.singular,
            "namespaced": kind.is_namespaced,
            "kind": kind.name,
            "verbs": _ALL,
        }
        if kind.short_names:
            entry["shortNames"] = list(kind.short_names)
        if kind.categories:
            entry["categories"] = list(kind.categories)
        found.append(entry)
        for name, shown, its_group, its_version, verbs in _subresources(kind, version):
            part: dict[str, Any] = {
                "name": f"{kind.plural}/{name}",
                "singularName": "",
                "namespaced": kind.is_namespaced,
                "kind": shown,
                "verbs": verbs,
            }
            if its_group != group:
                part |= {"group": its_group, "version": its_version}
            found.append(part)
    if (group, version) == ("authorization.k8s.io", "v1"):
        found += [
            {
                "name": plural,
                "singularName": name.lower(),
                "namespaced": False,
                "kind": name,
                "verbs": ["create"],
            }
            for plural, name in _REVIEWS
        ]
    if not found:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": found,
    }


def _all_groups(catalog: Catalog) -> dict[str, list[str]]:
    return {**catalog.groups(), "authorization.k8s.io": ["v1"]}


def group_list(catalog: Catalog, name: str = "") -> dict[str, Any] | None:
    """Returns all groups, or one; None if it is not served."""
    entries = []
    for group, versions in _all_groups(catalog).items():
        listed = [{"groupVersion": f"{group}/{v}", "version": v} for v in versions]
        entries.append(
            {"name": group, "versions": listed, "preferredVersion": listed[0]}
        )
    if not name:
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": entries}
    found = next((entry for entry in entries if entry["name"] == name), None)
    return found and {"kind": "APIGroup", "apiVersion": "v1", **found}


def aggregated(catalog: Catalog, *, is_core: bool) -> dict[str, Any]:
    """Returns everything of the core, or of all groups, at once."""
    groups = {"": ["v1"]} if is_core else _all_groups(catalog)
    items = [
        {
            "metadata": {"name": group, "creationTimestamp": None},
            "versions": [_version(catalog, group, version) for version in versions],
        }
        for group, versions in groups.items()
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def _version(catalog: Catalog, group: str, version: str) -> dict[str, Any]:
    listed = resource_list(catalog, group, version) or {"resources": []}
    resources: dict[str, dict[str, Any]] = {}
    for one in listed["resources"]:
        name, _, part = one["name"].partition("/")
        kind = {
            "group": one.get("group", group),
            "version": one.get("version", version),
            "kind": one["kind"],
        }
        if part:
            entry = {"subresource": part, "responseKind": kind, "verbs": one["verbs"]}
            resources[name].setdefault("subresources", []).append(entry)
            continue
        resources[name] = {
            "resource": name,
            "responseKind": kind,
            "scope": "Namespaced" if one["namespaced"] else "Cluster",
            "singularResource": one["singularName"],
            "verbs": one["verbs"],
        }
        for key in ("shortNames", "categories"):
            if key in one:
                resources[name][key] = one[key]
    return {
        "version": version,
        "resources": list(resources.values()),
        "freshness": "Current",
    }
