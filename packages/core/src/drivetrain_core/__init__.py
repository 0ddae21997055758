"""Finds and applies the fastest way to run a PyTorch training program.

    accelerated = accelerate(model, optimizer, data, loss)
    for batch in accelerated.loader:
        loss = accelerated.train_step(batch)

Every name is imported when it is first used: importing this package imports neither
torch nor anything else that is slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core.lazy import load_export as _load_export

if TYPE_CHECKING:
    from drivetrain_core._accelerate import accelerate
    from drivetrain_core._accelerated import Accelerated
    from drivetrain_core._compose import Strategy
    from drivetrain_core._context import (
        BatchFacts,
        BlockFacts,
        Context,
        DeviceFacts,
        LoopFacts,
        ModelFacts,
        WorldFacts,
    )
    from drivetrain_core._errors import (
        CheckpointError,
        ClusterSpecError,
        Code,
        DataExhaustedError,
        DistributedError,
        DrivetrainError,
        MissingLibraryError,
        NamesError,
        PlanError,
        PlanFormatError,
        PluginError,
        ProgramError,
        SearchError,
    )
    from drivetrain_core._loader import undisturbed
    from drivetrain_core._measurement import Measurement
    from drivetrain_core._names import canonical_name, named_tensors
    from drivetrain_core._optimization import (
        BaseOptimization,
        Choice,
        Config,
        Estimate,
        Numerics,
        Ok,
        Optimization,
        Option,
        Phase,
        Reject,
        Slot,
    )
    from drivetrain_core._plan import Plan, Reason, Rejected
    from drivetrain_core._registry import register, unregister
    from drivetrain_core._state import TrainingState
    from drivetrain_core._version import __version__
    from drivetrain_core._watch import Promise
    from drivetrain_core.parallel.device_mesh import ParallelMesh, create_mesh
    from drivetrain_core.parallel.mesh_shape import MeshShape
    from drivetrain_core.search.budget import Budget
    from drivetrain_core.search.objective import Objective, samples_per_cost
    from drivetrain_core.search.report.record import TrialRecord
    from drivetrain_core.search.report.report import Report
    from drivetrain_core.services._torch_process_group import (
        destroy_process_group,
        init_process_group,
    )
    from drivetrain_core.services.cluster_spec import ClusterSpec

__all__ = [
    "Accelerated",
    "BaseOptimization",
    "BatchFacts",
    "BlockFacts",
    "Budget",
    "CheckpointError",
    "Choice",
    "ClusterSpec",
    "ClusterSpecError",
    "Code",
    "Config",
    "Context",
    "DataExhaustedError",
    "DeviceFacts",
    "DistributedError",
    "DrivetrainError",
    "Estimate",
    "LoopFacts",
    "Measurement",
    "MeshShape",
    "MissingLibraryError",
    "ModelFacts",
    "NamesError",
    "Numerics",
    "Objective",
    "Ok",
    "Optimization",
    "Option",
    "ParallelMesh",
    "Phase",
    "Plan",
    "PlanError",
    "PlanFormatError",
    "PluginError",
    "ProgramError",
    "Promise",
    "Reason",
    "Reject",
    "Rejected",
    "Report",
    "SearchError",
    "Slot",
    "Strategy",
    "TrainingState",
    "TrialRecord",
    "WorldFacts",
    "__version__",
    "accelerate",
    "canonical_name",
    "create_mesh",
    "destroy_process_group",
    "init_process_group",
    "named_tensors",
    "register",
    "samples_per_cost",
    "undisturbed",
    "unregister",
]

_MODULES = {
    "_accelerate": ("accelerate",),
    "_accelerated": ("Accelerated",),
    "_compose": ("Strategy",),
    "_context": (
        "BatchFacts",
        "BlockFacts",
        "Context",
        "DeviceFacts",
        "LoopFacts",
        "ModelFacts",
        "WorldFacts",
    ),
    "_errors": (
        "CheckpointError",
        "ClusterSpecError",
        "Code",
        "DataExhaustedError",
        "DistributedError",
        "DrivetrainError",
        "MissingLibraryError",
        "NamesError",
        "PlanError",
        "PlanFormatError",
        "PluginError",
        "ProgramError",
        "SearchError",
    ),
    "_loader": ("undisturbed",),
    "_measurement": ("Measurement",),
    "_names": ("canonical_name", "named_tensors"),
    "_optimization": (
        "BaseOptimization",
        "Choice",
        "Config",
        "Estimate",
        "Numerics",
        "Ok",
        "Optimization",
        "Option",
        "Phase",
        "Reject",
        "Slot",
    ),
    "_plan": ("Plan", "Reason", "Rejected"),
    "_registry": ("register", "unregister"),
    "_state": ("TrainingState",),
    "_version": ("__version__",),
    "_watch": ("Promise",),
    "parallel.device_mesh": ("ParallelMesh", "create_mesh"),
    "parallel.mesh_shape": ("MeshShape",),
    "search.budget": ("Budget",),
    "search.objective": ("Objective", "samples_per_cost"),
    "search.report.record": ("TrialRecord",),
    "search.report.report": ("Report",),
    "services.cluster_spec": ("ClusterSpec",),
    "services._torch_process_group": ("destroy_process_group", "init_process_group"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    return _load_export(__name__, _HOME, name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return list(__all__)
