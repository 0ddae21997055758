from drivetrain_core._accelerate import accelerate as accelerate
from drivetrain_core._accelerated import Accelerated as Accelerated
from drivetrain_core._choice import Choice as Choice
from drivetrain_core._choice import Config as Config
from drivetrain_core._choice import Estimate as Estimate
from drivetrain_core._choice import Numerics as Numerics
from drivetrain_core._choice import Ok as Ok
from drivetrain_core._choice import Option as Option
from drivetrain_core._choice import Phase as Phase
from drivetrain_core._choice import Reject as Reject
from drivetrain_core._choice import Slot as Slot
from drivetrain_core._compose import Strategy as Strategy
from drivetrain_core._context import BatchFacts as BatchFacts
from drivetrain_core._context import BlockFacts as BlockFacts
from drivetrain_core._context import Context as Context
from drivetrain_core._context import DeviceFacts as DeviceFacts
from drivetrain_core._context import LoopFacts as LoopFacts
from drivetrain_core._context import ModelFacts as ModelFacts
from drivetrain_core._context import WorldFacts as WorldFacts
from drivetrain_core._data.loader import undisturbed as undisturbed
from drivetrain_core._errors import CheckpointError as CheckpointError
from drivetrain_core._errors import ClusterSpecError as ClusterSpecError
from drivetrain_core._errors import Code as Code
from drivetrain_core._errors import DataExhaustedError as DataExhaustedError
from drivetrain_core._errors import DeviceError as DeviceError
from drivetrain_core._errors import DistributedError as DistributedError
from drivetrain_core._errors import DrivetrainError as DrivetrainError
from drivetrain_core._errors import MissingLibraryError as MissingLibraryError
from drivetrain_core._errors import NamesError as NamesError
from drivetrain_core._errors import PlanError as PlanError
from drivetrain_core._errors import PlanFormatError as PlanFormatError
from drivetrain_core._errors import PluginError as PluginError
from drivetrain_core._errors import ProgramError as ProgramError
from drivetrain_core._errors import SearchError as SearchError
from drivetrain_core._measurement import Measurement as Measurement
from drivetrain_core._model.names import canonical_name as canonical_name
from drivetrain_core._model.names import named_tensors as named_tensors
from drivetrain_core._optimization import BaseOptimization as BaseOptimization
from drivetrain_core._optimization import Optimization as Optimization
from drivetrain_core._plan import Plan as Plan
from drivetrain_core._plan import Reason as Reason
from drivetrain_core._plan import Rejected as Rejected
from drivetrain_core._registry import register as register
from drivetrain_core._registry import unregister as unregister
from drivetrain_core._state import TrainingState as TrainingState
from drivetrain_core._version import __version__ as __version__
from drivetrain_core._watch import Promise as Promise
from drivetrain_core.budget import Budget as Budget
from drivetrain_core.mesh_shape import MeshShape as MeshShape
from drivetrain_core.objective import Objective as Objective
from drivetrain_core.objective import samples_per_cost as samples_per_cost
from drivetrain_core.services._torch_process_group import (
    destroy_process_group as destroy_process_group,
)
from drivetrain_core.services._torch_process_group import (
    init_process_group as init_process_group,
)
from drivetrain_core.services.cluster_spec import ClusterSpec as ClusterSpec
