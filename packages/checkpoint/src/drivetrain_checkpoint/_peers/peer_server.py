"""TCP server for the daemons and trainers of other nodes, and how they connect to it.

Whoever connects proves that it knows the job's secret, which never crosses the network:
it answers a challenge, and so does the other side.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

from drivetrain_checkpoint._peers.connection import Connection, ProtocolError
from drivetrain_checkpoint._peers.strangers import Strangers

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_checkpoint._peers.nodes import Node

_CONNECT_S = 10.0
_TICK_S = 0.5
_STRANGER_BYTES = 4096
"""What may come before a proof; the proof itself has 64 letters."""

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
        self._listener.settimeout(_TICK_S)
        self._strangers = Strangers(_STRANGER_BYTES)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def admit(self, secret: str) -> None:
        """Accepts clients that know a secret; the oldest of many is forgotten."""
        if secret not in self._secrets:
            self._secrets = [*self._secrets, secret][-_MOST_SECRETS:]

    def close(self) -> None:
        """Lets nobody in any more; safe in a signal handler."""
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                sock, address = self._listener.accept()
            except TimeoutError:
                self._strangers.expire()
            except OSError:  # too many files are open, or this one no more
                if self._listener.fileno() < 0:
                    return
                time.sleep(_TICK_S)
            else:
                who = f"{address[0]}:{address[1]}"
                self._strangers.welcome(sock, who, self._talk)

    def _talk(self, connection: Connection) -> None:
        challenge = secrets.token_hex(16)
        connection.send({"challenge": challenge})
        reply, _ = connection.receive()
        said, asked = reply.get("proof"), f"client {challenge}"
        secret = next((s for s in self._secrets if _fits(s, asked, said)), None)
        theirs = reply.get("challenge")
        if secret is None or not isinstance(theirs, str) or not theirs.isascii():
            connection.send({"refused": "another job's secret"})
            message = "it does not know the secret of a job here"
            raise ProtocolError(message)
        self._strangers.admit(connection)
        connection.send({"proof": _proof(secret, f"server {theirs}")})
        _limit_time(connection.socket)
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
    connection = Connection(sock, _STRANGER_BYTES)
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
    connection.trust()
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
    if not isinstance(proof, str) or not proof.isascii():
        return False
    return hmac.compare_digest(_proof(secret, challenge), proof)
