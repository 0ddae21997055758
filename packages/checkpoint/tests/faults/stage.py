"""A place for one experiment: a folder, trainers, their daemon, and faults."""

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

from drivetrain_checkpoint import Checkpointer
from drivetrain_testing import is_alive
from faults.shim import Control
from faults.state import JOB, SMALL
from faults.trainers import ANSWER_S, Settings, Trainers


def await_true(condition, timeout_s=ANSWER_S):
    """Waits for what announces itself nowhere; it must come true."""
    pause = threading.Event()
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, condition
        pause.wait(0.001)
    return found


class Stage:
    """Everything of one experiment; leaving it ends every process.

    While it stands, the test's own process belongs to the job: what it restores comes
    from the memory of the same daemon.

    Args:
        base: An empty folder.
        library: The shim.
    """

    def __init__(self, base, library):
        self.root = base.resolve() / "disk"
        # Two folders that the daemon has to make.
        self.folder = self.root / "runs" / "one"
        # Not below base: the name of a socket must be short.
        self._runtime = Path(tempfile.mkdtemp(prefix="faults-"))
        self._base = base
        self._library = library
        self._trainers = []
        self.root.mkdir(parents=True)
        self.control = Control(base / "control")

    def __enter__(self):
        self._outside = os.environ.get("XDG_RUNTIME_DIR")
        os.environ["XDG_RUNTIME_DIR"] = str(self._runtime)
        return self

    def __exit__(self, *_):
        self.control.disarm()
        for trainers in self._trainers:
            trainers.kill()
        self.kill_daemon()
        shutil.rmtree(self._runtime)
        if self._outside is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = self._outside

    def start(self, world_size=1, *, keep=2, sizes=SMALL, spoiled=True, **options):
        """Returns trainers that save here.

        Args:
            world_size: The number of ranks.
            keep: How many checkpoints stay.
            sizes: The elements of the tensors.
            spoiled: Whether the shim stands between them and their storage.
            options: More of what ranks are told.
        """
        environment = {"XDG_RUNTIME_DIR": str(self._runtime)}
        if spoiled:
            environment |= self.control.environment(self._library, self.root)
        settings = Settings(
            folder=self.folder,
            meeting=self._base / f"meeting{len(self._trainers)}",
            world_size=world_size,
            keep=keep,
            sizes=sizes,
            environment=environment,
            **options,
        )
        trainers = Trainers(settings)
        self._trainers.append(trainers)
        return trainers

    def checkpointer(self, keep=2):
        """Returns a checkpointer of the job in this process."""
        return Checkpointer(self.folder, job=JOB, keep=keep)

    def daemons(self):
        """Returns the processes of the daemons that serve here."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (place / "cmdline").read_bytes()
                if str(self._runtime).encode() in line and is_alive(int(place.name)):
                    found.append(int(place.name))
        return found

    def daemon(self):
        """Returns the process of the daemon."""
        return await_true(self.daemons)[0]

    def is_traced(self):
        """Whether all threads of the daemon are under a tracer."""
        tasks = Path(f"/proc/{self.daemon()}/task").glob("*/status")
        return all("TracerPid:\t0\n" not in task.read_text() for task in tasks)

    def kill_daemon(self):
        """Ends the daemons that serve here."""
        for pid in self.daemons():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            await_true(lambda pid=pid: not is_alive(pid))
