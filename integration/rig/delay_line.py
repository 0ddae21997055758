"""A switch with long wires between namespaces: compiles `delay_line.c` and runs it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

from rig.namespaces import at, namespace_file, run

SOURCE = Path(__file__).with_suffix(".c")


@functools.cache
def program():
    """The compiled delay line; it is compiled where the cache lacks this source.

    The cache is the folder `DRIVETRAIN_RIG_CACHE`, or one of the user's in the folder
    for temporary files.
    """
    text = SOURCE.read_bytes()
    default = Path(tempfile.gettempdir(), f"drivetrain-rig-{os.getuid()}")
    folder = Path(os.environ.get("DRIVETRAIN_RIG_CACHE", default))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"the cache must be yours, and {folder} is another's")
    file = folder / f"delay-line-{hashlib.sha256(text).hexdigest()[:16]}"
    if not file.exists():
        part = file.with_suffix(f".{os.getpid()}")
        run("cc", "-O2", "-Wall", "-o", str(part), str(SOURCE))
        part.rename(file)
    return file


class DelayLine:
    """Wires of nodes that all take the same time, each way.

    Args:
        rtt_ms: From a node to another one and back, in milliseconds.
    """

    def __init__(self, rtt_ms):
        half_us = round(rtt_ms * 500)
        pipes = {"text": True, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen([program(), str(half_us)], **pipes)

    def attach(self, node, name, address):
        """Gives a namespace its eth0; nodes come in the order of their numbers."""
        self._tell(f"add {namespace_file(name)}")
        at(name, f"addr add {address}/24 dev eth0")

    def shape(self, node, link):
        """Sets the rate of the port that leads to a node; None means no limit."""
        bits, queue = (
            (0, 0) if link is None else (link.bytes_per_s * 8, link.queue_bytes)
        )
        self._tell(f"rate {node} {round(bits)} {queue}")

    def cut(self, node):
        """Pulls the cable of a node."""
        self._tell(f"cut {node}")

    def part(self, one, other):
        """Lets what two nodes send to each other vanish; others reach both."""
        self._tell(f"part {one} {other}")

    def stats(self):
        """What went through so far: packets, bytes, drops, and seconds of the CPU."""
        return json.loads(self._ask("stats"))

    def close(self):
        """Ends the process, and with it the devices."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _tell(self, line):
        answer = self._ask(line)
        if answer != "done":
            raise OSError(f"the delay line was told {line!r}: {answer}")

    def _ask(self, line):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise OSError(f"the delay line ended at {line!r}")
        return answer
