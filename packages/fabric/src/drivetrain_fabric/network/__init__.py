"""Data-centre fabrics, simulated: how flows meet, how fast they are, what to do.

Flows of collectives and jobs are placed on a folded Clos network, hashed to its links,
and get max-min fair rates. A second, finer model shows queues, marks and pauses of a few
flows. Nothing here imports torch.
"""

from __future__ import annotations

from drivetrain_fabric.network._clos import Clos, FailedLink, Tier, without_split
from drivetrain_fabric.network._collisions import (
    collision_probability,
    expected_largest_load,
    flow_overload_probability,
    overload_probability,
    simulated_overload,
)
from drivetrain_fabric.network._congestion import CongestionTrace, run_scenario
from drivetrain_fabric.network._dcqcn import Dcqcn, FixedPoint, Marking, fixed_point
from drivetrain_fabric.network._draw import comparison_svg, congestion_svg
from drivetrain_fabric.network._ecmp import Ecmp
from drivetrain_fabric.network._errors import FabricError
from drivetrain_fabric.network._job import Job, Phase, collective
from drivetrain_fabric.network._placement import (
    Advice,
    Crossing,
    advise,
    crossing,
    place,
)
from drivetrain_fabric.network._rates import Transfer, drain, max_min, simulate
from drivetrain_fabric.network._report import Measure, compare
from drivetrain_fabric.network._routes import Routes, route
from drivetrain_fabric.network._scenario import Pfc, Scenario, incast
from drivetrain_fabric.network._spec import clos_of
from drivetrain_fabric.network._traffic import (
    Flows,
    all_gather,
    all_reduce,
    all_to_all,
    channels,
    reduce_scatter,
    send,
    tree_all_reduce,
)

__all__ = [
    "Advice",
    "Clos",
    "CongestionTrace",
    "Crossing",
    "Dcqcn",
    "Ecmp",
    "FabricError",
    "FailedLink",
    "FixedPoint",
    "Flows",
    "Job",
    "Marking",
    "Measure",
    "Pfc",
    "Phase",
    "Routes",
    "Scenario",
    "Tier",
    "Transfer",
    "advise",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "channels",
    "clos_of",
    "collective",
    "collision_probability",
    "compare",
    "comparison_svg",
    "congestion_svg",
    "crossing",
    "drain",
    "expected_largest_load",
    "fixed_point",
    "flow_overload_probability",
    "incast",
    "max_min",
    "overload_probability",
    "place",
    "reduce_scatter",
    "route",
    "run_scenario",
    "send",
    "simulate",
    "simulated_overload",
    "tree_all_reduce",
    "without_split",
]
