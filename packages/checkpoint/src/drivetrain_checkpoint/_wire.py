"""Messages between trainers and the daemon of their node: JSON lines, with descriptors."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import tempfile
import weakref
from pathlib import Path
from typing import Any

from drivetrain_checkpoint._errors import DaemonError

__all__ = ["Connection", "socket_path"]

_LENGTH = struct.Struct("<I")
_MOST_BYTES = 1 << 30


def socket_path(job: str, folder: Path) -> Path:
    """Returns where the daemon of a job listens; only this user can reach it.

    Args:
        job: The job's name.
        folder: Where its checkpoints go.

    Raises:
        DaemonError: The place belongs to someone else.
    """
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    home = base / f"drivetrain-checkpoint-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    found = home.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        message = f"{home} must belong to this user alone (mode 0700)"
        raise DaemonError(message)
    text = f"{job}\0{folder.resolve()}".encode()
    return home / f"{hashlib.sha256(text).hexdigest()[:24]}.sock"


class Connection:
    """One end of a conversation; used by one thread at a time.

    Args:
        sock: A connected Unix socket.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Takes the socket over."""
        self._socket = sock
        # A conversation that nobody can go on with is over.
        weakref.finalize(self, sock.close)

    def send(self, message: dict[str, Any], fd: int | None = None) -> None:
        """Sends a message, and a descriptor with it.

        Raises:
            OSError: The other end is gone.
        """
        text = json.dumps(message, separators=(",", ":")).encode()
        head = _LENGTH.pack(len(text))
        if fd is None:
            self._socket.sendall(head)
        else:
            socket.send_fds(self._socket, [head], [fd])
        self._socket.sendall(text)

    def receive(self) -> tuple[dict[str, Any], int | None]:
        """Returns the next message and the descriptor that came with it.

        Raises:
            EOFError: The other end is gone.
            OSError: Likewise.
        """
        head, fds, _, _ = socket.recv_fds(self._socket, _LENGTH.size, 1)
        fd = fds[0] if fds else None
        while 0 < len(head) < _LENGTH.size:
            more = self._socket.recv(_LENGTH.size - len(head))
            head = head + more if more else b""
        if not head:
            raise EOFError
        (length,) = _LENGTH.unpack(head)
        if length > _MOST_BYTES:
            raise EOFError
        parts, left = [], length
        while left:
            part = self._socket.recv(min(left, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            left -= len(part)
        message: dict[str, Any] = json.loads(b"".join(parts))
        return message, fd

    def close(self) -> None:
        """Ends the conversation."""
        self._socket.close()
