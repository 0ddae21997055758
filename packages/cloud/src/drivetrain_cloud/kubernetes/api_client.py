"""Calls of the API server."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import email.utils
import json
import math
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from drivetrain_cloud.kubernetes import compact_json
from drivetrain_core import DistributedError, ProgramError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    import aiohttp

    from drivetrain_cloud.kubernetes.cluster_access import ClusterAccess

_CALL_S = 30.0
_GOODBYE_S = 0.1
_TOKEN_S = 60.0
_PAGE = 500
_NUM_TRIES = 4
_FIRST_WAIT_S = 0.1
_MOST_WAIT_S = 10.0
_MOST_RETRY_AFTER_S = 60.0
_MOVED, _UNAUTHORIZED = 300, 401


class Kind(NamedTuple):
    """Where objects of a kind are found.

    Attributes:
        api: Their group and version, as `apps/v1`.
        plural: What the API calls them.
        is_namespaced: Whether they belong to namespaces.
    """

    api: str
    plural: str
    is_namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        """Returns the path of all objects, those of a namespace, or one.

        Example:
            >>> Kind("v1", "pods").path("a", "p", "status")
            '/api/v1/namespaces/a/pods/p/status'
        """
        root = "/apis/" if "/" in self.api else "/api/"
        parts = [root + self.api]
        if namespace and self.is_namespaced:
            parts += ["namespaces", namespace]
        return "/".join([*parts, self.plural, *filter(None, (name, sub))])


KINDS = {
    "Pod": Kind("v1", "pods"),
    "Service": Kind("v1", "services"),
    "Secret": Kind("v1", "secrets"),
    "ConfigMap": Kind("v1", "configmaps"),
    "Node": Kind("v1", "nodes", is_namespaced=False),
    "Event": Kind("events.k8s.io/v1", "events"),
    "Lease": Kind("coordination.k8s.io/v1", "leases"),
    "PodGroup": Kind("scheduling.volcano.sh/v1beta1", "podgroups"),
    "ElasticJob": Kind("drivetrain.dev/v1alpha1", "elasticjobs"),
    "TrainingJob": Kind("kai.alibabacloud.com/v1alpha1", "trainingjobs"),
    "ScaleIn": Kind("kai.alibabacloud.com/v1alpha1", "scaleins"),
    "ScaleOut": Kind("kai.alibabacloud.com/v1alpha1", "scaleouts"),
}
"""The kinds that the operator knows."""


class ApiError(DistributedError):
    """The API server refuses a call, or does not answer it.

    Attributes:
        status: Of HTTP; 0 without an answer.
        reason: In a word, as `AlreadyExists`.
        retry_after_s: What the server asks to wait; 0 if it does not.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s


class WatchEvent(NamedTuple):
    """Something that a watch has told.

    Attributes:
        kind: `ADDED`, `MODIFIED`, `DELETED` or `BOOKMARK`.
        item: The object.
    """

    kind: str
    item: dict[str, Any]


class ApiClient:
    """Calls an API server; an asynchronous context manager, used from one event loop.

    A server that asks to wait (429, 503) is asked again a few times.

    Args:
        access: Where it is, and as whom it is called.
        user_agent: What the server's log says.

    Attributes:
        num_calls: How many calls were answered, by method and status.
        lead_s: Returns for how many seconds this one may still write.
    """

    def __init__(
        self, access: ClusterAccess, *, user_agent: str = "drivetrain-operator"
    ) -> None:
        self._access = access
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None
        self._who: dict[str, str] = {}
        self._who_at_s = -math.inf
        self._date: tuple[dt.datetime, float] | None = None
        self.num_calls: Counter[tuple[str, int]] = Counter()
        self.lead_s: Callable[[], float] = lambda: math.inf

    def server_time(self) -> dt.datetime:
        """Returns the server's time: that of its last answer, and what has passed since."""
        if self._date is None:
            return dt.datetime.now(dt.UTC)
        date, at_s = self._date
        return date + dt.timedelta(seconds=time.monotonic() - at_s)

    async def __aenter__(self) -> Self:
        """Returns the client, which knows where the cluster is.

        Raises:
            ProgramError: That cannot be read.
        """
        self._who, self._who_at_s = await self._access.read(), time.monotonic()
        self._session = self._access.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes all connections."""
        assert self._session is not None
        await self._session.close()
        if self._access.server.startswith("https:"):
            # Streams that were cut say goodbye to the server before they are closed.
            await asyncio.sleep(_GOODBYE_S)

    # ---- calls ----

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        """Returns an object."""
        return await self.call("GET", KINDS[kind].path(namespace, name))

    async def create(self, kind: str, item: dict[str, Any]) -> dict[str, Any]:
        """Makes an object, and returns it."""
        namespace = item["metadata"].get("namespace", "")
        return await self.call("POST", KINDS[kind].path(namespace), body=item)

    async def update(
        self, kind: str, item: dict[str, Any], sub: str = ""
    ) -> dict[str, Any]:
        """Replaces an object of the version that is given, and returns it.

        Args:
            kind: Its kind.
            item: The whole of it.
            sub: A part of it, as `status`.
        """
        data = item["metadata"]
        path = KINDS[kind].path(data.get("namespace", ""), data["name"], sub)
        return await self.call("PUT", path, body=item)

    async def patch(
        self, kind: str, namespace: str, name: str, patch: dict[str, Any], sub: str = ""
    ) -> dict[str, Any]:
        """Merges into an object, and returns it.

        Args:
            kind: Its kind.
            namespace: Its namespace.
            name: Its name.
            patch: What becomes different; with a version, only that one is changed.
            sub: A part of it, as `status`.
        """
        return await self.call(
            "PATCH",
            KINDS[kind].path(namespace, name, sub),
            body=patch,
            content_type="application/merge-patch+json",
        )

    async def delete(
        self,
        kind: str,
        namespace: str,
        name: str,
        *,
        uid: str,
        is_forced: bool = False,
    ) -> dict[str, Any]:
        """Deletes an object if it is the one that is meant.

        Args:
            kind: Its kind.
            namespace: Its namespace.
            name: Its name.
            uid: Of the one that is meant.
            is_forced: Whether nobody is waited for that would end it.
        """
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        if is_forced:
            body["gracePeriodSeconds"] = 0
        return await self.call("DELETE", KINDS[kind].path(namespace, name), body=body)

    async def list(
        self, kind: str, *, namespace: str = "", selector: str = ""
    ) -> tuple[list[dict[str, Any]], str]:
        """Returns all objects, and the version that the list is of."""
        found: list[dict[str, Any]] = []
        params = {"limit": str(_PAGE)}
        if selector:
            params["labelSelector"] = selector
        while True:
            path = KINDS[kind].path(namespace)
            page = await self.call("GET", path, params=params)
            items, data = page.get("items") or [], page.get("metadata")
            if not isinstance(data, dict) or not isinstance(items, list):
                raise _no_answer(path, ValueError("what it sends is no list"))
            found += items
            rest = data.get("continue")
            if not rest:
                return found, str(data.get("resourceVersion") or "")
            if rest == params.get("continue"):
                raise _no_answer(path, ValueError("its list has no end"))
            params["continue"] = rest

    async def watch(
        self,
        kind: str,
        version: str,
        *,
        namespace: str = "",
        selector: str = "",
        silence_s: float = 90.0,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Tells what happens to objects from a version on, until the server ends it.

        Args:
            kind: Of the objects.
            version: From which on.
            namespace: Of the objects; all by default.
            selector: Of their labels.
            silence_s: After how long without a word, bookmarks included, it is given up.

        Raises:
            ApiError: The version is too old (410), or the server does not answer.
        """
        import aiohttp

        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": "300",
        }
        if selector:
            params["labelSelector"] = selector
        path = KINDS[kind].path(namespace)
        assert self._session is not None
        try:
            async with self._session.get(
                self._access.server + path,
                params=params,
                headers=await self._headers(),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=10.0, sock_read=silence_s
                ),
                allow_redirects=False,
                **self._access.options(),
            ) as reply:
                if reply.status >= _MOVED:
                    raise self._refusal(reply, await reply.read(), path)
                async for line in reply.content:
                    yield _event(compact_json.loads(line))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _no_answer(path, error) from error

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: dict[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """Makes a call and returns the answer; every call but a watch is made by it.

        Args:
            method: Of HTTP.
            path: On the server.
            body: What is sent.
            params: Of the query.
            content_type: What the body is.

        Raises:
            ApiError: The server refuses, or does not answer.
        """
        for number in range(1, _NUM_TRIES + 1):
            try:
                return await self._call(method, path, body, params, content_type)
            except ApiError as error:
                if number == _NUM_TRIES or error.status not in {429, 503}:
                    raise
                wait_s = max(error.retry_after_s, _FIRST_WAIT_S * 4 ** (number - 1))
                await asyncio.sleep(min(wait_s, _MOST_WAIT_S))
        raise AssertionError

    async def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        params: Mapping[str, str] | None,
        content_type: str,
    ) -> dict[str, Any]:
        import aiohttp

        assert self._session is not None
        headers = await self._headers()
        limit_s = _CALL_S
        if method != "GET" and KINDS["Lease"].plural not in path.split("/"):
            # Whoever was paused, and leads no more, writes nothing.
            limit_s = min(limit_s, self.lead_s())
            if limit_s <= 0:
                message = f"{method} {path} was not sent: another operator leads by now"
                raise ApiError(message)
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = content_type
        try:
            async with self._session.request(
                method,
                self._access.server + path,
                data=data,
                params=params,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=limit_s, sock_connect=10.0),
                # Nobody else is told the token.
                allow_redirects=False,
                **self._access.options(),
            ) as reply:
                text = await reply.read()
                self.num_calls[method, reply.status] += 1
                self._see_date(reply.headers.get("Date"))
                if reply.status >= _MOVED:
                    raise self._refusal(reply, text, path)
                found = compact_json.loads(text)
                if not isinstance(found, dict):
                    raise _no_answer(
                        path, ValueError(f"expected an object: {text!r:.80}")
                    )
                return found
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _no_answer(path, error) from error

    def _see_date(self, text: str | None) -> None:
        now_s = time.monotonic()
        # Its seconds are whole: a date is good for a while.
        if text and (self._date is None or now_s > self._date[1] + _TOKEN_S):
            with contextlib.suppress(ValueError, OverflowError):
                date = email.utils.parsedate_to_datetime(text)
                self._date = date.astimezone(dt.UTC), now_s

    async def _headers(self) -> dict[str, str]:
        now_s = time.monotonic()
        if now_s >= self._who_at_s + _TOKEN_S:
            try:
                self._who = await self._access.read()
            except ProgramError as error:
                raise ApiError(str(error)) from error
            self._who_at_s = now_s
        names = {"User-Agent": self._user_agent, "Accept": "application/json"}
        return {**names, **self._who}

    def _refusal(
        self, reply: aiohttp.ClientResponse, text: bytes, path: str
    ) -> ApiError:
        if reply.status == _UNAUTHORIZED:
            # It has ended before its time: the file may have another one.
            self._who_at_s = -math.inf
        return _error(reply.status, text, reply.headers, path)


def _event(said: Any) -> WatchEvent:
    """Returns what a line of a watch says.

    Raises:
        ApiError: It says that the watch is over.
        ValueError: It says nothing that a watch does.
    """
    is_event = isinstance(said, dict) and isinstance(said.get("object"), dict)
    if not is_event:
        message = f"expected an event, got {said!r:.80}"
        raise ValueError(message)
    item = said["object"]
    if said.get("type") == "ERROR":
        code = item.get("code")
        raise ApiError(
            str(item.get("message")),
            status=code if isinstance(code, int) else 0,
            reason=str(item.get("reason")),
        )
    return WatchEvent(str(said.get("type")), item)


def _no_answer(path: str, error: BaseException) -> ApiError:
    return ApiError(f"the API server does not answer {path}: {error!r}")


def _error(status: int, text: bytes, headers: Mapping[str, str], path: str) -> ApiError:
    try:
        answer = compact_json.loads(text)
        message, reason = str(answer["message"]), str(answer.get("reason") or "")
    except (ValueError, KeyError, TypeError):
        message, reason = repr(text[:200]), ""
    wait = headers.get("Retry-After", "")
    return ApiError(
        f"{path}: {status}: {message}",
        status=status,
        reason=reason,
        retry_after_s=min(float(wait), _MOST_RETRY_AFTER_S)
        if wait.isdecimal()
        else 0.0,
    )
