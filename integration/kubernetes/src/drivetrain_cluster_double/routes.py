"""What a path of the API means."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Call", "read_call"]

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class Call(NamedTuple):
    """A call of a resource.

    Attributes:
        verb: What is to be done, in the terms of roles: `get`, `list`, `watch`, `create`,
            `update`, `patch`, `delete` or `deletecollection`.
        group: Of the resource.
        version: Of the group.
        resource: Its plural.
        namespace: Where; empty for all, or if there are none.
        name: Of the object; empty for all.
        subresource: Of the object, as `status`.
        user_agent: Who says to be calling.
    """

    verb: str
    group: str
    version: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    user_agent: str = ""

    @property
    def target(self) -> str:
        """The resource as roles name it, as `pods/eviction`."""
        return f"{self.resource}/{self.subresource}".rstrip("/")


def read_call(
    method: str, path: str, query: Mapping[str, str], user_agent: str = ""
) -> Call | None:
    """Returns what a request of HTTP asks for, or None if it is for no resource.

    Example:
        >>> call = read_call("GET", "/api/v1/namespaces/a/pods/p/log", {})
        >>> call.verb, call.target, call.namespace, call.name
        ('get', 'pods/log', 'a', 'p')
    """
    parts = path.strip("/").split("/")
    match parts:
        case ["api", "v1", *rest] if rest:
            group, version = "", "v1"
        case ["apis", group, version, *rest] if rest:
            pass
        case _:
            return None
    is_old_watch = rest[0] == "watch" and len(rest) > 1
    rest = rest[1:] if is_old_watch else rest
    namespace = ""
    # A namespace itself is an object, so are its status and its finalizers.
    if (
        rest[0] == "namespaces"
        and len(rest) > 2
        and rest[2] not in {"status", "finalize"}
    ):
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = [*rest, "", ""][:3]
    if len(rest) > 3:
        return None
    if method in {"GET", "HEAD"}:
        is_watch = is_old_watch or query.get("watch") in {"true", "1"}
        verb = "watch" if is_watch else "get" if name else "list"
    elif method == "DELETE":
        verb = "delete" if name else "deletecollection"
    else:
        verb = _VERBS.get(method, method.lower())
    return Call(
        verb, group, version, resource, namespace, name, subresource, user_agent
    )
