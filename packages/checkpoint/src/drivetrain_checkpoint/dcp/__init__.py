"""Drop-ins for torch's distributed checkpoint (DCP): its API, this format.

`Writer` and `Reader` go where `FileSystemWriter` and `FileSystemReader` go, and `Stager`
where `DefaultStager` goes.
"""

from drivetrain_checkpoint.dcp._reader import Reader
from drivetrain_checkpoint.dcp._stager import Stager
from drivetrain_checkpoint.dcp._writer import Writer

__all__ = ["Reader", "Stager", "Writer"]
