"""The metadata endpoints of all four clouds at once, for tests and demonstrations."""

from __future__ import annotations

import json
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

_TOKEN = "a-token"
_MACHINE = "machine-0"


class FakeCloud:
    """Answers as the metadata services of AWS, Google Cloud, Azure and Alibaba Cloud do.

    Args:
        clock_skew_s: By how much its clock is ahead of that of this machine.

    Attributes:
        started: The events of Azure that somebody let begin.

    Example:
        >>> from drivetrain_cloud.notices import Aws, FakeCloud
        >>> with FakeCloud() as fake:
        ...     cloud = Aws(fake.url)
        ...     before = cloud.look()
        ...     fake.reclaim(120)
        ...     print(before, round(cloud.look().remaining_s, -1))
        None 120.0
    """

    def __init__(self, *, clock_skew_s: float = 0.0) -> None:
        """Binds a port of this machine."""
        self.started: list[str] = []
        self._skew = timedelta(seconds=clock_skew_s)
        self._end: datetime | None = None
        self._is_risky = False
        self._changed = threading.Condition()
        self._version = 0
        handler = type("_Handler", (_Handler,), {"cloud": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Returns where it answers."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def reclaim(self, seconds: float) -> None:
        """Says from now on that this node goes.

        Args:
            seconds: After how many.
        """
        self._set(self._now() + timedelta(seconds=seconds))

    def withdraw(self) -> None:
        """Says no longer that this node goes."""
        self._set(None)

    def recommend(self) -> None:
        """Says from now on that this node is at risk, as AWS does."""
        self._is_risky = True

    def __enter__(self) -> Self:
        """Begins to answer."""
        threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it."""
        self._set(self._end)
        self._server.shutdown()
        self._server.server_close()

    def _now(self) -> datetime:
        return datetime.now(UTC) + self._skew

    def _set(self, end: datetime | None) -> None:
        with self._changed:
            self._end = end
            self._version += 1
            self._changed.notify_all()

    def date(self) -> str:
        """Returns its time, as answers have it."""
        return format_datetime(self._now(), usegmt=True)

    def answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, str, dict[str, str]]:
        """Returns status, body and headers of the answer to a request."""
        parts = urlsplit(path)
        if path.startswith("/latest/api/token"):
            return (200, _TOKEN, {}) if method == "PUT" else (405, "", {})
        if path.startswith("/latest/"):
            tokens = {
                headers.get("x-aws-ec2-metadata-token"),
                headers.get("x-aliyun-ecs-metadata-token"),
            }
            return self._token_cloud(parts.path) if _TOKEN in tokens else (401, "", {})
        if path.startswith("/computeMetadata/"):
            if headers.get("metadata-flavor") != "Google":
                return 403, "Metadata-Flavor is missing", {}
            return self._google(parts.path, parse_qs(parts.query))
        if path.startswith("/metadata/") and headers.get("metadata") == "true":
            return self._azure(method, parts.path, body)
        return 404, "", {}

    def _token_cloud(self, path: str) -> tuple[int, str, dict[str, str]]:
        end = self._end
        when = "" if end is None else end.strftime("%Y-%m-%dT%H:%M:%SZ")
        if path.endswith("rebalance") and self._is_risky:
            return 200, json.dumps({"noticeTime": self.date()}), {}
        if end is None:
            return 404, "", {}
        if path.endswith("spot/instance-action"):
            return 200, json.dumps({"action": "terminate", "time": when}), {}
        if path.endswith("spot/termination-time"):
            return 200, when, {}
        return 404, "", {}

    def _google(
        self, path: str, query: dict[str, list[str]]
    ) -> tuple[int, str, dict[str, str]]:
        flavor = {"Metadata-Flavor": "Google"}
        if path.endswith("/id"):
            return 200, "1234567890", flavor
        if path.endswith("/maintenance-event"):
            return 200, "NONE", flavor
        if not path.endswith("/preempted"):
            return 404, "", flavor
        with self._changed:
            if query.get("wait_for_change") == ["true"]:
                seen = query.get("last_etag", [""])[0]
                until_s = time.monotonic() + float(query.get("timeout_sec", ["60"])[0])
                while str(self._version) == seen and time.monotonic() < until_s:
                    self._changed.wait(until_s - time.monotonic())
            said = "FALSE" if self._end is None else "TRUE"
            return 200, said, {**flavor, "ETag": str(self._version)}

    def _azure(
        self, method: str, path: str, body: bytes
    ) -> tuple[int, str, dict[str, str]]:
        if path.endswith("/compute/name"):
            return 200, _MACHINE, {}
        if method == "POST":
            asked = json.loads(body)["StartRequests"]
            self.started += [one["EventId"] for one in asked]
            return 200, "", {}
        events: list[dict[str, Any]] = [_event("other", "machine-9", "")]
        if self._end is not None:
            events.append(_event("ours", _MACHINE, format_datetime(self._end, True)))
        said = {"DocumentIncarnation": self._version, "Events": events}
        return 200, json.dumps(said), {}


def _event(number: str, machine: str, when: str) -> dict[str, Any]:
    return {
        "EventId": number,
        "EventStatus": "Scheduled" if when else "Started",
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": [machine],
        "NotBefore": when,
    }


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says what went wrong, but not that somebody has not waited for the answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    cloud: FakeCloud

    def _do(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        headers = {name.lower(): value for name, value in self.headers.items()}
        status, text, others = self.cloud.answer(
            self.command, self.path, headers, self.rfile.read(length)
        )
        self.send_response_only(status)
        body = text.encode()
        for name, value in {**others, "Date": self.cloud.date()}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = _do  # noqa: N815 - the names of http.server

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""
