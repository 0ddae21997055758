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
from drivetrain_core.moved import forward_modules as _forward_modules
from drivetrain_core.moved import load_moved as _load_moved

if TYPE_CHECKING:
    from drivetrain_core._accelerate import accelerate
    from drivetrain_core._accelerated import Accelerated
    from drivetrain_core._choice import (
        Choice,
        Config,
        Estimate,
        Numerics,
        Ok,
        Option,
        Phase,
        Reject,
        Slot,
    )
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
    from drivetrain_core._data.loader import undisturbed
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
    from drivetrain_core._measurement import Measurement
    from drivetrain_core._model.names import canonical_name, named_tensors
    from drivetrain_core._optimization import BaseOptimization, Optimization
    from drivetrain_core._plan import Plan, Reason, Rejected
    from drivetrain_core._registry import register, unregister
    from drivetrain_core._state import TrainingState
    from drivetrain_core._version import __version__
    from drivetrain_core._watch import Promise
    from drivetrain_core.budget import Budget
    from drivetrain_core.mesh_shape import MeshShape
    from drivetrain_core.objective import Objective, samples_per_cost
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
    "SearchError",
    "Slot",
    "Strategy",
    "TrainingState",
    "WorldFacts",
    "__version__",
    "accelerate",
    "canonical_name",
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
    "_choice": (
        "Choice",
        "Config",
        "Estimate",
        "Numerics",
        "Ok",
        "Option",
        "Phase",
        "Reject",
        "Slot",
    ),
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
    "_data.loader": ("undisturbed",),
    "_measurement": ("Measurement",),
    "_model.names": ("canonical_name", "named_tensors"),
    "_optimization": ("BaseOptimization", "Optimization"),
    "_plan": ("Plan", "Reason", "Rejected"),
    "_registry": ("register", "unregister"),
    "_state": ("TrainingState",),
    "_version": ("__version__",),
    "_watch": ("Promise",),
    "budget": ("Budget",),
    "mesh_shape": ("MeshShape",),
    "objective": ("Objective", "samples_per_cost"),
    "services.cluster_spec": ("ClusterSpec",),
    "services._torch_process_group": ("destroy_process_group", "init_process_group"),
}
# Names that moved to another package, and go away in the next minor version.
_MOVED = {
    "ParallelMesh": "drivetrain_parallel",
    "Report": "drivetrain_search",
    "TrialRecord": "drivetrain_search",
    "create_mesh": "drivetrain_parallel",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    if name in _MOVED:
        return _load_moved(__name__, _MOVED[name], name)
    return _load_export(__name__, _HOME, name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return list(__all__)


_forward_modules(
    {
        "drivetrain_comm.overlap": "drivetrain_parallel.overlap",
        "drivetrain_core.builtin.loss_parallel": "drivetrain_parallel.optimizations.loss_parallel",
        "drivetrain_core.builtin.mesh": "drivetrain_parallel.optimizations.mesh",
        "drivetrain_core.builtin.schedule": "drivetrain_parallel.optimizations.schedule",
        "drivetrain_core.builtin.sequence_parallel": "drivetrain_parallel.optimizations.sequence_parallel",
        "drivetrain_core.examples.digits": "drivetrain_search.examples.digits",
        "drivetrain_core.examples.llama": "drivetrain_parallel.examples.llama",
        "drivetrain_core.parallel": "drivetrain_parallel",
        "drivetrain_core.parallel.agreed_plan": "drivetrain_core._layout",
        "drivetrain_core.parallel.canonical": "drivetrain_parallel.state.canonical",
        "drivetrain_core.parallel.exchange": "drivetrain_parallel.collective_channel",
        "drivetrain_core.parallel.in_place": "drivetrain_parallel.proof.in_place",
        "drivetrain_core.parallel.laying": "drivetrain_parallel.apply_mesh",
        "drivetrain_core.parallel.mesh_shape": "drivetrain_core.mesh_shape",
        "drivetrain_core.parallel.meta.hollow": "drivetrain_parallel.meta.meta_model",
        "drivetrain_core.parallel.proof": "drivetrain_parallel.proof.outputs",
        "drivetrain_core.parallel.resolve": "drivetrain_core.mesh_shape",
        "drivetrain_core.parallel.stage_list": "drivetrain_parallel.pipeline.stage_list",
        "drivetrain_core.parallel.state.entries": "drivetrain_parallel.mesh_layout",
        "drivetrain_core.parallel.state.laid_model": "drivetrain_parallel.state.parallelized_model",
        "drivetrain_core.parallel.undisturbed": "drivetrain_parallel.proof.rng_guard",
        "drivetrain_core.search": "drivetrain_search",
        "drivetrain_core.search.anchor": "drivetrain_search.reference_trial",
        "drivetrain_core.search.belief": "drivetrain_search.posterior",
        "drivetrain_core.search.budget": "drivetrain_core.budget",
        "drivetrain_core.search.foresight": "drivetrain_search.prediction",
        "drivetrain_core.search.foresight.foresight": "drivetrain_search.prediction.predictor",
        "drivetrain_core.search.numerics": "drivetrain_core.numerics",
        "drivetrain_core.search.numerics.draw": "drivetrain_search.draw",
        "drivetrain_core.search.numerics.liveness": "drivetrain_core.numerics.parameter_usage",
        "drivetrain_core.search.numerics.soundness": "drivetrain_core.numerics.structure_check",
        "drivetrain_core.search.numerics.verify": "drivetrain_search.verify",
        "drivetrain_core.search.objective": "drivetrain_core.objective",
        "drivetrain_core.search.process.leftovers": "drivetrain_search.process.orphan_cleanup",
        "drivetrain_core.search.process.unfinished": "drivetrain_search.process.partial_libraries",
        "drivetrain_core.search.report.page_style": "drivetrain_core.drawing.page_style",
        "drivetrain_core.search.report.svg": "drivetrain_core.drawing.svg",
        "drivetrain_core.search.reserve": "drivetrain_search.time_budget",
        "drivetrain_core.search.shares": "drivetrain_search.phase_shares",
        "drivetrain_core.search.why": "drivetrain_search.explanation",
        "drivetrain_core.simulate": "drivetrain_parallel.simulate",
    }
)
