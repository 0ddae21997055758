"""The kinds of objects that are served: their names, versions, and what is special."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import yaml

from drivetrain_cluster_double.errors import not_done, path_not_found

TableName = tuple[str, str]
"""Where the objects of a kind lie: its group, and its plural."""

_NAMES = frozenset({"metadata.name", "metadata.namespace"})
_WRITTEN = ("get", "patch", "update")


class Column(NamedTuple):
    """One column of what `kubectl get` prints.

    Attributes:
        name: Its heading.
        type: Of OpenAPI: `string`, `integer`, `date` ...
        path: Where the value is, as `.spec.replicas`.
        priority: Above 0 it is shown only with `-o wide`.
    """

    name: str
    type: str
    path: str
    priority: int = 0


class ScalePaths(NamedTuple):
    """Where a kind keeps what its `/scale` tells, as `.spec.replicas`."""

    spec_replicas: str
    status_replicas: str
    selector: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of objects.

    Args:
        name: As in `kind:` of an object.
        plural: As in paths.
        group: Empty for the core.
        versions: That are served, the one in which objects are kept first.
        verbs: What may be done with its objects.
        parts: Its subresources, and what may be done with those.
        is_namespaced: Whether its objects lie in namespaces.
        short_names: That kubectl knows it by.
        categories: Groups of kinds for kubectl, as `all`.
        has_status: Whether a status is written apart from the rest.
        has_generation: Whether changes of the spec are counted.
        needs_version: Whether an update must say which version it changes.
        fields: That can be selected.
        scale: Of each version that has `/scale`.
        schemas: Of each version.
        columns: Of each version, for kubectl.
        table: Where its objects lie; another kind's, if they are the same objects.
        singular: Its name in lower case by default.
        is_custom: Whether somebody has defined it.
        keeps_unknown: Versions whose unknown fields are kept.
    """

    name: str
    plural: str
    group: str = ""
    versions: tuple[str, ...] = ("v1",)
    verbs: tuple[str, ...] = (
        "create",
        "delete",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    )
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    has_status: bool = False
    has_generation: bool = False
    needs_version: bool = False
    fields: frozenset[str] = _NAMES
    scale: Mapping[str, ScalePaths] = field(default_factory=dict)
    schemas: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    columns: Mapping[str, tuple[Column, ...]] = field(default_factory=dict)
    table: TableName = ("", "")
    singular: str = ""
    is_custom: bool = False
    keeps_unknown: bool = True

    def api_version(self, version: str = "") -> str:
        """Returns the `apiVersion` of its objects, of the kept version by default."""
        version = version or self.versions[0]
        return f"{self.group}/{version}" if self.group else version

    def schema(self, version: str = "") -> dict[str, Any]:
        """Returns the schema of a version."""
        return self.schemas[version or self.versions[0]]


@cache
def built_in() -> tuple[Kind, ...]:
    """Returns what is served before anybody defines more."""
    text = resources.files(__package__ or "").joinpath("kinds.yaml").read_text()
    return tuple(_built_in(**row) for row in yaml.safe_load(text)["kinds"])


def _built_in(
    *,
    schema: dict[str, Any],
    columns: list[list[Any]] | None = None,
    fields: tuple[str, ...] = (),
    **row: Any,
) -> Kind:
    table = row.pop("table", (row.get("group", ""), row["plural"]))
    return Kind(
        schemas={"v1": schema},
        columns={"v1": tuple(Column(*one) for one in columns)} if columns else {},
        fields=_NAMES.union(fields),
        table=tuple(table),
        singular=row["name"].lower(),
        **row,
    )


def defined(definition: dict[str, Any]) -> Kind:
    """Returns the kind that a good definition of a custom resource makes."""
    spec, names = definition["spec"], definition["spec"]["names"]
    versions = [one for one in spec["versions"] if one["served"]]
    versions.sort(key=lambda one: not one["storage"])
    parts = [one.get("subresources") or {} for one in versions]
    scales, columns = {}, {}
    for one, part in zip(versions, parts, strict=True):
        if scale := part.get("scale"):
            scales[one["name"]] = ScalePaths(
                scale["specReplicasPath"],
                scale["statusReplicasPath"],
                scale.get("labelSelectorPath", ""),
            )
        if printed := one.get("additionalPrinterColumns"):
            columns[one["name"]] = tuple(
                Column(c["name"], c["type"], c["jsonPath"], c.get("priority", 0))
                for c in printed
            )
    fields = (f for one in versions for f in one.get("selectableFields") or ())
    return Kind(
        name=names["kind"],
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        group=spec["group"],
        table=(spec["group"], names["plural"]),
        versions=tuple(one["name"] for one in versions),
        parts={name: _WRITTEN for part in parts for name in part},
        is_namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        has_status=any("status" in part for part in parts),
        has_generation=True,
        needs_version=True,
        fields=_NAMES.union(one["jsonPath"].lstrip(".") for one in fields),
        scale=scales,
        schemas={one["name"]: one["schema"]["openAPIV3Schema"] for one in versions},
        columns=columns,
        is_custom=True,
        keeps_unknown=bool(spec.get("preserveUnknownFields")),
    )


class Catalog:
    """The kinds that are served, those that were defined among them.

    Example:
        >>> Catalog().named("po").name
        'Pod'
    """

    def __init__(self) -> None:
        self._kinds = {(kind.group, kind.plural): kind for kind in built_in()}

    def __iter__(self) -> Iterator[Kind]:
        return iter(list(self._kinds.values()))

    def add(self, kind: Kind) -> None:
        """Serves a kind, in the place of one of the same name."""
        self._kinds[kind.group, kind.plural] = kind

    def find(self, group: str, version: str, plural: str) -> Kind:
        """Returns a kind by its place in paths.

        Raises:
            StatusError: There is none; one of Kubernetes' own is not done (501).
        """
        kind = self._kinds.get((group, plural))
        if kind is not None and version in kind.versions:
            return kind
        if kind is None and ("." not in group or group.endswith(".k8s.io")):
            raise not_done(f"{plural} of {group or 'the core'}/{version}")
        raise path_not_found()

    def named(self, name: str, api_version: str = "") -> Kind:
        """Returns a kind by its name, its plural or a short name.

        Args:
            name: As `Pod`, `pods` or `po`.
            api_version: Of the objects; any by default, the core's first.

        Raises:
            StatusError: There is none.
        """
        group = api_version.rpartition("/")[0]
        for kind in self:
            names = {kind.name, kind.plural, kind.singular, *kind.short_names}
            if name in names and (not api_version or kind.group == group):
                return kind
        raise not_done(f"{name} of {api_version or 'any version'}")

    def of_table(self, table: TableName) -> Kind | None:
        """Returns the kind whose objects lie in a table, or None."""
        return self._kinds.get(table)
