"""The memory that a save takes beside the state, of all processes together."""

import contextlib
import re
import subprocess
import threading
import time
from pathlib import Path

from methods import method_of
from programs import command_of, last_words, node
from workload import MIB, new_place

from drivetrain_testing import Row

_PERIOD_S = 0.03
_DAEMON_BYTES = 32 * MIB
"""What the daemon's own process may take."""


def held_bytes(place):
    """Anonymous memory of all processes of a measurement, and the machine's shared one.

    Shared memory is counted once for the machine, as the kernel counts it: the shares of
    several processes that map it, read one after the other, do not add up while one of
    them is still mapping it. Nothing else may use shared memory meanwhile.
    """
    meminfo = Path("/proc/meminfo").read_text()
    total = _kib(meminfo, "Shmem")
    for pid in place.processes():
        with contextlib.suppress(OSError):
            total += _kib(Path(f"/proc/{pid}/smaps_rollup").read_text(), "Pss_Anon")
    return total * 1024


def _kib(text, name):
    """The number after a name in one of the kernel's tables."""
    return int(re.search(rf"^{name}: +(\d+) kB", text, re.MULTILINE)[1])


class Watch:
    """The most memory that a measurement held while it ran."""

    def __init__(self, place):
        self._place = place
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.most = 0

    def _look(self):
        while not self._over.is_set():
            self.most = max(self.most, held_bytes(self._place))
            time.sleep(_PERIOD_S)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


def extra_bytes(name, size_mib):
    """What a way to save takes at most, above what its process had with the state.

    Raises:
        RuntimeError: It failed, with what it said last.
    """
    with new_place() as place, node(method_of(name), place):
        arguments = ("memory", name, place.folder, place.runtime, "--mib", size_mib)
        process = subprocess.Popen(
            command_of("peer_trial.py", *arguments),
            env=place.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "state\n"
        before = held_bytes(place)
        with Watch(place) as watch:
            _, errors = process.communicate("\n")
    if process.returncode:
        raise RuntimeError(last_words(errors))
    return watch.most - before


def host_memory(quick):
    """Two generations of the state, and the daemon."""
    size_mib = 256 if quick else 1024
    extra = extra_bytes("drivetrain-checkpoint", size_mib)
    found = extra / (size_mib * MIB)
    return Row(
        figure=f"{found:.2f} x ({extra / MIB:,.0f} MiB beside {size_mib:,} MiB)",
        holds=extra <= 2 * size_mib * MIB + _DAEMON_BYTES,
        details={"extra_bytes": extra, "size_mib": size_mib},
    )
