"""What others were measured to do when a worker dies: figures that are committed here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple


class PeerPause(NamedTuple):
    """How long the survivors paused.

    Attributes:
        name: Of the peer, with its version.
        tuned_s: With the shortest time-outs with which it still worked.
        documented_s: As its documentation has it; None for no step within 60 s.
        besides: What else it cost.
    """

    name: str
    tuned_s: float
    documented_s: float | None
    besides: str

    def __str__(self) -> str:
        """Returns both figures.

        Example:
            >>> str(PeerPause("peer", 4.73, None, "14 steps again"))
            '4.73 s tuned, never as documented; 14 steps again'
        """
        documented = "never" if self.documented_s is None else f"{self.documented_s} s"
        more = f"; {self.besides}" if self.besides else ""
        return f"{self.tuned_s:g} s tuned, {documented} as documented{more}"


class Peers(NamedTuple):
    """The figures, and where they come from.

    Attributes:
        source: The page that has them.
        date: Of the measurement.
        machine: On which it ran.
        job: What was trained, and killed.
        pauses: Of each peer.
    """

    source: str
    date: str
    machine: str
    job: str
    pauses: tuple[PeerPause, ...]


def read_peers() -> Peers:
    """Returns the committed figures.

    Example:
        >>> [pause.name.split()[0] for pause in read_peers().pauses]
        ['torchrun', 'torchft', 'nvidia-resiliency-ext']
    """
    found = json.loads(Path(__file__).with_name("_peers.json").read_text())
    pauses = tuple(PeerPause(**pause) for pause in found.pop("pauses"))
    return Peers(**found, pauses=pauses)
