"""The network of a training cluster, looked at offline: topology, advice, simulation.

`drivetrain_fabric.topology` reads hosts and measures links; `drivetrain_fabric.adviser`
says what to set for NCCL, Gloo and the kernel; `drivetrain_fabric.network` simulates a
data-centre network. Importing this package imports none of them.
"""

from drivetrain_fabric._version import __version__

__all__ = ["__version__"]
