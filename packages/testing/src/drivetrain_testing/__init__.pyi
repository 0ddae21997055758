from drivetrain_testing._accelerator import check_accelerator as check_accelerator
from drivetrain_testing._bars import Bar as Bar
from drivetrain_testing._bars import Row as Row
from drivetrain_testing._bars import run_bars as run_bars
from drivetrain_testing._bars import slow as slow
from drivetrain_testing._bars import surroundings as surroundings
from drivetrain_testing._batch_plan import check_batch_plan as check_batch_plan
from drivetrain_testing._checkpointer import (
    check_checkpointer as check_checkpointer,
)
from drivetrain_testing._cloud_notices import (
    check_cloud_notices as check_cloud_notices,
)
from drivetrain_testing._cluster_spec import (
    check_cluster_spec as check_cluster_spec,
)
from drivetrain_testing._command_line import check_wrong_use as check_wrong_use
from drivetrain_testing._command_line import exit_status as exit_status
from drivetrain_testing._command_line import run_subcommand as run_subcommand
from drivetrain_testing._faults import FAULTS as FAULTS
from drivetrain_testing._faults import FaultyOptimization as FaultyOptimization
from drivetrain_testing._gpu import gpu_copy_bandwidth as gpu_copy_bandwidth
from drivetrain_testing._gpu import gpu_seconds as gpu_seconds
from drivetrain_testing._job_store import check_job_store as check_job_store
from drivetrain_testing._model_layout import (
    check_model_layout as check_model_layout,
)
from drivetrain_testing._optimization import (
    check_optimization as check_optimization,
)
from drivetrain_testing._plan_search import check_plan_search as check_plan_search
from drivetrain_testing._process_group import (
    check_process_group_factory as check_process_group_factory,
)
from drivetrain_testing._processes import RankError as RankError
from drivetrain_testing._processes import is_alive as is_alive
from drivetrain_testing._processes import run_ranks as run_ranks
from drivetrain_testing._recorded_machine import RecordedMachine as RecordedMachine
from drivetrain_testing._triton_ahead import SHARED_MEMORY as SHARED_MEMORY
from drivetrain_testing._triton_ahead import TritonCode as TritonCode
from drivetrain_testing._triton_ahead import compile_apart as compile_apart
from drivetrain_testing._triton_ahead import triton_compiled_for as triton_compiled_for
from drivetrain_testing._version import __version__ as __version__
