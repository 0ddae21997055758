"""Contract suites for the protocols of this package, and doubles to test with.

Each `check_*` function takes a factory of an implementation, and raises an
`AssertionError` that says which clause of the contract is broken. They need no test
framework: call them from a test of your own. `LocalJob` runs the agents of a job on this
machine; `ScriptedWorlds` stands in for an agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core.lazy import load_export as _load_export

if TYPE_CHECKING:
    from drivetrain_elastic.testing._journal import check_journal, check_lease
    from drivetrain_elastic.testing._local_job import (
        LocalJob,
        LocalJobError,
        members_of,
    )
    from drivetrain_elastic.testing._scripted_worlds import (
        ScriptedWorlds,
        connect_store,
        write_worlds,
    )

__all__ = [
    "LocalJob",
    "LocalJobError",
    "ScriptedWorlds",
    "check_journal",
    "check_lease",
    "connect_store",
    "members_of",
    "write_worlds",
]

_HOMES = {
    "LocalJob": "_local_job",
    "LocalJobError": "_local_job",
    "ScriptedWorlds": "_scripted_worlds",
    "check_journal": "_journal",
    "check_lease": "_journal",
    "connect_store": "_scripted_worlds",
    "members_of": "_local_job",
    "write_worlds": "_scripted_worlds",
}


def __getattr__(name: str) -> Any:
    """Imports what needs torch when it is first used."""
    return _load_export(__name__, _HOMES, name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return list(__all__)
