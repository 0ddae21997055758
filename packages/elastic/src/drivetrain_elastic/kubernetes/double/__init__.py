"""A double of a Kubernetes cluster, for tests and to try things out without one.

It serves the API of Kubernetes over HTTPS to any client, and runs pods as processes of
this machine. What it leaves out is said by `ClusterDouble`.
"""

from __future__ import annotations

from drivetrain_elastic.kubernetes.double.cluster import ClusterDouble
from drivetrain_elastic.kubernetes.double.errors import StatusError
from drivetrain_elastic.kubernetes.double.faults import Fault, Faults
from drivetrain_elastic.kubernetes.double.nodes import RECLAIM_TAINT
from drivetrain_elastic.kubernetes.double.routes import Call

__all__ = ["RECLAIM_TAINT", "Call", "ClusterDouble", "Fault", "Faults", "StatusError"]
