"""Services: whoever connects to the address of one reaches a pod behind it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from drivetrain_cluster_double.selectors import Requirement, Selector
from drivetrain_cluster_double.table import value_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drivetrain_cluster_double.store import Change, Key, Store

__all__ = ["Proxies", "endpoints"]

logger = logging.getLogger(__name__)

_Item = dict[str, Any]
_CHUNK = 1 << 16


def endpoints(
    service: _Item, port: _Item, pods: Iterable[_Item]
) -> list[tuple[str, int]]:
    """Returns where those pods of a service listen that are ready.

    Args:
        service: The service.
        port: Which of its ports.
        pods: All pods that it selects.
    """
    target, found = port.get("targetPort", port["port"]), []
    is_for_all = service["spec"].get("publishNotReadyAddresses")
    for pod in pods:
        ready = value_at(pod, '.status.conditions[?(@.type=="Ready")].status')
        address = value_at(pod, ".status.podIP")
        if not address or "deletionTimestamp" in pod["metadata"]:
            continue
        if ready != "True" and not is_for_all:
            continue
        number = target
        if isinstance(target, str):
            ports = pod["spec"]["containers"][0].get("ports") or ()
            named = (p["containerPort"] for p in ports if p.get("name") == target)
            number = next(named, None)
        if number is not None:
            found.append((address, int(number)))
    return found


class Proxies:
    """Listens on the addresses of services, in a thread of its own.

    Args:
        store: Of the cluster.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._servers: dict[Key, tuple[_Item, list[asyncio.Server]]] = {}
        self._lines: set[asyncio.Task[None]] = set()
        self._turn = itertools.count()
        self._unsubscribe = store.subscribe(self._note)
        self._thread = threading.Thread(
            target=self._run, name="kubernetes-double-proxies", daemon=True
        )

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends, and cuts what is connected."""
        self._unsubscribe()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _note(self, change: Change) -> None:
        if change.table == ("", "services"):
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._follow, change)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        await self._stop.wait()
        for _, servers in self._servers.values():
            for server in servers:
                server.close()
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)
        await asyncio.sleep(0)

    def _follow(self, change: Change) -> None:
        task = self._loop.create_task(self._listen(change))
        self._lines.add(task)
        task.add_done_callback(self._lines.discard)

    async def _listen(self, change: Change) -> None:
        key, item = change.key, change.after.item
        spec, servers = self._servers.pop(key, ({}, []))
        if servers and not change.is_deleted and spec == item["spec"]:
            self._servers[key] = spec, servers
            return
        for server in servers:
            server.close()
        address = item["spec"].get("clusterIP", "None")
        if change.is_deleted or address == "None" or not item["spec"].get("selector"):
            return
        opened: list[asyncio.Server] = []
        self._servers[key] = item["spec"], opened
        for port in item["spec"].get("ports") or ():
            # One that is taken, or is none of this machine's, is not served.
            try:
                server = await asyncio.start_server(
                    partial(self._connect, item, port),
                    address,
                    port["port"],
                )
            except OSError as error:
                logger.warning("service %s: %s", key.name, error)
            else:
                opened.append(server)

    async def _connect(
        self,
        service: _Item,
        port: _Item,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        try:
            there = self._endpoints(service, port)
            if there:
                place = there[next(self._turn) % len(there)]
                other_reader, other_writer = await asyncio.open_connection(*place)
                try:
                    await asyncio.gather(
                        _pump(reader, other_writer), _pump(other_reader, writer)
                    )
                finally:
                    other_writer.transport.abort()
        except OSError as error:
            logger.debug("service %s: %s", service["metadata"]["name"], error)
        finally:
            writer.transport.abort()
            self._lines.discard(task)

    def _endpoints(self, service: _Item, port: _Item) -> list[tuple[str, int]]:
        wanted = service["spec"]["selector"].items()
        selector = Selector(tuple(Requirement(k, "In", (v,)) for k, v in wanted))
        with self._store.lock:
            found = self._store.table(("", "pods")).find(
                service["metadata"]["namespace"], selector
            )
            pods = [row.item for _, row in found]
        return endpoints(service, port, pods)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
