"""Settings of NCCL, Gloo and the kernel for this network, each with its reason.

`gather` reads what a host shows, `with_given`, `with_measured` and `with_cluster` add
what people know, `advise` says what follows, for the version of NCCL at hand. Nothing
is changed, and nothing is guessed: what is not known is said to be missing. Rules come
from manuals, sources and reports of users, which each of them names; none was proven
here on RDMA hardware.
"""

from __future__ import annotations

from drivetrain_fabric.adviser._advice import Advice, Gap, Problem
from drivetrain_fabric.adviser._advise import Report, advise
from drivetrain_fabric.adviser._errors import AdviserError
from drivetrain_fabric.adviser._facts import Adapter, Assignment, Facts, Gid
from drivetrain_fabric.adviser._forms import Change, as_diff, as_env, changes
from drivetrain_fabric.adviser._gather import gather
from drivetrain_fabric.adviser._given import with_cluster, with_given, with_measured

__all__ = [
    "Adapter",
    "Advice",
    "AdviserError",
    "Assignment",
    "Change",
    "Facts",
    "Gap",
    "Gid",
    "Problem",
    "Report",
    "advise",
    "as_diff",
    "as_env",
    "changes",
    "gather",
    "with_cluster",
    "with_given",
    "with_measured",
]
