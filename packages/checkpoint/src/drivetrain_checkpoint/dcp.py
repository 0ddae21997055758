"""Drop-ins for torch's distributed checkpoint (DCP): its API, this format.

`Writer` and `Reader` go where `FileSystemWriter` and `FileSystemReader` go, and `Stager`
where `DefaultStager` goes.
"""

from __future__ import annotations

from drivetrain_checkpoint._dcp.reader import Reader
from drivetrain_checkpoint._dcp.stager import Stager
from drivetrain_checkpoint._dcp.writer import Writer

__all__ = ["Reader", "Stager", "Writer"]
