"""Horovod's API for PyTorch scripts, in two layers.

`drivetrain_horovod.on_elastic` is for elastic scripts, whose workers come and go;
`drivetrain_horovod.on_comm` for scripts of a fixed number of ranks, on tuned process groups.
Importing this package imports neither.
"""

from drivetrain_horovod._version import __version__

__all__ = ["__version__"]
