"""Strangers: connections of which it is not known yet who is at the other end.

They are few at a time, for a short time, and may send short messages only, so that what
they take is bounded however many come.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from typing import TYPE_CHECKING

from drivetrain_checkpoint._peers.connection import Connection, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_MOST = 64
_PATIENCE_S = 10.0
_BUSY_PATIENCE_S = 0.5
"""How long each has where all places are taken: saying who one is takes milliseconds."""

_QUIET_S = 10.0


class Strangers:
    """Talks to those who connect, each in a thread of its own; thread-safe.

    Args:
        most_bytes: How long a message of a stranger may be.
    """

    def __init__(self, most_bytes: int) -> None:
        """Knows of nobody yet."""
        self._most_bytes = most_bytes
        self._since: dict[Connection, tuple[float, str]] = {}
        self._changed = threading.Condition()
        self._silent_until = 0.0

    def welcome(
        self, sock: socket.socket, who: str, talk: Callable[[Connection], None]
    ) -> None:
        """Talks to one more, as soon as there is a place.

        Args:
            sock: The connection.
            who: Where it comes from.
            talk: Talks until the conversation ends, and calls `admit` when it knows who
                is there.
        """
        connection = Connection(sock, self._most_bytes)
        with self._changed:
            while len(self._since) >= _MOST:
                self._drop_older(_BUSY_PATIENCE_S)
                self._changed.wait(_BUSY_PATIENCE_S / 10)
            self._since[connection] = time.monotonic(), who
        try:
            threading.Thread(
                target=self._run, args=(connection, talk, who), daemon=True
            ).start()
        except RuntimeError as error:  # there are too many threads
            self.admit(connection)
            connection.close()
            self._report(who, str(error))

    def admit(self, connection: Connection) -> None:
        """Takes note that somebody is no stranger any more."""
        with self._changed:
            if self._since.pop(connection, None):
                connection.trust()
                self._changed.notify_all()

    def expire(self) -> None:
        """Hangs up on those who have said nothing of use for long; call it often."""
        with self._changed:
            self._drop_older(_PATIENCE_S)

    def _drop_older(self, patience_s: float) -> None:
        now = time.monotonic()
        for connection, (since, who) in list(self._since.items()):
            if now - since < patience_s:
                return  # those behind it came later
            del self._since[connection]
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)  # its thread ends
            self._report(who, f"it has not said who it is for {patience_s:g} s")

    def _run(
        self, connection: Connection, talk: Callable[[Connection], None], who: str
    ) -> None:
        try:
            talk(connection)
        except ProtocolError as error:
            self._report(who, str(error))
        except (EOFError, OSError):
            pass  # it has hung up
        finally:
            self.admit(connection)
            connection.close()

    def _report(self, who: str, why: str) -> None:
        """Says who was turned away, in a bounded number of lines."""
        with self._changed:
            now = time.monotonic()
            if now < self._silent_until:
                return
            self._silent_until = now + _QUIET_S
        logger.warning("a stranger at %s was turned away: %s", who, why)
