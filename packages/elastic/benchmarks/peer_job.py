"""A job of a peer on this machine: its processes, its steps, and what a fault costs it."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

_HERE = Path(__file__).parent
# Lines carry their own times: this only says how long we wait for nothing.
_POLL_S = 0.3
_RECENT_S = 1.0


class PeerError(Exception):
    """The job of a peer does not run, or is not whole in time."""


class PeerJob:
    """Processes of a peer's own environment; a context manager that kills them all."""

    def __init__(self, python, folder):
        self.python = python
        self.folder = Path(folder)
        self.log = self.folder / "steps"
        self.started = {}
        self._keeper = subprocess.Popen(
            [sys.executable, str(_HERE / "peer_keeper.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start(self, name, *arguments, env=None):
        """Starts a command of the peers' interpreter; returns its number."""
        usual = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        # The peers' environment has its own packages.
        usual.pop("PYTHONPATH", None)
        wanted = {
            "command": [str(self.python), *map(str, arguments)],
            "env": {**usual, **(env or {})},
            "output": str(self.folder / f"{name}.txt"),
        }
        self._keeper.stdin.write(json.dumps(wanted) + "\n")
        self._keeper.stdin.flush()
        answer = self._keeper.stdout.readline()
        if not answer:
            raise PeerError(f"{self.python} does not start")
        self.started[name] = int(answer)
        return self.started[name]

    def script(self, name, *arguments):
        """The arguments that run a loop of this folder."""
        return [str(_HERE / f"peer_{name}.py"), "--folder", str(self.log), *arguments]

    def processes(self, name):
        """A command's process, and all that it has started."""
        try:
            first = psutil.Process(self.started[name])
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def lines(self):
        found = [
            json.loads(line)
            for path in self.log.glob("*.jsonl")
            for line in path.read_text().splitlines()
            # One that was killed has not finished its last line.
            if line.endswith("}")
        ]
        return sorted(found, key=lambda line: line["at_s"])

    def text(self):
        return "\n".join(p.read_text() for p in sorted(self.folder.glob("*.txt")))

    def wait_for(self, condition, timeout_s):
        """Waits until the lines are as wanted; returns whether they are in time."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            if condition(self.lines()):
                return True
            if not any(psutil.pid_exists(pid) for pid in self.started.values()):
                return False
            time.sleep(_POLL_S)
        return False

    def wait_until_whole(self, world_size, num_steps, timeout_s=60.0):
        """Waits until all ranks make steps together; returns the latest of each.

        Raises:
            PeerError: They do not, with what was said last.
        """

        def is_whole(lines):
            return all(
                sum(line["rank"] == rank for line in whole(lines)) >= num_steps
                for rank in range(world_size)
            )

        def whole(lines):
            return [line for line in lines if line["world_size"] == world_size]

        if not self.wait_for(is_whole, timeout_s):
            said = (self.text().strip().splitlines() or ["no word"])[-1]
            raise PeerError(f"no {world_size} ranks within {timeout_s:g} s: {said}")
        return {line["rank"]: line for line in whole(self.lines())}

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.close()
        self._keeper.wait(60.0)
        self._keeper.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a fault has cost.

    Args:
        pause_s: Until the last survivor has computed a step again, or, where all workers
            start again, until the first new one has; None for never.
        full_s: Until as many ranks as before have; None for never.
        again: How many steps that some rank had made were made again.
        dropped: How many steps a survivor computed for nothing.
    """

    pause_s: float | None
    full_s: float | None
    again: int
    dropped: int


def outcome(lines, at_s, victims, world_size, *, in_place):
    """Reads an outcome from the lines.

    Args:
        lines: Of all ranks, in order.
        at_s: When the fault was.
        victims: The processes that it hit.
        world_size: Before the fault.
        in_place: Whether the others' processes are to live on.
    """
    before = [line for line in lines if line["at_s"] <= at_s]
    # A step that was under way may end after the fault, with everybody in it.
    known = {(line["pid"], line["epoch"]) for line in before}
    after = [
        line
        for line in lines
        if line["at_s"] > at_s
        and not line["dropped"]
        and (line["pid"], line["epoch"]) not in known
    ]
    first, full = {}, {}
    for line in after:
        first.setdefault(line["pid"], line["at_s"])
        if line["world_size"] == world_size:
            full.setdefault(line["rank"], line["at_s"])
    survivors = {
        line["pid"] for line in before if line["at_s"] > at_s - _RECENT_S
    } - victims
    if in_place:
        ends_s = [first[pid] for pid in survivors if pid in first]
        pause_s = max(ends_s) - at_s if len(ends_s) == len(survivors) else None
    else:
        pause_s = min(first.values()) - at_s if first else None
    again = 0
    if after:
        latest = max(line["step"] for line in before)
        again = max(0, latest + 1 - min(line["step"] for line in after))
    dropped = Counter(
        line["pid"] for line in lines if line["dropped"] and line["at_s"] > at_s
    )
    return Outcome(
        pause_s=pause_s,
        full_s=max(full.values()) - at_s if len(full) == world_size else None,
        again=again,
        dropped=max((dropped[pid] for pid in survivors), default=0),
    )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
