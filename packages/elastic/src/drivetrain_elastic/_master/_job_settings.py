"""Settings of a job, which all of its agents have agreed on."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from drivetrain_core import ProgramError
from drivetrain_elastic.decisions.membership import MembershipConfig
from drivetrain_elastic.journal import Record

if TYPE_CHECKING:
    from drivetrain_elastic.protocol import messages as pb


class JobSettings:
    """The settings of the first agent, to which others are held.

    Args:
        records: Takes what is to be written.

    Attributes:
        config: What a world may be; None before the first agent.
        patience_s: How long a job with too few workers waits for more.
    """

    def __init__(self, records: list[Record]) -> None:
        self._records = records
        self.config: MembershipConfig | None = None
        self.patience_s = 0.0

    def replay(self, record: Record) -> bool:
        """Takes a record of the journal; returns whether it was one of these."""
        if record.kind != "terms":
            return False
        self.patience_s = record.body["patience_s"]
        self.config = MembershipConfig(**record.body["config"])
        return True

    def dump(self) -> list[Record]:
        """Returns records that take the place of all that were written."""
        if self.config is None:
            return []
        body = {"config": asdict(self.config), "patience_s": self.patience_s}
        return [Record("terms", body)]

    def agree(self, terms: pb.Terms) -> None:
        """Takes the terms of the first agent, and holds others to them.

        Raises:
            ProgramError: They are others.
        """
        config = MembershipConfig(
            min_workers=terms.min_workers,
            max_workers=terms.max_workers,
            unit=terms.unit,
            last_call_s=terms.last_call_s,
        )
        if self.config is None:
            self.config, self.patience_s = config, terms.patience_s
            self._records += self.dump()
        elif config != self.config:
            message = (
                f"the job has {_words(self.config)}, this agent says {_words(config)}: "
                "start all agents of a job with the same options"
            )
            raise ProgramError(message)


def _words(config: MembershipConfig) -> str:
    return f"{config.min_workers} to {config.max_workers} workers in units of {config.unit}"
