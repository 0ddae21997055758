"""Keeps a copy of all objects of a kind, as the API server tells of their changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes.api_client import ApiError
from drivetrain_elastic.extending import RateLimitedLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from drivetrain_cloud.kubernetes.api_client import ApiClient, WatchEvent

logger = logging.getLogger(__name__)

_Item = dict[str, Any]
_FIRST_WAIT_S = 0.1
_MOST_WAIT_S = 10.0
_NUM_GONE = 20_000
_NOT_FOUND, _EXPIRED = 404, 410


class Informer:
    """Keeps a copy of all objects of a kind; of one event loop.

    What its user writes is put into it at once, so that decisions never rest on less than
    what they themselves have done.

    Args:
        client: Of the API server.
        kind: Of the objects.
        changed: Called with each object that came, changed or went.
        namespace: Of the objects; all by default.
        selector: Of their labels; all by default.
        index: What objects are found by, as the UID of their owner.

    Attributes:
        is_synced: Set once there was a whole list.
    """

    def __init__(
        self,
        client: ApiClient,
        kind: str,
        changed: Callable[[_Item], None],
        *,
        namespace: str = "",
        selector: str = "",
        index: Callable[[_Item], str] = lambda _: "",
    ) -> None:
        self._client = client
        self._kind = kind
        self._changed = changed
        self._namespace, self._selector = namespace, selector
        self._index = index
        self._items: dict[tuple[str, str], _Item] = {}
        self._by_index: dict[str, dict[tuple[str, str], _Item]] = {}
        # UIDs of what went: an answer that is late brings nothing back.
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._rate_limit = RateLimitedLog()
        self.is_synced = asyncio.Event()

    def get(self, namespace: str, name: str) -> _Item | None:
        """Returns an object, or None; nobody may change it."""
        return self._items.get((namespace, name))

    def items(self) -> Iterable[_Item]:
        """Returns all objects."""
        return self._items.values()

    def those(self, index: str) -> list[_Item]:
        """Returns the objects that an index finds."""
        return list(self._by_index.get(index, {}).values())

    def put(self, item: _Item) -> None:
        """Takes what the API server has answered to a write."""
        if item["metadata"]["uid"] not in self._gone:
            self._take(item)

    # ---- following ----

    async def run(self) -> None:
        """Lists, then watches, for ever; a list is made again only when it must be."""
        version, wait_s = "", _FIRST_WAIT_S
        while True:
            began_s = time.monotonic()
            try:
                if not version:
                    version = await self._list()
                watch = self._client.watch(
                    self._kind,
                    version,
                    namespace=self._namespace,
                    selector=self._selector,
                )
                async with contextlib.aclosing(watch) as events:
                    async for event in events:
                        if event.kind != "BOOKMARK":
                            wait_s = _FIRST_WAIT_S
                            self._see(event)
                        version = event.item["metadata"]["resourceVersion"]
                if time.monotonic() - began_s >= _MOST_WAIT_S:
                    wait_s = _FIRST_WAIT_S
                    continue
            except ApiError as error:
                if error.status == _EXPIRED:
                    version = ""
                if self._rate_limit.is_due(str(error)):
                    logger.warning(
                        "the watch of %s goes on after: %s%s",
                        *(self._kind, error, _advice(error)),
                    )
                wait_s = max(wait_s, error.retry_after_s)
            except Exception:
                # What no server should say must not end the operator of all jobs.
                logger.exception("the watch of %s begins anew", self._kind)
                version = ""
            await asyncio.sleep(wait_s * random.uniform(0.8, 1.2))
            wait_s = min(2 * wait_s, _MOST_WAIT_S)

    def _see(self, event: WatchEvent) -> None:
        if event.kind == "DELETED":
            self.forget(event.item)
        else:
            self._take(event.item)

    async def _list(self) -> str:
        found, version = await self._client.list(
            self._kind, namespace=self._namespace, selector=self._selector
        )
        names = {_key(item) for item in found}
        for item in [i for key, i in self._items.items() if key not in names]:
            # What was written after the list was made is not in it.
            if _version(item) <= int(version):
                self.forget(item)
        for item in found:
            self._take(item)
        self._rate_limit.forget()
        self.is_synced.set()
        return version

    def _take(self, item: _Item) -> None:
        key = _key(item)
        known = self._items.get(key)
        same = known is not None and known["metadata"]["uid"] == item["metadata"]["uid"]
        if known is not None and _version(known) >= _version(item):
            return
        if known is not None and not same:
            self.forget(known)
        self._items[key] = item
        if known is not None and same and self._index(known) != self._index(item):
            self._by_index.get(self._index(known), {}).pop(key, None)
        self._by_index.setdefault(self._index(item), {})[key] = item
        self._changed(item)

    def forget(self, item: _Item) -> None:
        """Takes that an object is gone."""
        key, uid = _key(item), item["metadata"]["uid"]
        self._gone[uid] = None
        while len(self._gone) > _NUM_GONE:
            self._gone.popitem(last=False)
        known = self._items.get(key)
        if known is None or known["metadata"]["uid"] != uid:
            return
        del self._items[key]
        group = self._by_index.get(self._index(known), {})
        group.pop(key, None)
        if not group:
            self._by_index.pop(self._index(known), None)
        self._changed(item)


def _key(item: _Item) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _version(item: _Item) -> int:
    return int(item["metadata"]["resourceVersion"])


def _advice(error: ApiError) -> str:
    """Returns what to do about an error, where that is known."""
    if error.status != _NOT_FOUND:
        return ""
    return (
        "; the cluster does not know this kind: apply what `drivetrain-cloud operator "
        "--definitions` prints (with --training-jobs for TrainingJobs), with `kubectl "
        "apply -f -`"
    )
