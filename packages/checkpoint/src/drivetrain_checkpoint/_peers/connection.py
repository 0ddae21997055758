"""Connections of trainers and daemons: framed JSON, file descriptors, raw bytes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import socket
import struct
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._errors import DaemonError

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENGTH = struct.Struct("<I")
_MOST_BYTES = 16 << 20
"""How long a message may be: the table of 100,000 nodes fits."""

_PIECE_BYTES = 256 << 10
_MOST_PATH_BYTES = 100


class ProtocolError(ConnectionError):
    """What came is no message; the conversation cannot go on."""


def socket_path(job: str, url: str) -> Path:
    """Returns where the daemon of a job listens; only this user can reach it.

    Args:
        job: The job's name.
        url: Where its checkpoints go, as all of its processes call it.

    Raises:
        DaemonError: The place belongs to someone else.
    """
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    home = base / f"drivetrain-checkpoint-{os.getuid()}"
    own_folder(home)
    text = f"{job}\0{url}".encode()
    return home / f"{hashlib.sha256(text).hexdigest()[:24]}.sock"


def own_folder(home: Path) -> None:
    """Makes the folder of the sockets, and makes sure that it is this user's alone.

    Raises:
        DaemonError: It cannot be made, or belongs to someone else.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        message = (
            f"{home} cannot be made: {error.strerror}. The daemon listens in a folder of "
            "XDG_RUNTIME_DIR, or of that for temporary files"
        )
        raise DaemonError(message) from error
    found = home.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        message = f"{home} must belong to this user alone (mode 0700)"
        raise DaemonError(message)


@contextlib.contextmanager
def address_of(path: Path) -> Iterator[str]:
    """Gives a socket's address, also where its path is longer than addresses may be."""
    if len(os.fsencode(path)) < _MOST_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class Connection:
    """One end of a conversation; used by one thread at a time.

    Args:
        sock: A connected socket; descriptors go through those of Unix only.
        most_bytes: How long a message may be that comes.
    """

    def __init__(self, sock: socket.socket, most_bytes: int = _MOST_BYTES) -> None:
        """Takes the socket over."""
        self.socket = sock
        self._most_bytes = most_bytes
        # A conversation that nobody can go on with is over.
        weakref.finalize(self, sock.close)

    def trust(self) -> None:
        """Takes messages of any length from now on: it is known who the other is."""
        self._most_bytes = _MOST_BYTES

    def send(self, message: dict[str, Any], fd: int | None = None) -> None:
        """Sends a message, and a descriptor with it.

        Raises:
            DaemonError: It is longer than messages may be.
            OSError: The other end is gone.
        """
        text = json.dumps(message, separators=(",", ":")).encode()
        if len(text) > _MOST_BYTES:
            too_long = f"a message has at most {_MOST_BYTES:,} bytes, not {len(text):,}"
            raise DaemonError(too_long)
        head = _LENGTH.pack(len(text))
        if fd is None:
            self.socket.sendall(head)
        else:
            socket.send_fds(self.socket, [head], [fd])
        self.socket.sendall(text)

    def receive(self) -> tuple[dict[str, Any], int | None]:
        """Returns the next message and the descriptor that came with it.

        Raises:
            EOFError: The other end is gone.
            ProtocolError: What came is no message.
            DaemonError: This process may open no more descriptors.
            OSError: The other end is gone.
        """
        head = b""
        fds: list[int] = []
        if self.socket.family == socket.AF_UNIX:
            head, fds, flags, _ = socket.recv_fds(self.socket, _LENGTH.size, 1)
            if flags & socket.MSG_CTRUNC:
                text = "no descriptor is left for the memory of a rank: raise ulimit -n"
                raise DaemonError(text)
            if not head:
                raise EOFError
        try:
            head += self.receive_bytes(_LENGTH.size - len(head))
            return self._message(*_LENGTH.unpack(head)), fds[0] if fds else None
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise

    def _message(self, length: int) -> dict[str, Any]:
        if length > self._most_bytes:
            text = f"a message of {length:,} bytes, where {self._most_bytes:,} may come"
            raise ProtocolError(text)
        try:
            message = json.loads(self.receive_bytes(length))
        except (ValueError, RecursionError) as error:
            text = f"what came is no message: {error}"
            raise ProtocolError(text) from error
        if not isinstance(message, dict):
            text = f"a {type(message).__name__} came, which is no message"
            raise ProtocolError(text)
        return message

    def receive_bytes(self, length: int) -> bytes:
        """Returns raw bytes; memory is taken as they come, not as they are announced.

        Raises:
            EOFError: The other end is gone before.
            OSError: Likewise.
        """
        found = bytearray()
        while len(found) < length:
            part = self.socket.recv(min(length - len(found), _PIECE_BYTES))
            if not part:
                raise EOFError
            found += part
        return bytes(found)

    def receive_into(self, target: memoryview) -> None:
        """Fills memory with the raw bytes that follow a message.

        Raises:
            EOFError: The other end is gone before.
            OSError: Likewise.
        """
        done = 0
        while done < len(target):
            got = self.socket.recv_into(target[done:])
            if not got:
                raise EOFError
            done += got

    def is_hung_up(self) -> bool:
        """Whether the other end is gone; messages of it may still be there."""
        poll = select.poll()
        try:
            poll.register(self.socket, 0)
        except ValueError:
            return True  # this end is closed
        return bool(poll.poll(0))

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sends a message and returns the answer."""
        self.send(message)
        return self.receive()[0]

    def close(self) -> None:
        """Ends the conversation."""
        self.socket.close()
