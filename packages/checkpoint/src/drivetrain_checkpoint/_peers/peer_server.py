"""TCP server for the daemons and trainers of other nodes, and how they connect to it.

Whoever connects proves that it knows the job's secret, which never crosses the network:
it answers a challenge, and so does the other side.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import secrets
import socket
import struct
import threading
from typing import TYPE_CHECKING

from drivetrain_checkpoint._peers.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_checkpoint._peers.nodes import Node

logger = logging.getLogger(__name__)

_CONNECT_S = 10.0
_IDLE_S = 60.0
_MOST_SECRETS = 16
"""How many runs, and readers beside them, may know a daemon at one time."""


class PeerServer:
    """Listens for other nodes.

    Args:
        host: The address to listen on.
        port: The port; 0 takes a free one.
        answer: Answers the messages of a connection until it ends.
    """

    def __init__(
        self, host: str, port: int, answer: Callable[[Connection], None]
    ) -> None:
        """Begins to listen; nobody is let in yet.

        Raises:
            OSError: The address or the port is not to be had.
        """
        self.host = host
        self._secrets: list[str] = []
        self._answer = answer
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def admit(self, secret: str) -> None:
        """Accepts clients that know a secret; the oldest of many is forgotten."""
        if secret not in self._secrets:
            self._secrets = [*self._secrets, secret][-_MOST_SECRETS:]

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(sock,), daemon=True).start()

    def _talk(self, sock: socket.socket) -> None:
        connection = Connection(sock)
        with contextlib.closing(connection), contextlib.suppress(OSError, EOFError):
            sock.settimeout(_CONNECT_S)
            challenge = secrets.token_hex(16)
            connection.send({"challenge": challenge})
            reply, _ = connection.receive()
            said, asked = reply.get("proof"), f"client {challenge}"
            secret = next((s for s in self._secrets if _fits(s, asked, said)), None)
            if secret is None:
                logger.warning("a stranger at %s was turned away", sock.getpeername())
                connection.send({"refused": "another job's secret"})
                return
            mine = _proof(secret, f"server {reply.get('challenge')}")
            connection.send({"proof": mine})
            _limit_time(sock)
            self._answer(connection)


def connect_to(node: Node, secret: str) -> Connection:
    """Returns a connection to the daemon of another node.

    Args:
        node: The node.
        secret: The secret of the job.

    Raises:
        OSError: It is not reached, or it is another job's.
    """
    sock = socket.create_connection((node.host, node.port), timeout=_CONNECT_S)
    connection = Connection(sock)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        theirs = connection.receive()[0].get("challenge")
        mine = secrets.token_hex(16)
        proof = _proof(secret, f"client {theirs}")
        answer = connection.ask({"proof": proof, "challenge": mine})
    except EOFError as error:
        connection.close()
        message = f"{node.address} hung up"
        raise ConnectionError(message) from error
    except BaseException:
        connection.close()
        raise
    if not _fits(secret, f"server {mine}", answer.get("proof")):
        connection.close()
        message = f"{node.address} is not a daemon of this job"
        raise ConnectionError(message)
    _limit_time(sock)
    return connection


def _limit_time(sock: socket.socket) -> None:
    """Lets sends and receives fail after a while, also those of the kernel alone."""
    sock.settimeout(None)
    limit = struct.pack("ll", int(_IDLE_S), 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    # A send that has moved a part of its bytes would wait once more for the rest.
    lost_ms = int(_IDLE_S * 1000)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, lost_ms)


def _proof(secret: str, challenge: str) -> str:
    return hmac.new(secret.encode(), challenge.encode(), hashlib.sha256).hexdigest()


def _fits(secret: str, challenge: str, proof: object) -> bool:
    return isinstance(proof, str) and hmac.compare_digest(
        _proof(secret, challenge), proof
    )
