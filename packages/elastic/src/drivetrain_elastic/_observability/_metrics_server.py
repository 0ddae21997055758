"""Metrics of a job, served by its master for Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import tomllib
from importlib.resources import files
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from drivetrain_core import ProgramError
from drivetrain_elastic._client._address import free_port, split_address
from drivetrain_elastic._client._unauthenticated import UnauthenticatedConnections

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from types import ModuleType

    from drivetrain_elastic.protocol import messages as pb

logger = logging.getLogger(__name__)

_PREFIX = "drivetrain_elastic_"
_AS: dict[str, Callable[[Any], float]] = {"len": len, "bool": bool, "float": float}
_HEAD = (
    "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nContent-Length: {}\r\n"
    "Connection: close\r\n\r\n"
)


def import_prometheus() -> ModuleType:
    """Returns the library that writes metrics.

    Raises:
        ProgramError: It is not installed.
    """
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError as error:
        message = (
            'metrics need prometheus-client: pip install "drivetrain-elastic[metrics]"'
        )
        raise ProgramError(message) from error
    return prometheus_client


class MetricsServer:
    """Serves the state of a job over HTTP, at `/metrics`; used from one event loop.

    It only reads; whoever can reach the address can read it, so that it listens where it is
    told to and nowhere else. Connections are those of strangers: few, and short.

    Args:
        get_status: Returns how the job stands.

    Raises:
        ProgramError: prometheus-client is not installed.
    """

    def __init__(self, get_status: Callable[[], Awaitable[pb.Status]]) -> None:
        self._library = import_prometheus()
        self._get_status = get_status
        self._strangers = UnauthenticatedConnections()
        self._server: asyncio.Server | None = None

    async def listen(self, address: str) -> str:
        """Begins to serve, and returns where.

        Args:
            address: `host:port`; port 0 takes one that is free.

        Raises:
            ProgramError: The address cannot be had.
        """
        host, port = split_address(address)
        port = port or free_port()
        try:
            self._server = await asyncio.start_server(self._answer, host, port)
        except OSError as error:
            message = f"metrics cannot be served at {address}: {error}"
            raise ProgramError(message) from error
        found = f"{address.rpartition(':')[0]}:{port}"
        logger.info("metrics are at http://%s/metrics", found)
        return found

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._strangers.add(writer.transport)
        # Whoever says too little or too much, or does not read, is not waited for.
        with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError):
            request = await reader.readuntil(b"\r\n\r\n")
            body = self._library.generate_latest(_Collector(await self._get_status()))
            head = _HEAD.format(self._library.CONTENT_TYPE_LATEST, len(body))
            writer.write(head.encode())
            if not request.startswith(b"HEAD "):
                writer.write(body)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        self._strangers.drop(writer.transport)

    def close(self) -> None:
        """Ends the service."""
        if self._server is not None:
            self._server.close()
        self._strangers.close()


class _Collector:
    """Makes metrics of a state of the job.

    Args:
        status: The state.
    """

    def __init__(self, status: pb.Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Any]:
        """Yields all metrics."""
        status = self._status
        yield from _rows("job", [((), status)])
        # It may fall, when a cause is found for what had none.
        yield _gauge(
            "lost_seconds",
            "Not effective, by what they were lost in and its cause.",
            [((row.what, row.cause), row.seconds) for row in status.time.lost],
            ("what", "cause"),
        )
        nodes = [((node.node,), node) for node in status.nodes]
        yield from _rows("node", nodes, "node")
        for kind, read, label in (
            ("nic", attrgetter("hardware.nics"), attrgetter("name")),
            ("gpu", attrgetter("hardware.gpus"), attrgetter("number")),
        ):
            parts = [
                ((*at, str(label(one))), one)
                for at, node in nodes
                for one in read(node)
            ]
            yield from _rows(kind, parts, "node", kind)
        workers = [
            ((*at, str(one.rank)), one)
            for at, node in nodes
            for one in node.workers
            if one.rank >= 0
        ]
        yield from _rows("worker", workers, "node", "rank")
        sections = [
            ((*at, section), seconds)
            for at, one in workers
            for section, seconds in one.sections_s.items()
        ]
        yield _gauge(
            "worker_section_seconds",
            "Of a step, in a section of the rank's own.",
            sections,
            ("node", "rank", "section"),
        )


@functools.cache
def _table() -> dict[str, list[dict[str, str]]]:
    return tomllib.loads(files(__package__).joinpath("metrics.toml").read_text())


def _rows(
    kind: str, items: Iterable[tuple[tuple[str, ...], Any]], *labels: str
) -> Iterator[Any]:
    """Yields the metrics of the table of one kind of thing."""
    for row in _table()[kind]:
        read, number = attrgetter(row["value"]), _AS[row.get("is", "float")]
        values = [(at, float(number(read(one)))) for at, one in items]
        yield _gauge(row["name"], row["text"], values, labels, row.get("kind", "Gauge"))


def _gauge(
    name: str, text: str, values: Any, labels: tuple[str, ...] = (), kind: str = "Gauge"
) -> Any:
    from prometheus_client import core

    make = getattr(core, f"{kind}MetricFamily")
    family = make(_PREFIX + name, text, labels=labels)
    for at, value in values:
        family.add_metric(at, value)
    return family
