from drivetrain_fabric.network._clos import Clos as Clos
from drivetrain_fabric.network._clos import FailedLink as FailedLink
from drivetrain_fabric.network._clos import Tier as Tier
from drivetrain_fabric.network._clos import without_split as without_split
from drivetrain_fabric.network._collisions import (
    collision_probability as collision_probability,
)
from drivetrain_fabric.network._collisions import (
    expected_largest_load as expected_largest_load,
)
from drivetrain_fabric.network._collisions import (
    flow_overload_probability as flow_overload_probability,
)
from drivetrain_fabric.network._collisions import (
    overload_probability as overload_probability,
)
from drivetrain_fabric.network._collisions import (
    simulated_overload as simulated_overload,
)
from drivetrain_fabric.network._congestion import CongestionTrace as CongestionTrace
from drivetrain_fabric.network._congestion import run_scenario as run_scenario
from drivetrain_fabric.network._dcqcn import Dcqcn as Dcqcn
from drivetrain_fabric.network._dcqcn import FixedPoint as FixedPoint
from drivetrain_fabric.network._dcqcn import Marking as Marking
from drivetrain_fabric.network._dcqcn import fixed_point as fixed_point
from drivetrain_fabric.network._draw import comparison_svg as comparison_svg
from drivetrain_fabric.network._draw import congestion_svg as congestion_svg
from drivetrain_fabric.network._ecmp import Ecmp as Ecmp
from drivetrain_fabric.network._errors import FabricError as FabricError
from drivetrain_fabric.network._job import Job as Job
from drivetrain_fabric.network._job import Phase as Phase
from drivetrain_fabric.network._job import collective as collective
from drivetrain_fabric.network._placement import Advice as Advice
from drivetrain_fabric.network._placement import Crossing as Crossing
from drivetrain_fabric.network._placement import advise as advise
from drivetrain_fabric.network._placement import crossing as crossing
from drivetrain_fabric.network._placement import place as place
from drivetrain_fabric.network._rates import Transfer as Transfer
from drivetrain_fabric.network._rates import drain as drain
from drivetrain_fabric.network._rates import max_min as max_min
from drivetrain_fabric.network._rates import simulate as simulate
from drivetrain_fabric.network._report import Measure as Measure
from drivetrain_fabric.network._report import compare as compare
from drivetrain_fabric.network._routes import Routes as Routes
from drivetrain_fabric.network._routes import route as route
from drivetrain_fabric.network._scenario import Pfc as Pfc
from drivetrain_fabric.network._scenario import Scenario as Scenario
from drivetrain_fabric.network._scenario import incast as incast
from drivetrain_fabric.network._spec import clos_of as clos_of
from drivetrain_fabric.network._traffic import Flows as Flows
from drivetrain_fabric.network._traffic import all_gather as all_gather
from drivetrain_fabric.network._traffic import all_reduce as all_reduce
from drivetrain_fabric.network._traffic import all_to_all as all_to_all
from drivetrain_fabric.network._traffic import channels as channels
from drivetrain_fabric.network._traffic import reduce_scatter as reduce_scatter
from drivetrain_fabric.network._traffic import send as send
from drivetrain_fabric.network._traffic import tree_all_reduce as tree_all_reduce
