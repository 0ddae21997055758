"""A job on this machine, with a process for each node, for tests and measurements."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from drivetrain_core import DrivetrainError
from drivetrain_elastic._client._address import free_port
from drivetrain_elastic._client._master_client import MasterClient, MasterError
from drivetrain_elastic._client._token import make_token, write_token
from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

_EXAMPLE = ("-m", "drivetrain_elastic.examples.byte_lm")
_POLL_S = 0.01


class LocalJobError(DrivetrainError, RuntimeError):
    """The job has ended, or goes on, in another way than was waited for."""


class LocalJob:
    """Agents of one job, started by `drivetrain-elastic run`; a context manager.

    At the end of the context, whatever still
    runs is killed.

    Args:
        folder: For the journal, the token, the output of each node and the steps' log.
        options: Of the command, for all nodes.
        program: What workers run; by default the example of this package, in which case
            it also gets `--log`.
        arguments: Of the program.
        env: Of all processes, besides this one's.
        address: Of the master; a free one by default.
        keeps_master: Whether the first node's agent keeps the master.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, LocalJob(
        ...     folder, options=["--nproc-per-node", "1"], arguments=["--steps", "2"]
        ... ) as job:
        ...     _ = job.start_node()
        ...     print(job.wait(60.0))
        {'node0': 0}
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        options: Sequence[str] = (),
        program: Sequence[str] = _EXAMPLE,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        address: str | None = None,
        keeps_master: bool = True,
    ) -> None:
        self.folder = Path(folder)
        self.log = self.folder / "steps"
        self.token = make_token()
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._options = list(options)
        self._program = [*program, *arguments]
        if tuple(program) == _EXAMPLE:
            self._program += ["--log", str(self.log)]
        self._env = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        self._keeps_master = keeps_master
        self.address = address or f"127.0.0.1:{free_port()}"
        write_token(self.folder / "token", self.token)
        self._client = MasterClient(self.address, self.token, patience_s=5.0)

    def start_node(
        self,
        *options: str,
        start: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
        name: str | None = None,
    ) -> subprocess.Popen[bytes]:
        """Starts an agent as the next node.

        Args:
            *options: More options of the command.
            start: Starts it, as `subprocess.Popen` does; on a node of a
                `faults.Network`, for one.
            name: Of the node; that of one that has ended, to start it again.
        """
        is_first = not self.nodes or name == next(iter(self.nodes))
        name = name or f"node{len(self.nodes)}"
        command = [sys.executable, "-m", "drivetrain_elastic.cli", "run"]
        command += ["--node", name, "--rdzv-endpoint", self.address]
        command += ["--token-file", str(self.folder / "token")]
        if is_first and self._keeps_master:
            command += ["--journal", str(self.folder / "job.db")]
        command += [*self._options, *options, *self._program]
        with self._output(name).open("ab") as output:
            self.nodes[name] = start(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._env,
            )
        return self.nodes[name]

    def _output(self, name: str) -> Path:
        return self.folder / f"{name}.txt"

    def text(self) -> str:
        """Returns what all nodes have written."""
        parts = [f"--- {name}\n{self._output(name).read_text()}" for name in self.nodes]
        return "\n".join(parts)

    def call(self, name: str, request: Any) -> Any:
        """Makes a call to the master."""
        return self._client.call(name, request)

    def status(self) -> pb.Status:
        """Returns how the job stands."""
        status: pb.Status = self.call("GetStatus", pb.StatusRequest())
        return status

    def members(self) -> list[pb.WorkerStatus]:
        """Returns the workers of the world, by rank."""
        return members_of(self.status())

    def wait_for(
        self, condition: Callable[[pb.Status], object], timeout_s: float = 60.0
    ) -> pb.Status:
        """Waits until the status is as wanted, and returns it.

        Raises:
            LocalJobError: All nodes have ended before, or the time was up.
        """
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            if all(node.poll() is not None for node in self.nodes.values()):
                message = f"all nodes have ended\n{self.text()}"
                raise LocalJobError(message)
            with contextlib.suppress(MasterError):
                status = self.status()
                if condition(status):
                    return status
            time.sleep(_POLL_S)
        message = f"not so within {timeout_s:g} s\n{self.text()}"
        raise LocalJobError(message)

    def wait_for_step(
        self, step: int, *, num_workers: int = 1, timeout_s: float = 60.0
    ) -> pb.Status:
        """Waits until so many workers at least have all made a step."""

        def is_there(status: pb.Status) -> bool:
            members = members_of(status)
            return len(members) >= num_workers and min(m.step for m in members) >= step

        return self.wait_for(is_there, timeout_s)

    def wait(self, timeout_s: float = 120.0) -> dict[str, int]:
        """Waits for all nodes to end; returns their exit codes.

        Raises:
            LocalJobError: The time was up.
        """
        end_s = time.monotonic() + timeout_s
        for node in self.nodes.values():
            try:
                node.wait(max(0.0, end_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                message = f"nodes still run after {timeout_s:g} s\n{self.text()}"
                raise LocalJobError(message) from None
        return {name: node.returncode for name, node in self.nodes.items()}

    def events(self) -> list[pb.Event]:
        """Returns what has happened."""
        return list(self._client.stream("WatchEvents", pb.EventsRequest(), 10.0))

    def processes(self) -> list[psutil.Process]:
        """Returns all processes of the job: agents, workers and what they started."""
        found = []
        for node in self.nodes.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                agent = psutil.Process(node.pid)
                found += [agent, *agent.children(recursive=True)]
        return found

    def master(self) -> psutil.Process:
        """Returns the process of the master that an agent keeps.

        Raises:
            LocalJobError: There is none now.
        """
        for process in self.processes():
            # One that has just ended has no command any more.
            with contextlib.suppress(psutil.Error):
                if "master" in process.cmdline():
                    return process
        message = f"no agent keeps a master\n{self.text()}"
        raise LocalJobError(message)

    def steps(self) -> list[dict[str, Any]]:
        """Returns the example's lines of all workers, as they were written."""
        lines = [
            json.loads(line)
            for path in self.log.glob("*.jsonl")
            for line in path.read_text().splitlines()
            # One that was killed has not finished its last line.
            if line.endswith("}")
        ]
        return sorted(lines, key=lambda line: line["at_s"])

    def losses(self) -> dict[int, float]:
        """Returns the loss of each step: that of the last world that made it."""
        latest: dict[int, int] = {}
        sums: dict[int, float] = {}
        for line in self.steps():
            step, epoch = line["step"], line["epoch"]
            if epoch > latest.get(step, 0):
                latest[step], sums[step] = epoch, 0.0
            if epoch == latest[step]:
                sums[step] += line["loss"]
        return sums

    def close(self) -> None:
        """Kills whatever still runs."""
        self._client.close()
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for node in self.nodes.values():
            node.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def members_of(status: pb.Status) -> list[pb.WorkerStatus]:
    """Returns the workers of the world, by rank."""
    workers = [one for node in status.nodes for one in node.workers if one.rank >= 0]
    return sorted(workers, key=lambda one: one.rank)
