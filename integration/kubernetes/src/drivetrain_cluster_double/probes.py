"""Probes of readiness: a command, a connection, or a page."""

from __future__ import annotations

import http.client
import socket
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from drivetrain_cluster_double import launcher
from drivetrain_cluster_double.container import launcher_command

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Prober"]


class Prober:
    """Asks again and again whether a process is ready, in a thread of its own.

    Args:
        probe: As a pod says it: with `exec`, `tcpSocket` or `httpGet`.
        address: Of the pod.
        tell: Called when the answer has changed, from the thread.
    """

    def __init__(
        self, probe: dict[str, Any], address: str, tell: Callable[[bool], None]
    ) -> None:
        self._probe, self._address, self._tell = probe, address, tell
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="kubernetes-double-probe", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Asks no more."""
        self._is_stopped.set()

    def _run(self) -> None:
        probe, is_ready, num_same = self._probe, False, 0
        if self._is_stopped.wait(probe.get("initialDelaySeconds", 0)):
            return
        while True:
            found = self._ask(float(probe.get("timeoutSeconds", 1)))
            num_same = num_same + 1 if found != is_ready else 0
            needed = probe.get(
                *(("failureThreshold", 3) if is_ready else ("successThreshold", 1))
            )
            if num_same >= needed and not self._is_stopped.is_set():
                is_ready, num_same = found, 0
                self._tell(is_ready)
            if self._is_stopped.wait(probe.get("periodSeconds", 10)):
                return

    def _ask(self, timeout_s: float) -> bool:
        probe = self._probe
        if "exec" in probe:
            return self._execute(probe["exec"].get("command") or [], timeout_s)
        place = probe.get("tcpSocket") or probe.get("httpGet") or {}
        port = int(place.get("port", 0))
        try:
            if "httpGet" not in probe:
                with socket.create_connection((self._address, port), timeout_s):
                    return True
            line = http.client.HTTPConnection(self._address, port, timeout=timeout_s)
            line.request("GET", place.get("path", "/"))
            return 200 <= line.getresponse().status < 400
        except (OSError, http.client.HTTPException):
            return False

    def _execute(self, command: list[str], timeout_s: float) -> bool:
        # So that it does not outlive this process.
        start = launcher_command()
        process = subprocess.Popen(
            [*start, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            return process.wait(timeout_s) == 0
        except subprocess.TimeoutExpired:
            process.send_signal(launcher.KILL)
            process.wait()
            return False
