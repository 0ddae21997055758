"""The shim's log, as changes of a disk and as what was promised between them."""

from dataclasses import dataclass

from faults.disk import Op


@dataclass(frozen=True)
class Promise:
    """A handle has said that a step is durable."""

    step: int


def promise(log, step):
    """Writes down that a handle says now that a step is durable."""
    with log.open("ab", buffering=0) as file:
        file.write(f"promise\t{step}\n".encode())


class Log:
    """The log of one experiment, read bit by bit.

    Args:
        file: The file that the shim writes.
    """

    def __init__(self, file):
        self._file = file
        self._at = 0

    def read(self):
        """Returns the changes and promises since it was read last, in order."""
        with self._file.open("rb") as stream:
            stream.seek(self._at)
            content = stream.read()
        self._at += len(content)
        at, found = 0, []
        while at < len(content):
            end = content.index(b"\n", at)
            kind, path, *rest = content[at:end].decode().split("\t")
            at = end + 1
            if kind == "promise":
                found.append(Promise(int(path)))
                continue
            other, offset, size = rest[0], int(rest[1]), int(rest[2])
            data = b""
            if kind == "write":
                data = content[at : at + size]
                at += size
            found.append(Op(kind, path, other, offset, size, data))
        return found
