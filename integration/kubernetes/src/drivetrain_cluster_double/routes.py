"""What a path of the API means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from drivetrain_cloud.kubernetes import compact_json
from drivetrain_cluster_double.errors import bad_request, not_done

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
    namespace = ""
    # A namespace itself is an object, so are its status and its finalizers.
    if rest[0] == "namespaces" and rest[2:3] not in ([], ["status"], ["finalize"]):
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = [*rest, "", ""][:3]
    if len(rest) > 3:
        return None
    if method in {"GET", "HEAD"}:
        is_watch = query.get("watch") in {"true", "1"}
        verb = "watch" if is_watch else "get" if name else "list"
    elif method == "DELETE":
        verb = "delete" if name else "deletecollection"
    else:
        verb = _VERBS.get(method, method.lower())
    return Call(
        verb, group, version, resource, namespace, name, subresource, user_agent
    )


class Request(NamedTuple):
    """What a caller sends.

    Attributes:
        call: What is asked for.
        query: Of the URL.
        accept: Which types of answers it takes.
        content_type: Of the body.
        body: As it came.
    """

    call: Call
    query: Mapping[str, str]
    accept: str
    content_type: str
    body: bytes

    def content(self) -> Any:
        """Returns the body, read.

        Raises:
            StatusError: It cannot be read, or is of a form that is not done here (501).
        """
        if not self.content_type.endswith("json") and self.body and self.content_type:
            raise not_done(f"a body of {self.content_type}")
        try:
            return compact_json.loads(self.body) if self.body else {}
        except ValueError as error:
            message = f"the object provided is unrecognized: json parse error: {error}"
            raise bad_request(message) from error

    @property
    def wants_table(self) -> bool:
        """Whether the caller takes a table before anything else.

        Raises:
            StatusError: It takes a form first that is not done here (501).
        """
        first = self.accept.partition(",")[0].replace(" ", "")
        if "as=" in first and "as=Table" not in first:
            raise not_done(f"an answer as {first}")
        return "as=Table" in first
