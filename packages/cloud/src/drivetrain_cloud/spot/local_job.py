"""A whole spot job on this machine: a master, a pool, and a supervisor."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from drivetrain_cloud.spot.config import Recovery
from drivetrain_cloud.spot.local_pool import LocalPool
from drivetrain_cloud.spot.master_job import MasterJob
from drivetrain_cloud.spot.supervisor import Supervisor
from drivetrain_cloud.spot.usage_file import record_usage, write_usage
from drivetrain_cloud.spot.worker_count import first_wants
from drivetrain_core import DistributedError, ProgramError
from drivetrain_elastic.extending import MasterClient, make_token, write_token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import IO

    from drivetrain_cloud.spot.config import SpotConfig
    from drivetrain_cloud.spot.local_pool import CapacityChange
    from drivetrain_cloud.spot.usage_file import UsageRecord
    from drivetrain_cloud.spot.worker_count import CountConfig

logger = logging.getLogger(__name__)

_END_S = 10.0
_RECORD_S = 10.0


class LocalSpotJob:
    """A job whose nodes are processes that are taken away; a context manager.

    Args:
        program: What workers run: a script and its arguments, or `-m`, a module and its.
        config: What nodes it wants.
        trace: How many spot nodes there can be, by time.
        folder: For the journal, the token, the output of each node, and the record of who
            was there (`usage.json`).
        num_workers: That train on each node.
        clouds: As which cloud a node's metadata endpoint answers, and how long before it
            is taken away.
        boot_s: How long a node takes until its agent starts.
        seed: Of which node is taken away.
        count: What a node must be worth, if their number follows what they bring.
        offer: What a list of prices calls a node, for the record of what was used.
        options: More of `drivetrain-elastic run`.
        env: Of agents and workers, besides this process's.

    Attributes:
        folder: As given.
        pool: The nodes.
        supervisor: What decides and carries out; `run` it.
        client: Of the job's master.
    """

    def __init__(
        self,
        program: Sequence[str],
        config: SpotConfig,
        trace: Sequence[CapacityChange],
        *,
        folder: str | os.PathLike[str],
        num_workers: int = 1,
        clouds: Sequence[tuple[str, float]] = (("aws", 120.0), ("gcp", 30.0)),
        boot_s: float = 0.0,
        seed: int = 0,
        count: CountConfig | None = None,
        offer: str = "",
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._nodes, self._recorded_s = config.nodes, -math.inf
        self._program = [*program]
        self._env = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        most = config.most if config.recovery == Recovery.RESIZE else config.nodes
        most = most if count is None else max(most, count.most)
        self._options = [
            *("--nproc-per-node", str(num_workers), "--standbys", "0"),
            # Those that will be taken away train on beside those that replace them.
            *("--nnodes", f"{config.least}:{2 * most}"),
            *("--last-call-s", "0", "--patience-s", "inf", "--max-restarts", "1000"),
            *("--on-notice", "tell", "--notices-s", "0.5"),
            # A node may come as the job ends.
            *("--on-ended", "succeed", *options),
        ]
        # Whatever is wrong with what was given is said before anything starts.
        if count is not None:
            config = first_wants(config, count)
        self.pool = LocalPool(
            self._start_agent,
            trace,
            clouds=clouds,
            boot_s=boot_s,
            seed=seed,
            offer=offer,
            may_start=lambda: self._has_shown,
        )
        # Whether a worker has shown that the program makes its steps here: before that one
        # node is enough to see that it does not.
        self._has_shown = False
        self._lock = _hold(self.folder)
        self._token_file = str(self.folder / "token")
        token = make_token()
        write_token(self._token_file, token)
        self._address = "127.0.0.1:0"
        self._master = self._start_master()
        self.client = MasterClient(self._address, token, patience_s=2.0)
        self.supervisor = Supervisor(
            self.pool, MasterJob(self.client), config, count=count, save_s=2.0
        )

    def _start_master(self) -> subprocess.Popen[str]:
        master = subprocess.Popen(
            [
                *(sys.executable, "-m", "drivetrain_elastic.cli", "master"),
                *("--with-parent", "--address", self._address),
                *("--token-file", self._token_file),
                *("--journal", str(self.folder / "job.db")),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=self._env,
            text=True,
            start_new_session=True,
        )
        assert master.stdout is not None
        line = master.stdout.readline()
        if not line:
            master.wait()
            message = "the master of the job did not start; its output says why"
            raise DistributedError(message)
        self._address = line.split()[-1]
        return master

    def run(
        self,
        *,
        poll_s: float = 0.25,
        looked: Callable[[Supervisor], object] = lambda _: None,
    ) -> int:
        """Supervises the job until it has ended, and returns its exit code.

        Args:
            poll_s: How often it is looked.
            looked: Called after each look.
        """

        def look(supervisor: Supervisor) -> None:
            self._look_after_master()
            self._has_shown |= bool(supervisor.view.ready)
            if time.monotonic() - self._recorded_s > _RECORD_S:
                self.record()
            looked(supervisor)

        code = self.supervisor.run(poll_s=poll_s, looked=look)
        self.record()
        return code

    def record(self) -> UsageRecord:
        """Writes down who was there until now, as `usage.json`, and returns that."""
        supervisor, self._recorded_s = self.supervisor, time.monotonic()
        speed = supervisor.speed.speeds.get(self._nodes)
        record = record_usage(
            supervisor.usage,
            now_s=self._recorded_s,
            epoch_s=time.time(),
            job=self.folder.name,
            samples=supervisor.num_samples,
            reference_nodes=self._nodes,
            reference_speed=0.0 if speed is None else speed.samples_per_s,
        )
        write_usage(self.folder / "usage.json", record)
        return record

    def _look_after_master(self) -> None:
        """Starts the master again if it has died; training does not wait for it."""
        if self._master.poll() is not None:
            logger.warning("the master has ended with %d", self._master.returncode)
            self._master = self._start_master()

    def _start_agent(self, node: str, notices: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "drivetrain_elastic.cli", "run"]
        command += ["--node", node, "--rdzv-endpoint", self._address]
        command += ["--token-file", self._token_file, "--notices", notices]
        with self.output(node).open("ab") as output:
            return subprocess.Popen(
                [*command, *self._options, *self._program],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )

    def output(self, node: str) -> Path:
        """Returns where the output of a node's agent and workers goes."""
        return self.folder / f"{node}.txt"

    def close(self) -> None:
        """Ends whatever still runs."""
        self.pool.close()
        self.client.close()
        with contextlib.suppress(ProcessLookupError):
            self._master.send_signal(signal.SIGTERM)
        try:
            self._master.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._master.kill()
            self._master.wait()
        if self._master.stdout is not None:
            self._master.stdout.close()
        self._lock.close()

    def __enter__(self) -> Self:
        """Returns the job."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends whatever still runs."""
        self.close()


def _hold(folder: Path) -> IO[str]:
    """Returns a file that holds a folder until it is closed, or this process ends.

    Raises:
        ProgramError: Another one holds it.
    """
    lock = (folder / "lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        message = (
            f"a job is supervised in the folder {folder} already: wait for its end, or "
            "give this one a folder of its own"
        )
        raise ProgramError(message) from None
    return lock
