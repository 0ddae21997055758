"""Metrics of a job, served by its master for Prometheus."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from drivetrain_core import DrivetrainError, ProgramError
from drivetrain_elastic._client._address import split_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from drivetrain_elastic.protocol import messages as pb

logger = logging.getLogger(__name__)

_PREFIX = "drivetrain_elastic_"


def import_prometheus() -> ModuleType:
    """Returns the library that serves metrics.

    Raises:
        ProgramError: It is not installed.
    """
    try:
        import prometheus_client
        import prometheus_client.registry
    except ImportError as error:
        message = (
            'metrics need prometheus-client: pip install "drivetrain-elastic[metrics]"'
        )
        raise ProgramError(message) from error
    return prometheus_client


class MetricsServer:
    """Serves the state of a job over HTTP, at `/metrics`, from a thread of its own.

    It only reads; whoever can reach the address can read it, so that it listens where it is
    told to and nowhere else.

    Args:
        address: `host:port`; port 0 takes one that is free.
        get_status: Returns how the job stands; called in another thread.

    Attributes:
        address: Where it listens.

    Raises:
        ProgramError: The address cannot be had, or prometheus-client is not installed.
    """

    def __init__(self, address: str, get_status: Callable[[], pb.Status]) -> None:
        host, port = split_address(address)
        prometheus_client = import_prometheus()
        registry = prometheus_client.registry.CollectorRegistry()
        registry.register(_Collector(get_status))
        try:
            self._server, self._thread = prometheus_client.start_http_server(
                port, addr=host, registry=registry
            )
        except OSError as error:
            message = f"metrics cannot be served at {address}: {error}"
            raise ProgramError(message) from error
        self.address = f"{address.rpartition(':')[0]}:{self._server.server_port}"
        logger.info("metrics are at http://%s/metrics", self.address)

    def close(self) -> None:
        """Ends the service."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Collector:
    """Makes metrics of the state at the time when somebody asks.

    Args:
        get_status: Returns it.
    """

    def __init__(self, get_status: Callable[[], pb.Status]) -> None:
        self._get_status = get_status

    def describe(self) -> list[Any]:
        """Returns nothing, so that nothing is asked for as it is registered."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yields all metrics; that of a master that does not answer says so."""
        try:
            status = self._get_status()
        except (DrivetrainError, TimeoutError) as error:
            logger.warning("no metrics: %s", error)
            yield _gauge("up", "Whether the master answers.", [((), 0.0)])
            return
        yield _gauge("up", "Whether the master answers.", [((), 1.0)])
        yield from _of_the_job(status)
        yield from _of_nodes(status)
        yield from _of_workers(status)


def _gauge(
    name: str, text: str, values: Any, labels: tuple[str, ...] = (), kind: str = "Gauge"
) -> Any:
    from prometheus_client import core

    make = getattr(core, f"{kind}MetricFamily")
    family = make(_PREFIX + name, text, labels=labels)
    for at, value in values:
        family.add_metric(at, value)
    return family


def _of_the_job(status: pb.Status) -> Iterator[Any]:
    time = status.time
    for name, text, value in (
        ("world_epoch", "The number of the world of ranks.", status.epoch),
        ("world_size", "The ranks of the world.", status.world_size),
        ("excluded_machines", "Machines that may not take part.", len(status.excluded)),
        ("ended", "Whether the job has ended.", float(bool(status.ended))),
    ):
        yield _gauge(name, text, [((), value)])
    for name, text, value in (
        ("steps", "Steps that count.", time.num_steps),
        ("wall_seconds", "Since the job began.", time.total_s),
        (
            "effective_seconds",
            "In steps that count, at full strength and speed.",
            time.effective_s,
        ),
    ):
        yield _gauge(name, text, [((), value)], kind="Counter")
    # It may fall, when a cause is found for what had none.
    yield _gauge(
        "lost_seconds",
        "Not effective, by what they were lost in and its cause.",
        [((row.what, row.cause), row.seconds) for row in time.lost],
        ("what", "cause"),
    )


def _of_nodes(status: pb.Status) -> Iterator[Any]:
    nodes: list[tuple[tuple[str, ...], Any]] = [((n.node,), n) for n in status.nodes]
    yield from _gauges(
        (
            ("node_silent_seconds", "Since it was heard of.", lambda n: n.silent_s),
            (
                "node_cpu_share",
                "Of all its processors.",
                lambda n: n.hardware.cpu_share,
            ),
            ("node_memory_bytes", "In use.", lambda n: n.hardware.memory_used),
            ("node_alerts", "What is not as it should be.", lambda n: len(n.alerts)),
        ),
        nodes,
        ("node",),
    )
    nics = [
        ((*name, nic.name), nic) for name, node in nodes for nic in node.hardware.nics
    ]
    yield from _gauges(
        (
            ("nic_received_bytes_per_second", "By the port.", lambda n: n.received),
            ("nic_sent_bytes_per_second", "By the port.", lambda n: n.sent),
            ("nic_up", "Whether the port is up.", lambda n: n.is_up),
            ("nic_errors", "Packets damaged or dropped.", lambda n: n.errors),
        ),
        nics,
        ("node", "nic"),
    )
    gpus = [
        ((*name, str(gpu.number)), gpu)
        for name, node in nodes
        for gpu in node.hardware.gpus
    ]
    yield from _gauges(
        (
            ("gpu_busy_share", "Of the time.", lambda g: g.busy_share),
            ("gpu_memory_bytes", "In use.", lambda g: g.memory_used),
            ("gpu_temperature_celsius", "Of the chip.", lambda g: g.temperature_c),
            ("gpu_ecc_errors", "That were not corrected.", lambda g: g.ecc_errors),
            ("gpu_faulty", "Whether it has a fault.", lambda g: bool(g.fault)),
        ),
        gpus,
        ("node", "gpu"),
    )


def _of_workers(status: pb.Status) -> Iterator[Any]:
    # By rank: names of workers are new with each start, and would fill any database.
    workers: list[tuple[tuple[str, ...], Any]] = [
        ((node.node, str(one.rank)), one)
        for node in status.nodes
        for one in node.workers
        if one.rank >= 0
    ]
    yield from _gauges(
        (
            ("worker_step", "The last step of the rank.", lambda w: w.step),
            ("worker_step_seconds", "How long that took.", lambda w: w.step_s),
            (
                "worker_slowness",
                "How many times as long as others it takes by itself.",
                lambda w: w.slowness,
            ),
        ),
        workers,
        ("node", "rank"),
    )
    sections = [
        ((*name, section), seconds)
        for name, one in workers
        for section, seconds in one.sections_s.items()
    ]
    yield _gauge(
        "worker_section_seconds",
        "Of a step, in a section of the rank's own.",
        sections,
        ("node", "rank", "section"),
    )


def _gauges(table: Any, items: Any, labels: tuple[str, ...]) -> Iterator[Any]:
    for name, text, read in table:
        values = [(at, float(read(one))) for at, one in items]
        yield _gauge(name, text, values, labels)
