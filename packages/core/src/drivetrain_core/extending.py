"""What packages that search plans, lay models out, or run trials need of core.

Names that a training script has no use for: how a strategy is read and checked, how a
batch is split, which blocks a model repeats, child processes. They keep what they do
within a minor version. All else that packages need is in `drivetrain_core` itself, and in
`services`, `numerics`, `commands` and `testing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core.lazy import load_export as _load_export

if TYPE_CHECKING:
    from drivetrain_core._build import build
    from drivetrain_core._compose import (
        arrange,
        complete,
        numerics_of,
        problems,
        read_strategy,
        require_usable,
    )
    from drivetrain_core._data.batch import (
        batch_size,
        map_tensors,
        move_batch,
        split_batch,
        tensors_of,
    )
    from drivetrain_core._data.cycle import cycle, guard_batches
    from drivetrain_core._data.loader import num_prepared
    from drivetrain_core._layout import agreed_layout
    from drivetrain_core._model.blocks import (
        NO_BLOCKS,
        block_run,
        blocks_between,
        find_blocks,
        repeated_blocks,
    )
    from drivetrain_core._model.forward import Forward, wrap_forward
    from drivetrain_core._model.meta_model import Weights, is_meta_model
    from drivetrain_core._model.names import named_modules, named_parts
    from drivetrain_core._optimizer.master_weights import MasterWeightOptimizer
    from drivetrain_core._optimizer.source import OptimizerSource
    from drivetrain_core._partial import AUTO, Partial, candidates_of
    from drivetrain_core._plan import describe
    from drivetrain_core._plugins import OPTIMIZATIONS, SERVICES, installed
    from drivetrain_core._probe import make_context
    from drivetrain_core._processes.child_process import (
        ChildProcess,
        ForkedProcess,
        NewProcess,
    )
    from drivetrain_core._processes.fork_server import MARKER, die_with
    from drivetrain_core._program import Program
    from drivetrain_core._registry import available, failures, find, registered
    from drivetrain_core._scripts.overrides import Overrides, overriding
    from drivetrain_core._scripts.replay import Replay, Script, run_script
    from drivetrain_core._scripts.shipping import by_value, provide_modules
    from drivetrain_core._yaml import load_yaml
    from drivetrain_core.services._optimizer_restoration import OptimizerRestoration
    from drivetrain_core.services._optimizer_state import (
        OptimizerState,
        keeps_state_by_parameter,
    )
    from drivetrain_core.services._part_of_model import mark_as_part
    from drivetrain_core.services._plain_tree import join_tree, split_tree
    from drivetrain_core.services._shape_mismatch import absent, shape_mismatch, summary

__all__ = [
    "AUTO",
    "MARKER",
    "NO_BLOCKS",
    "OPTIMIZATIONS",
    "SERVICES",
    "ChildProcess",
    "ForkedProcess",
    "Forward",
    "MasterWeightOptimizer",
    "NewProcess",
    "OptimizerRestoration",
    "OptimizerSource",
    "OptimizerState",
    "Overrides",
    "Partial",
    "Program",
    "Replay",
    "Script",
    "Weights",
    "absent",
    "agreed_layout",
    "arrange",
    "available",
    "batch_size",
    "block_run",
    "blocks_between",
    "build",
    "by_value",
    "candidates_of",
    "complete",
    "cycle",
    "describe",
    "die_with",
    "failures",
    "find",
    "find_blocks",
    "guard_batches",
    "installed",
    "is_meta_model",
    "join_tree",
    "keeps_state_by_parameter",
    "load_yaml",
    "make_context",
    "map_tensors",
    "mark_as_part",
    "move_batch",
    "named_modules",
    "named_parts",
    "num_prepared",
    "numerics_of",
    "overriding",
    "problems",
    "provide_modules",
    "read_strategy",
    "registered",
    "repeated_blocks",
    "require_usable",
    "run_script",
    "shape_mismatch",
    "split_batch",
    "split_tree",
    "summary",
    "tensors_of",
    "wrap_forward",
]

_HOME = {
    "AUTO": "_partial",
    "ChildProcess": "_processes.child_process",
    "ForkedProcess": "_processes.child_process",
    "Forward": "_model.forward",
    "MARKER": "_processes.fork_server",
    "MasterWeightOptimizer": "_optimizer.master_weights",
    "NO_BLOCKS": "_model.blocks",
    "NewProcess": "_processes.child_process",
    "OPTIMIZATIONS": "_plugins",
    "OptimizerRestoration": "services._optimizer_restoration",
    "OptimizerSource": "_optimizer.source",
    "OptimizerState": "services._optimizer_state",
    "Overrides": "_scripts.overrides",
    "Partial": "_partial",
    "Program": "_program",
    "Replay": "_scripts.replay",
    "SERVICES": "_plugins",
    "Script": "_scripts.replay",
    "Weights": "_model.meta_model",
    "absent": "services._shape_mismatch",
    "agreed_layout": "_layout",
    "arrange": "_compose",
    "available": "_registry",
    "batch_size": "_data.batch",
    "block_run": "_model.blocks",
    "blocks_between": "_model.blocks",
    "build": "_build",
    "by_value": "_scripts.shipping",
    "candidates_of": "_partial",
    "complete": "_compose",
    "cycle": "_data.cycle",
    "describe": "_plan",
    "die_with": "_processes.fork_server",
    "failures": "_registry",
    "find": "_registry",
    "find_blocks": "_model.blocks",
    "guard_batches": "_data.cycle",
    "installed": "_plugins",
    "is_meta_model": "_model.meta_model",
    "join_tree": "services._plain_tree",
    "keeps_state_by_parameter": "services._optimizer_state",
    "load_yaml": "_yaml",
    "make_context": "_probe",
    "map_tensors": "_data.batch",
    "mark_as_part": "services._part_of_model",
    "move_batch": "_data.batch",
    "named_modules": "_model.names",
    "named_parts": "_model.names",
    "num_prepared": "_data.loader",
    "numerics_of": "_compose",
    "overriding": "_scripts.overrides",
    "problems": "_compose",
    "provide_modules": "_scripts.shipping",
    "read_strategy": "_compose",
    "registered": "_registry",
    "repeated_blocks": "_model.blocks",
    "require_usable": "_compose",
    "run_script": "_scripts.replay",
    "shape_mismatch": "services._shape_mismatch",
    "split_batch": "_data.batch",
    "split_tree": "services._plain_tree",
    "summary": "services._shape_mismatch",
    "tensors_of": "_data.batch",
    "wrap_forward": "_model.forward",
}


def __getattr__(name: str) -> Any:
    """Imports a name when it is first used."""
    return _load_export(__name__, _HOME, name, base="drivetrain_core")


def __dir__() -> list[str]:
    """Returns the names."""
    return list(__all__)
