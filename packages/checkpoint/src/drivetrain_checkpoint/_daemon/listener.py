"""Listener: the Unix socket at which a daemon accepts the trainers of its node."""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import TYPE_CHECKING

from drivetrain_checkpoint._peers.connection import address_of, own_folder

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

_TICK_S = 0.2


class Listener:
    """Listens at a path, in place of what was there.

    Args:
        path: Where it listens.
    """

    def __init__(self, path: Path) -> None:
        """Listens from now on."""
        self._path = path
        self._socket = _listen_at(path)
        self._is_deaf = False

    def accept(self) -> socket.socket:
        """Returns the next who connects.

        Raises:
            TimeoutError: Nobody does, for a while.
            OSError: It was closed.
        """
        sock, _ = self._socket.accept()
        sock.settimeout(None)
        return sock

    def is_hidden(self) -> bool:
        """Returns whether nobody finds it, since its socket was deleted."""
        return not self._path.exists()

    def renew(self) -> None:
        """Listens anew, with a new socket at the path.

        Where it cannot, it says so once and stays as it was: the memory must outlive
        that, and the next try may succeed.
        """
        try:
            fresh = _listen_at(self._path)
        except OSError as error:
            if not self._is_deaf:
                logger.warning("cannot listen at %s again: %s", self._path, error)
            self._is_deaf = True
            return
        self._is_deaf = False
        old, self._socket = self._socket, fresh
        old.close()

    def hide(self) -> None:
        """Lets nobody find it any more."""
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Ends `accept`; safe in a signal handler."""
        with contextlib.suppress(OSError):
            self.hide()
            self._socket.shutdown(socket.SHUT_RDWR)


def _listen_at(path: Path) -> socket.socket:
    own_folder(path.parent)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with address_of(path) as address:
        listener.bind(address)
    listener.listen(256)
    listener.settimeout(_TICK_S)
    return listener
