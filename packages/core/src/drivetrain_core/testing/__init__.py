"""Contract suites for the protocols of Drivetrain, and helpers to test with.

Each `check_*` function takes an implementation, or a factory of one, and raises an
`AssertionError` that says which clause of the contract is broken. They need no test
framework: call them from a test of your own. Importing this package imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core.lazy import load_export as _load_export

if TYPE_CHECKING:
    from drivetrain_core.testing._bars import Bar, Row, run_bars, slow, surroundings
    from drivetrain_core.testing._batch_plan import check_batch_plan
    from drivetrain_core.testing._capacity import (
        RecordingListener,
        check_membership_listener,
        check_notice_source,
    )
    from drivetrain_core.testing._checkpointer import check_checkpointer
    from drivetrain_core.testing._cloud_notices import check_cloud_notices
    from drivetrain_core.testing._cluster_spec import check_cluster_spec
    from drivetrain_core.testing._command_line import (
        check_wrong_use,
        exit_status,
        run_subcommand,
    )
    from drivetrain_core.testing._faults import FAULTS, FaultyOptimization
    from drivetrain_core.testing._model_layout import check_model_layout
    from drivetrain_core.testing._optimization import check_optimization
    from drivetrain_core.testing._plan_search import check_plan_search
    from drivetrain_core.testing._process_group import check_process_group_factory
    from drivetrain_core.testing._processes import RankError, run_ranks
    from drivetrain_core.testing._state_source import check_state_source

__all__ = [
    "FAULTS",
    "Bar",
    "FaultyOptimization",
    "RankError",
    "RecordingListener",
    "Row",
    "check_batch_plan",
    "check_checkpointer",
    "check_cloud_notices",
    "check_cluster_spec",
    "check_membership_listener",
    "check_model_layout",
    "check_notice_source",
    "check_optimization",
    "check_plan_search",
    "check_process_group_factory",
    "check_state_source",
    "check_wrong_use",
    "exit_status",
    "run_bars",
    "run_ranks",
    "run_subcommand",
    "slow",
    "surroundings",
]

_HOME = {
    "Bar": "_bars",
    "FAULTS": "_faults",
    "FaultyOptimization": "_faults",
    "RankError": "_processes",
    "RecordingListener": "_capacity",
    "Row": "_bars",
    "check_batch_plan": "_batch_plan",
    "check_checkpointer": "_checkpointer",
    "check_cloud_notices": "_cloud_notices",
    "check_cluster_spec": "_cluster_spec",
    "check_membership_listener": "_capacity",
    "check_model_layout": "_model_layout",
    "check_notice_source": "_capacity",
    "check_optimization": "_optimization",
    "check_plan_search": "_plan_search",
    "check_process_group_factory": "_process_group",
    "check_state_source": "_state_source",
    "check_wrong_use": "_command_line",
    "exit_status": "_command_line",
    "run_bars": "_bars",
    "run_ranks": "_processes",
    "run_subcommand": "_command_line",
    "slow": "_bars",
    "surroundings": "_bars",
}


def __getattr__(name: str) -> object:
    """Loads a public name when it is first used."""
    return _load_export(__name__, _HOME, name)


def __dir__() -> list[str]:
    """Returns the public names, loaded or not."""
    return sorted({*globals(), *__all__})
