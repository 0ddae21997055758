"""Training on clouds: Kubernetes, spot capacity, notices, cost, goodput.

`drivetrain_cloud.kubernetes` has the operator of elastic jobs, `drivetrain_cloud.spot` the
supervisor of a job on nodes that may go, `drivetrain_cloud.notices` what clouds say before
they take a node away, `drivetrain_cloud.cost` bills and simulated strategies, and
`drivetrain_cloud.goodput` a simulator of what failures cost. Importing this package imports
none of them.
"""

from drivetrain_cloud._version import __version__

__all__ = ["__version__"]
