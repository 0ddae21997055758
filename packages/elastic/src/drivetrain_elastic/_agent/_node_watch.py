"""What a node is and how it does, for heartbeats, and what it is alarmed about."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import time
from typing import TYPE_CHECKING

import psutil

from drivetrain_core import machine_limits
from drivetrain_elastic._agent._diagnostician import clean_text
from drivetrain_elastic._agent._use import Use, UseMeter
from drivetrain_elastic.decisions.alerts import (
    AlertConfig,
    NodeReading,
    judge_node,
    news_of,
)
from drivetrain_elastic.decisions.traffic import (
    TrafficLevel,
    TrafficState,
    judge_traffic,
)
from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from drivetrain_elastic._agent._diagnostician import Diagnostician
    from drivetrain_health.failures import GpuReading

logger = logging.getLogger(__name__)

_TRAFFIC_S = 0.1
_NODE_S = 0.5
_GPUS_S = 5.0
_USE_S = 5.0
_LEAST_RATE = 100e3  # bytes a second


class NodeWatch:
    """Reads a node now and then; used from one event loop.

    Args:
        diagnostician: Has the readers of the node.
        alert: Takes an alert for the master.
        is_training: Returns whether workers make steps, so that traffic is to be expected.
    """

    def __init__(
        self,
        diagnostician: Diagnostician,
        *,
        alert: Callable[[pb.Alert], None],
        is_training: Callable[[], bool],
    ) -> None:
        self._diagnostician = diagnostician
        self._alert = alert
        self._is_training = is_training
        self._config = AlertConfig()
        self._traffic_of: dict[str, TrafficState] = {}
        self._alerts: dict[str, str] = {}
        self._gpus: Sequence[GpuReading] = ()
        self._traffic = ""
        self._last_rates: dict[str, tuple[float, int, int]] = {}
        self._rates: dict[str, tuple[float, float]] = {}
        self._was_training = False
        self._broken: list[pb.Alert] = []
        self._failing: set[str] = set()
        self._meter = UseMeter()
        self._use: Use | None = None

    def alerts(self) -> list[pb.Alert]:
        """Returns all that the node is alarmed about, for a master that is new."""
        now = [_alert(kind, why) for kind, why in self._alerts.items()]
        return [*now, *self._broken]

    async def run(self) -> None:
        """Watches until it is cancelled."""
        with self._bearing("processors"):
            psutil.cpu_percent()
        next_node_s = next_gpus_s = next_use_s = 0.0
        while True:
            with self._bearing("traffic"):
                self._look_at_traffic()
            now_s = time.monotonic()
            if now_s >= next_gpus_s:
                next_gpus_s = now_s + _GPUS_S
                with self._bearing("devices"):
                    await self._look_at_devices()
            if now_s >= next_use_s:
                next_use_s = now_s + _USE_S
                with self._bearing("use"):
                    self._use = self._meter.read()
            if now_s >= next_node_s:
                next_node_s = now_s + _NODE_S
                with self._bearing("rates of the network"):
                    self._measure_rates()
                with self._bearing("memory and devices"):
                    self._judge()
            await asyncio.sleep(_TRAFFIC_S)

    @contextlib.contextmanager
    def _bearing(self, what: str) -> Iterator[None]:
        """Lets the agent go on if something of its node cannot be read."""
        try:
            yield
        except Exception as error:
            # Containers hide files, devices vanish, drivers break: no reason to stop training.
            if what not in self._failing:
                self._failing.add(what)
                logger.warning(
                    "the %s of this node cannot be read: %s: %s",
                    *(what, type(error).__name__, error),
                    exc_info=True,
                )

    def _look_at_traffic(self) -> None:
        now_s, is_training = time.monotonic(), self._is_training()
        has_changed = is_training != self._was_training
        self._was_training = is_training
        before, self._traffic = self._traffic, ""
        for port, samples in self._diagnostician.network.take().items():
            state = self._traffic_of.get(port)
            if state is None:
                state = TrafficState()
                self._traffic_of[port] = state
                has_changed = True
            if has_changed:
                if is_training:
                    state.resume()
                else:
                    state.pause()
            for at_s, num_bytes in samples:
                state.add(at_s, num_bytes)
            verdict = judge_traffic(now_s, state)
            is_low = verdict.level in {TrafficLevel.DROPPED, TrafficLevel.SILENT}
            # What is less is no training, but what else machines say to each other.
            if is_low and verdict.usual >= _LEAST_RATE:
                self._traffic = f"{port}: {verdict.reason}"
        if bool(before) != bool(self._traffic):
            self._judge()

    async def _look_at_devices(self) -> None:
        self._gpus = await self._diagnostician.read_gpus()
        for kind, failure in await self._diagnostician.look():
            alert = pb.Alert(kind=kind, reason=failure.evidence, failure=failure)
            self._broken.append(alert)
            self._alert(alert)

    def _judge(self) -> None:
        memory = machine_limits.memory()
        reading = NodeReading(
            memory_share=1.0 - memory.available / memory.total,
            shared_memory_share=_share_of("/dev/shm"),
            gpus=self._gpus,
            network=self._diagnostician.network.readings(),
            traffic=self._traffic,
        )
        now = judge_node(reading, self._alerts, self._config)
        news = news_of(self._alerts, now)
        self._alerts = now
        for kind, why in news.begun.items():
            self._alert(_alert(kind, why))
        for kind, why in news.over.items():
            self._alert(_alert(kind, why, is_over=True))

    def _measure_rates(self) -> None:
        now_s = time.monotonic()
        for name, one in psutil.net_io_counters(pernic=True).items():
            before = self._last_rates.get(name)
            self._last_rates[name] = now_s, one.bytes_recv, one.bytes_sent
            if before is not None and now_s > before[0]:
                past_s = now_s - before[0]
                # Counters may begin anew.
                received = max(0, one.bytes_recv - before[1]) / past_s
                sent = max(0, one.bytes_sent - before[2]) / past_s
                self._rates[name] = received, sent

    def hardware(self) -> pb.Hardware:
        """Returns what a heartbeat says of the node, as far as it can be read."""
        found = pb.Hardware(pod=_pod(), missing=self._diagnostician.missing)
        with self._bearing("addresses"):
            found.addresses.extend(_addresses())
        with self._bearing("processors"):
            found.cpu_share = psutil.cpu_percent() / 100
        with self._bearing("memory"):
            memory = machine_limits.memory()
            found.memory_used = memory.total - memory.available
            found.memory_total = memory.total
        if self._use is not None:
            found.used_cpus, found.used_memory = self._use
        with self._bearing("GPUs"):
            found.gpus.extend([_gpu_message(one) for one in self._gpus])
        with self._bearing("network ports"):
            found.nics.extend(self._nics())
        return found

    def _nics(self) -> list[pb.Nic]:
        up = {name: one.isup for name, one in psutil.net_if_stats().items()}
        return [
            pb.Nic(
                name=name,
                received=self._rates.get(name, (0.0, 0.0))[0],
                sent=self._rates.get(name, (0.0, 0.0))[1],
                errors=one.errin + one.errout + one.dropin + one.dropout,
                is_up=up.get(name, False),
            )
            for name, one in psutil.net_io_counters(pernic=True).items()
        ]


def _alert(kind: str, why: str, *, is_over: bool = False) -> pb.Alert:
    return pb.Alert(kind=kind, reason=clean_text(why), is_over=is_over)


def _gpu_message(one: GpuReading) -> pb.Gpu:
    faults = [
        *(["lost"] if one.is_lost else []),
        *(f"xid {xid}" for xid in one.xids),
        *([one.recovery] if one.recovery else []),
        *(["rows of its memory cannot be replaced"] if one.remap_failed else []),
    ]
    return pb.Gpu(
        number=one.index,
        name=one.name,
        busy_share=one.busy_share,
        memory_used=one.memory_used,
        memory_total=one.memory_total,
        temperature_c=one.temperature_c or 0.0,
        ecc_errors=one.ecc_uncorrected,
        fault=", ".join(faults) or one.missing,
    )


def _addresses() -> list[str]:
    return sorted(
        one.address
        for found in psutil.net_if_addrs().values()
        for one in found
        if one.family == socket.AF_INET and not one.address.startswith("127.")
    )


def _pod() -> str:
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        return ""
    return os.environ.get("POD_NAME") or os.environ.get("HOSTNAME", "")


def _share_of(path: str) -> float:
    try:
        return psutil.disk_usage(path).percent / 100
    except OSError:
        return math.nan
