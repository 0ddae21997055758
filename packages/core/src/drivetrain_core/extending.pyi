from drivetrain_core._build import build as build
from drivetrain_core._compose import arrange as arrange
from drivetrain_core._compose import complete as complete
from drivetrain_core._compose import numerics_of as numerics_of
from drivetrain_core._compose import problems as problems
from drivetrain_core._compose import read_strategy as read_strategy
from drivetrain_core._compose import require_usable as require_usable
from drivetrain_core._data.batch import batch_size as batch_size
from drivetrain_core._data.batch import map_tensors as map_tensors
from drivetrain_core._data.batch import move_batch as move_batch
from drivetrain_core._data.batch import split_batch as split_batch
from drivetrain_core._data.batch import tensors_of as tensors_of
from drivetrain_core._data.cycle import cycle as cycle
from drivetrain_core._data.cycle import guard_batches as guard_batches
from drivetrain_core._errors import visible as visible
from drivetrain_core._layout import agreed_layout as agreed_layout
from drivetrain_core._model.blocks import NO_BLOCKS as NO_BLOCKS
from drivetrain_core._model.blocks import block_run as block_run
from drivetrain_core._model.blocks import find_blocks as find_blocks
from drivetrain_core._model.blocks import repeated_blocks as repeated_blocks
from drivetrain_core._model.compile_in_place import (
    separate_compile_cache as separate_compile_cache,
)
from drivetrain_core._model.forward import Forward as Forward
from drivetrain_core._model.forward import wrap_forward as wrap_forward
from drivetrain_core._model.meta_model import Weights as Weights
from drivetrain_core._model.meta_model import is_meta_model as is_meta_model
from drivetrain_core._model.names import named_modules as named_modules
from drivetrain_core._model.names import named_parts as named_parts
from drivetrain_core._model.snapshot import ModelSnapshot as ModelSnapshot
from drivetrain_core._optimizer.master_weights import (
    MasterWeightOptimizer as MasterWeightOptimizer,
)
from drivetrain_core._optimizer.source import OptimizerSource as OptimizerSource
from drivetrain_core._optimizer.source import step_hooks as step_hooks
from drivetrain_core._partial import AUTO as AUTO
from drivetrain_core._partial import Partial as Partial
from drivetrain_core._plan import describe as describe
from drivetrain_core._plugins import OPTIMIZATIONS as OPTIMIZATIONS
from drivetrain_core._plugins import SERVICES as SERVICES
from drivetrain_core._plugins import clear_plugin_cache as clear_plugin_cache
from drivetrain_core._plugins import installed as installed
from drivetrain_core._probe import make_context as make_context
from drivetrain_core._probe import probe_model as probe_model
from drivetrain_core._processes.child_process import ChildProcess as ChildProcess
from drivetrain_core._processes.child_process import ForkedProcess as ForkedProcess
from drivetrain_core._processes.child_process import NewProcess as NewProcess
from drivetrain_core._processes.fork_server import MARKER as MARKER
from drivetrain_core._program import Program as Program
from drivetrain_core._ranks import describe_error as describe_error
from drivetrain_core._ranks import rebuild_error as rebuild_error
from drivetrain_core._registry import available as available
from drivetrain_core._registry import failures as failures
from drivetrain_core._registry import find as find
from drivetrain_core._registry import forget_loaded as forget_loaded
from drivetrain_core._registry import registered as registered
from drivetrain_core._scripts.overrides import Overrides as Overrides
from drivetrain_core._scripts.overrides import overriding as overriding
from drivetrain_core._scripts.replay import Replay as Replay
from drivetrain_core._scripts.replay import Script as Script
from drivetrain_core._scripts.replay import run_script as run_script
from drivetrain_core._scripts.shipping import by_value as by_value
from drivetrain_core._yaml import dump_yaml as dump_yaml
from drivetrain_core._yaml import load_yaml as load_yaml
from drivetrain_core.services._optimizer_restoration import (
    OptimizerRestoration as OptimizerRestoration,
)
from drivetrain_core.services._optimizer_state import OptimizerState as OptimizerState
from drivetrain_core.services._optimizer_state import (
    keeps_state_by_parameter as keeps_state_by_parameter,
)
from drivetrain_core.services._own_state import has_own_state as has_own_state
from drivetrain_core.services._packed_entry import TENSORS as TENSORS
from drivetrain_core.services._packed_entry import NamedModel as NamedModel
from drivetrain_core.services._packed_entry import PackedEntry as PackedEntry
from drivetrain_core.services._packed_entry import merge_tensors as merge_tensors
from drivetrain_core.services._packed_entry import pack_entry as pack_entry
from drivetrain_core.services._packed_entry import (
    with_extra_state as with_extra_state,
)
from drivetrain_core.services._part_of_model import data_part_of as data_part_of
from drivetrain_core.services._part_of_model import mark_as_part as mark_as_part
from drivetrain_core.services._part_of_model import mark_data_part as mark_data_part
from drivetrain_core.services._plain_tree import equal_plain as equal_plain
from drivetrain_core.services._plain_tree import join_tree as join_tree
from drivetrain_core.services._plain_tree import plain_leaf as plain_leaf
from drivetrain_core.services._plain_tree import split_tree as split_tree
from drivetrain_core.services._plain_tree import unpickled as unpickled
from drivetrain_core.services._shape_mismatch import absent as absent
from drivetrain_core.services._shape_mismatch import shape_mismatch as shape_mismatch
from drivetrain_core.services._shape_mismatch import summary as summary
