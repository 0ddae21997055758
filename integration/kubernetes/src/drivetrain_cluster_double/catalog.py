"""Which kinds are served now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_cluster_double.errors import path_not_found
from drivetrain_cluster_double.kinds import BUILTIN, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Catalog"]


class Catalog:
    """The kinds that are served, those that were defined among them.

    Example:
        >>> Catalog().find("apps", "v1", "deployments").name
        'Deployment'
    """

    def __init__(self) -> None:
        self._kinds = {(kind.group, kind.plural): kind for kind in BUILTIN}

    def __iter__(self) -> Iterator[Kind]:
        return iter(list(self._kinds.values()))

    def add(self, kind: Kind) -> None:
        """Serves a kind, in the place of one of the same name."""
        self._kinds[kind.group, kind.plural] = kind

    def remove(self, group: str, plural: str) -> Kind | None:
        """Serves a kind no more; returns it."""
        return self._kinds.pop((group, plural), None)

    def find(self, group: str, version: str, plural: str) -> Kind:
        """Returns a kind by its place in paths.

        Raises:
            StatusError: There is none.
        """
        kind = self._kinds.get((group, plural))
        if kind is None or version not in kind.versions:
            raise path_not_found()
        return kind

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
        raise path_not_found()

    def groups(self) -> dict[str, list[str]]:
        """Returns the groups but for the core, each with its versions."""
        found: dict[str, list[str]] = {}
        for kind in self:
            versions = found.setdefault(kind.group, [])
            versions += [v for v in kind.versions if v not in versions]
        found.pop("", None)
        return found
