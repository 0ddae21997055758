"""Services: whoever connects to the address of one reaches a pod behind it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from asyncio import StreamReader, StreamWriter
from functools import partial
from typing import Any

from drivetrain_cluster_double.loop_thread import LoopThread
from drivetrain_cluster_double.selectors import Requirement, Selector
from drivetrain_cluster_double.store import Change, Key, Store
from drivetrain_cluster_double.table import value_at

logger = logging.getLogger(__name__)

_Item = dict[str, Any]


class Proxies:
    """Listens on the addresses of services, in a thread that others use as well.

    Args:
        store: Of the cluster.
        thread: In which it works.
    """

    def __init__(self, store: Store, thread: LoopThread) -> None:
        self._store, self._thread = store, thread
        self._servers: dict[Key, asyncio.Task[None]] = {}
        self._turn = itertools.count()
        self.stop = store.subscribe(self._note)

    def _note(self, change: Change) -> None:
        if change.table == ("", "services") and (
            change.is_deleted or not change.before
        ):
            self._thread.call(self._follow, change)

    def _follow(self, change: Change) -> None:
        if (there := self._servers.pop(change.key, None)) is not None:
            there.cancel()
        spec = change.after.item["spec"]
        if (
            not change.is_deleted
            and spec["clusterIP"] != "None"
            and spec.get("selector")
        ):
            task = self._thread.run(self._listen(change.after.item))
            self._servers[change.key] = task

    async def _listen(self, service: _Item) -> None:
        address, port = service["spec"]["clusterIP"], service["spec"]["ports"][0]
        lines: set[asyncio.Task[Any]] = set()
        serve = partial(self._connect, service, port, lines)
        try:
            server = await asyncio.start_server(serve, address, port["port"])
        except OSError as error:
            # One that is taken, or is none of this machine's, is not served.
            logger.warning("service %s: %s", service["metadata"]["name"], error)
            return
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for line in lines:
                line.cancel()

    async def _connect(
        self,
        service: _Item,
        port: _Item,
        lines: set[asyncio.Task[Any]],
        reader: StreamReader,
        writer: StreamWriter,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        lines.add(task)
        try:
            if there := self._endpoints(service):
                place = there[next(self._turn) % len(there)]
                target = port.get("targetPort", port["port"])
                far_reader, far_writer = await asyncio.open_connection(place, target)
                try:
                    pumps = _pump(reader, far_writer), _pump(far_reader, writer)
                    await asyncio.gather(*pumps)
                finally:
                    far_writer.transport.abort()
        except OSError as error:
            logger.debug("service %s: %s", service["metadata"]["name"], error)
        finally:
            writer.transport.abort()
            lines.discard(task)

    def _endpoints(self, service: _Item) -> list[str]:
        """Returns the addresses of those pods of a service that are ready."""
        wanted = service["spec"]["selector"].items()
        selector = Selector(tuple(Requirement(k, "In", (v,)) for k, v in wanted))
        namespace = service["metadata"]["namespace"]
        with self._store.lock:
            found = list(self._store.table(("", "pods")).find(namespace, selector))
        pods = [row.item for _, row in found]
        if not service["spec"].get("publishNotReadyAddresses"):
            ready = '.status.conditions[?(@.type=="Ready")].status'
            pods = [pod for pod in pods if value_at(pod, ready) == "True"]
        there = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        addresses = (pod["status"].get("podIP") for pod in there)
        return [address for address in addresses if address]


async def _pump(reader: StreamReader, writer: StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
