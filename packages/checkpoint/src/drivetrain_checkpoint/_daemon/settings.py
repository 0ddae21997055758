"""Settings of a job that its trainers send to the daemon, and to every one after it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._storage.catalog import Keep

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How the daemon serves a job.

    Args:
        job: The job's name.
        url: Where checkpoints go.
        options: For URLs, what fsspec is to know.
        keep: Which checkpoints stay.
        limit_s: How long a storage may make no progress before a save fails, and how
            long one rank may keep the others waiting, in seconds.
        idle_s: How long the daemon keeps memory for a job that nobody runs.
        local: A folder on a disk of the node, for saves before they reach storage.
    """

    job: str
    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    keep: Keep = field(default_factory=Keep)
    limit_s: float = 600.0
    idle_s: float = 3600.0
    local: str | None = None

    def hello(self) -> dict[str, Any]:
        """Returns the first message to a daemon."""
        return {
            "op": "hello",
            "url": self.url,
            "options": dict(self.options),
            "settings": self.changing(),
        }

    def changing(self) -> dict[str, Any]:
        """Returns what those who save a job may change, and those who read may not."""
        return {
            "keep": asdict(self.keep),
            "limit_s": self.limit_s,
            "idle_s": self.idle_s,
            "local": self.local and [self.local, self.job],
        }
