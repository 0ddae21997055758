"""How an agent runs its workers."""

from __future__ import annotations

import functools
import socket
import tomllib
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from drivetrain_core import ProgramError
from drivetrain_core.services import get_service


@functools.cache
def _bounds() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files(__package__).joinpath("config.toml").read_text())


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentConfig:
    """How an agent runs its workers.

    Args:
        num_workers: That train on this node.
        node: The node's name, unlike all others; by default the host's.
        machine: What the node runs on, which is what is excluded when it is faulty; by
            default the node's name.
        min_nodes: No step is made with the workers of fewer nodes.
        max_nodes: Workers of more nodes stand by.
        min_workers: No step is made with fewer workers; by default as many as `min_nodes`
            nodes have. With less, those that are left go on before another one has
            started in the place of one that died.
        workers_per_copy: Processes that hold one copy of the model together; they find
            each other as under torchrun, and start, die and are replaced together.
        num_standbys: Workers that are ready to take the place of one that dies.
        max_restarts: How many workers may be started anew in one place within an hour.
        last_call_s: How long the first world waits for more than the fewest nodes.
        patience_s: How long a job with too few workers waits for more, and how long, 5 s at
            least, its agent looks for the first master; `inf`, here as in other times, for
            ever.
        frozen_s: How long a worker that does nothing may be silent before it is killed.
        stuck_s: How long a step may compute before its worker counts as stuck.
        on_stuck: What becomes of a stuck worker, once all have written down what they
            are doing: "kill" it, or "report" only.
        on_ended: What it is that the job was over before the agent came: "fail", an error,
            since nothing is trained then, or "succeed", if the job has, for agents that a
            supervisor starts again after the end.
        grace_s: How long workers have between SIGTERM and SIGKILL.
        log_folder: Where the output of workers goes; by default that of the agent.
        tee: Whether output that goes to the log folder is shown as well.
        preload: Modules that are imported once, for all workers.
        notices: Who says that this node will be taken away: "auto" for the cloud whose
            endpoint answers here, "aws", "gcp", "azure", "alibaba", one of them with a URL
            as in "aws=http://127.0.0.1:9000", or "none".
        on_notice: What is done then: it and the others "save" a checkpoint and it leaves
            in time, or the master is only told ("tell"), since a supervisor decides.
        notices_s: How often the cloud is asked.
        check: When nodes are checked: at the "start", before they train, on "suspicion",
            "always", which is both, or "never".

    Raises:
        ProgramError: A value is out of range, or values contradict each other.
    """

    num_workers: int = 1
    node: str = field(default_factory=socket.gethostname)
    machine: str = ""
    min_nodes: int = 1
    max_nodes: int = 1
    min_workers: int | None = None
    workers_per_copy: int = 1
    num_standbys: int = 1
    max_restarts: int = 10
    last_call_s: float = 5.0
    patience_s: float = 600.0
    frozen_s: float = 2.0
    stuck_s: float = 600.0
    on_stuck: str = "kill"
    on_ended: str = "fail"
    grace_s: float = 30.0
    log_folder: str | None = None
    tee: bool = False
    preload: tuple[str, ...] = ()
    check: str = "suspicion"
    notices: str = "none"
    on_notice: str = "save"
    notices_s: float = 5.0

    def __post_init__(self) -> None:
        """Checks the values."""
        for name, least in _bounds()["least"].items():
            value = getattr(self, name)
            if value is None:
                continue
            # NaN is neither less nor more.
            if not value >= least:
                message = f"{name} must be at least {least}, got {value}"
                raise ProgramError(message)
            if isinstance(least, int) and not isinstance(value, int):
                message = f"{name} must be a whole number, got {value!r}"
                raise ProgramError(message)
        if self.min_nodes > self.max_nodes:
            message = (
                "min_nodes must not be more than max_nodes, got "
                f"{self.min_nodes} and {self.max_nodes}"
            )
            raise ProgramError(message)
        most = self.max_nodes * self.num_workers
        if self.fewest_workers > most:
            message = (
                f"min_workers must be at most {most}, which is all that max_nodes have, "
                f"got {self.min_workers}"
            )
            raise ProgramError(message)
        if self.num_workers % self.workers_per_copy:
            message = (
                f"num_workers must be a multiple of workers_per_copy, got "
                f"{self.num_workers} and {self.workers_per_copy}"
            )
            raise ProgramError(message)
        for name, choices in _bounds()["choices"].items():
            value = getattr(self, name)
            if value not in choices:
                said = " or ".join(map(repr, choices))
                message = f"{name} must be {said}, got {value!r}"
                raise ProgramError(message)
        if self.notices != "none":
            try:
                get_service("cloud_notices").check(self.notices)
            except ValueError as error:
                message = f"notices must be 'none', 'auto' or a cloud: {error}"
                raise ProgramError(message) from None
        if not self.node or "/" in self.node:
            message = (
                f"node, its name, must not be empty and have no '/', got {self.node!r}"
            )
            raise ProgramError(message)
        if self.tee and self.log_folder is None:
            message = "tee needs a log_folder"
            raise ProgramError(message)

    @property
    def fewest_workers(self) -> int:
        """With fewer workers no step is made."""
        if self.min_workers is None:
            return self.min_nodes * self.num_workers
        return self.min_workers
