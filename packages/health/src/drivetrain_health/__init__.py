"""The health of training nodes: checks, classes of failure, diagnosis, injected faults.

`drivetrain_health.checks` measures whether a node is fit to train,
`drivetrain_health.diagnosis` reads what a failure left behind,
`drivetrain_health.failures` says why it failed and what follows, and
`drivetrain_health.faults` makes faults, to see what survives them. Importing this package
imports none of them, and no torch.
"""

from drivetrain_health._version import __version__

__all__ = ["__version__"]
