"""Contract suites for the protocols of this package, and doubles to test with.

Each `check_*` function takes a factory of an implementation, and raises an
`AssertionError` that says which clause of the contract is broken. They need no test
framework: call them from a test of your own. `LocalJob` runs the agents of a job on this
machine; `ScriptedWorlds` stands in for an agent.
"""

from __future__ import annotations

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
