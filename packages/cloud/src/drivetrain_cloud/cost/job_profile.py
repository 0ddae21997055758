"""How fast a job is with some number of nodes, and how long its interruptions take."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from typing import TYPE_CHECKING

from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Mapping


class ProfileError(ProgramError):
    """A profile describes no job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobProfile:
    """What a job does in a step, and what an interruption costs it.

    A step of `n` nodes takes `sample_s` for each of the samples that one node has of the
    batch, and an all-reduce of the gradients in a ring. The batch is `batch_per_node` for
    each node that the job asks for, and stays so when fewer train.

    Args:
        name: Of the job, for people.
        batch_per_node: Samples of a step for each node that is asked for.
        sample_s: How long one node computes on one sample.
        gradient_bytes: What is reduced in a step.
        link_bytes_per_s: Between two nodes, in each direction.
        save_s: How long a checkpoint takes until it is durable.
        stall_s: How long training stands still for it.
        resize_s: How long training stands still when nodes leave or join as planned.
        lose_s: The same when a node is gone without a word, detection included.
        restore_s: How long it takes to begin from a checkpoint.
        samples_ratio: Samples that it needs when it is interrupted, over those that it
            needs when it is not, to the same held-out loss.
        notes: Where the numbers are from, by name.

    Raises:
        ProfileError: A number is out of its range.

    Example:
        >>> job = JobProfile(name="job", batch_per_node=100, sample_s=0.01)
        >>> job.step_s(4, 4), job.step_s(2, 4), job.samples_per_s(2, 4)
        (1.0, 2.0, 200.0)
    """

    name: str
    batch_per_node: int
    sample_s: float
    gradient_bytes: float = 0.0
    link_bytes_per_s: float = 50e9
    save_s: float = 5.0
    stall_s: float = 0.5
    resize_s: float = 10.0
    lose_s: float = 20.0
    restore_s: float = 60.0
    samples_ratio: float = 1.0
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the numbers."""
        if not 1 <= self.batch_per_node < math.inf:
            message = f"batch_per_node must be at least 1, got {self.batch_per_node}"
            raise ProfileError(message)
        for name in ("sample_s", "link_bytes_per_s", "save_s", "samples_ratio"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                message = f"{name} must be more than 0, got {value}"
                raise ProfileError(message)
        for name in ("gradient_bytes", "stall_s", "resize_s", "lose_s", "restore_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                message = f"{name} must be a number from 0, got {value}"
                raise ProfileError(message)
        if self.stall_s > self.save_s:
            message = (
                "a checkpoint cannot hold training up for longer than it takes, got "
                f"stall_s {self.stall_s} and save_s {self.save_s}"
            )
            raise ProfileError(message)

    def step_s(self, nodes: int, asked: int) -> float:
        """Returns how long a step takes.

        Args:
            nodes: That train.
            asked: That the job asks for; its batch follows them.
        """
        share = math.ceil(self.batch_per_node * asked / nodes)
        sent = 2 * (nodes - 1) / nodes * self.gradient_bytes
        return share * self.sample_s + sent / self.link_bytes_per_s

    def samples_per_s(self, nodes: int, asked: int) -> float:
        """Returns how fast so many nodes are; arguments as of `step_s`."""
        return self.batch_per_node * asked / self.step_s(nodes, asked)


_USUAL = {
    "resize_s": "assumed for GPUs; 0.16 s were measured with 4 ranks on a CPU",
    "lose_s": "assumed: a node is silent for 10 s, and then resize_s",
    "restore_s": "assumed for GPUs; 1.9 s were measured with 4 ranks on a CPU",
    "link_bytes_per_s": "assumed: 400 Gb/s",
    "samples_ratio": "1 with the fixed batch: all runs read the same samples in order",
}

PROFILES: Mapping[str, JobProfile] = {
    name: JobProfile(**{**numbers, "name": name, "notes": _USUAL | numbers["notes"]})
    for name, numbers in tomllib.loads(
        files(__package__).joinpath("profiles.toml").read_text()
    ).items()
}
"""Jobs by name, on nodes of eight GPUs. Their numbers are assumptions of the right size,
with a note each; replace them by what your own job measures."""


def with_number(profile: JobProfile, name: str, value: float) -> JobProfile:
    """Returns a profile with another number.

    Args:
        profile: To be changed.
        name: Of the number.
        value: Its new value.

    Raises:
        ProfileError: There is no such number, or it is out of its range.

    Example:
        >>> with_number(PROFILES["resnet50"], "restore_s", 300).restore_s
        300
    """
    names = [
        one.name for one in fields(JobProfile) if one.name not in {"name", "notes"}
    ]
    if name not in names:
        message = f"a profile has no {name!r}; it has {', '.join(names)}"
        raise ProfileError(message)
    number: float = value
    if name == "batch_per_node":
        if value != int(value):
            message = f"batch_per_node must be a whole number, got {value}"
            raise ProfileError(message)
        number = int(value)
    notes = {**profile.notes, name: "given by the user"}
    changes: dict[str, object] = {name: number, "notes": notes}
    return replace(profile, **changes)  # type: ignore[arg-type]
