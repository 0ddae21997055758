"""A double of a Kubernetes cluster, for tests and to try things out without one.

It serves the API of Kubernetes over HTTPS to any client, and runs pods as processes of
this machine. What it leaves out is said by `ClusterDouble`.
"""

from __future__ import annotations

from drivetrain_cluster_double.cluster import ClusterDouble
from drivetrain_cluster_double.errors import StatusError
from drivetrain_cluster_double.faults import Fault, Faults
from drivetrain_cluster_double.machines import RECLAIM_TAINT
from drivetrain_cluster_double.routes import Call

__all__ = ["RECLAIM_TAINT", "Call", "ClusterDouble", "Fault", "Faults", "StatusError"]
