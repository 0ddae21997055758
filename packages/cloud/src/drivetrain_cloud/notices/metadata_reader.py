"""Reads metadata endpoints of clouds, which are neither trusted nor always there."""

from __future__ import annotations

import http.client
import io
import ipaddress
import json
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from drivetrain_cloud.notices.sighting import BadAnswerError

if TYPE_CHECKING:
    from collections.abc import Mapping

_LARGEST = 1 << 20
# Alibaba Cloud's endpoint lies in a range that is otherwise that of carriers.
_OTHERS = (
    ipaddress.ip_network("100.100.100.200/32"),
    ipaddress.ip_network("fd00:ec2::254/128"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What an endpoint answered.

    Args:
        status: Of HTTP.
        headers: By name, in lower case.
        body: At most 1 MiB.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    def text(self) -> str:
        """Returns the body as text.

        Raises:
            BadAnswerError: It is none.
        """
        try:
            return self.body.decode().strip()
        except UnicodeDecodeError:
            message = f"expected text, got {self.body[:40]!r}"
            raise BadAnswerError(message) from None

    def json(self) -> Any:
        """Returns the body as what its JSON stands for.

        Raises:
            BadAnswerError: It is no JSON.
        """
        try:
            return json.loads(self.text())
        except (ValueError, RecursionError):
            message = f"expected JSON, got {self.text()[:80]!r}"
            raise BadAnswerError(message) from None


class MetadataReader:
    """Asks one endpoint, and nobody else.

    It speaks only to addresses that never leave the machine or its link, through no
    proxy, follows nothing, and gives up after a time and a size that hold for the whole
    answer.

    Args:
        url: Of the endpoint, such as `http://169.254.169.254`.
        timeout_s: For the whole of an answer.

    Raises:
        ValueError: It is no plain http URL.

    Example:
        >>> MetadataReader("http://192.0.2.1").ask("GET", "/latest")
        Traceback (most recent call last):
        PermissionError: 192.0.2.1 is not link-local: a metadata endpoint never is elsewhere
    """

    def __init__(self, url: str, *, timeout_s: float = 2.0) -> None:
        """Takes the address apart; nobody is asked."""
        self._host, self._port = _place_of(url)
        self._timeout_s = timeout_s

    def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        body: bytes = b"",
        timeout_s: float | None = None,
    ) -> Answer:
        """Returns the answer to one request.

        Args:
            method: `GET`, `PUT` or `POST`.
            path: With its query.
            headers: Besides those of HTTP.
            body: What is sent.
            timeout_s: Instead of the reader's own.

        Raises:
            PermissionError: The address is not link-local.
            OSError: Nobody answers in time.
            BadAnswerError: What comes is not HTTP, or is too large.
        """
        end_s = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        lines += ["Accept-Encoding: identity", "Connection: close"]
        lines += [f"Content-Length: {len(body)}"] if body or method != "GET" else []
        request = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
        with self._connect(end_s) as connection:
            connection.sendall(request)
            return _parse(method, _read(connection, end_s))

    def _connect(self, end_s: float) -> socket.socket:
        """Connects to an address that was looked at, and not to a name twice."""
        found = socket.getaddrinfo(
            self._host, self._port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )
        addresses = [entry[4] for entry in found]
        for address in addresses:
            _check_address(str(address[0]))
        last: OSError = ConnectionError(f"{self._host} has no address")
        for family, kind, protocol, _, address in found:
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(_left(end_s))
                connection.connect(address)
            except OSError as error:
                connection.close()
                last = error
            else:
                return connection
        raise last


def _place_of(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        # A name that no resolver takes raises here, and not at each question.
        host = (parts.hostname or "").encode("idna").decode("ascii")
        if parts.scheme == "http" and host and not parts.username:
            return host, parts.port or 80
    except ValueError:
        pass
    message = f"expected http://HOST[:PORT] of a metadata endpoint, got {url!r}"
    raise ValueError(message)


def _check_address(text: str) -> None:
    address = ipaddress.ip_address(text.partition("%")[0])
    if address.is_link_local or address.is_loopback:
        return
    if not any(
        address in network for network in _OTHERS if network.version == address.version
    ):
        message = f"{text} is not link-local: a metadata endpoint never is elsewhere"
        raise PermissionError(message)


def _left(end_s: float) -> float:
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        message = "the metadata endpoint did not answer in time"
        raise TimeoutError(message)
    return left_s


def _read(connection: socket.socket, end_s: float) -> bytes:
    """Reads until the end, within one time for all of it."""
    found = bytearray()
    while True:
        connection.settimeout(_left(end_s))
        part = connection.recv(1 << 16)
        found += part
        if len(found) > _LARGEST:
            message = f"expected an answer of at most {_LARGEST} bytes, got more"
            raise BadAnswerError(message)
        if not part or _is_whole(found):
            return bytes(found)


def _is_whole(found: bytearray) -> bool:
    """Returns whether all that was announced is there; endpoints may keep connections."""
    head, mark, body = bytes(found).partition(b"\r\n\r\n")
    if not mark:
        return False
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        length = value.strip()
        if name.strip().lower() == b"content-length" and length.isdigit():
            # One of more digits is never there: what is too large ends by itself.
            return len(length) < len(str(_LARGEST)) + 1 and len(body) >= int(length)
    return b" 304 " in head.split(b"\r\n")[0] or b" 204 " in head.split(b"\r\n")[0]


class _Bytes:
    """Bytes that stand for a socket that was read to its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _parse(method: str, data: bytes) -> Answer:
    stand_in: Any = _Bytes(data)
    response = http.client.HTTPResponse(stand_in, method=method)
    try:
        response.begin()
        body = response.read()
    except (http.client.HTTPException, ValueError, OverflowError) as error:
        message = f"expected an answer of HTTP, got {data[:40]!r} ({error})"
        raise BadAnswerError(message) from None
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(status=response.status, headers=headers, body=body)
