"""What the workers of the training with the kill are told, in a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from drivetrain_core import Choice


@dataclass(frozen=True, kw_only=True, slots=True)
class ElasticSpec:
    """What is trained, how far, and who is killed where.

    Args:
        folder: For what the workers write.
        script: Whose program is trained.
        arguments: The script's command line.
        choices: The plan, as pairs of name and configuration.
        order: The file that says which samples each step has.
        num_steps: How many there are.
        global_batch: Samples of a step.
        num_passes: Forward and backward passes of a worker in a step, at most.
        num_workers: How many train.
        num_standbys: How many more are in reserve.
        kill_step: In which step a worker is killed.
        victim: Its rank.
        save_every: After how many steps a checkpoint is saved.
        job: The name of the checkpoints' job.
    """

    folder: Path
    script: str
    arguments: tuple[str, ...]
    choices: tuple[tuple[str, dict[str, Any]], ...]
    order: Path
    num_steps: int
    global_batch: int
    num_passes: int
    num_workers: int
    num_standbys: int
    kill_step: int
    victim: int
    save_every: int
    job: str

    @property
    def num_ready(self) -> int:
        """How many processes have compiled before the first step."""
        return self.num_workers + self.num_standbys

    @property
    def killed(self) -> Path:
        """The file that appears as the worker is killed."""
        return self.folder / "killed.json"

    def compiled(self, pid: int) -> Path:
        """Returns the file that appears when a process has compiled."""
        return self.folder / f"compiled-{pid}"

    def plan(self) -> list[Choice]:
        """Returns the plan."""
        return [Choice(name, config) for name, config in self.choices]

    def save(self, path: Path) -> None:
        """Writes the file."""
        paths = {"folder": str(self.folder), "order": str(self.order)}
        path.write_text(json.dumps(asdict(self) | paths))

    @classmethod
    def load(cls, path: Path) -> ElasticSpec:
        """Reads the file that `save` has written."""
        found = json.loads(path.read_text())
        found["folder"], found["order"] = Path(found["folder"]), Path(found["order"])
        found["arguments"] = tuple(found["arguments"])
        found["choices"] = tuple((name, config) for name, config in found["choices"])
        return cls(**found)
