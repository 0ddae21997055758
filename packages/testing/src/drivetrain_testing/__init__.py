"""Contract suites for the protocols of Drivetrain, and helpers to test with.

Each `check_*` function takes an implementation, or a factory of one, and raises an
`AssertionError` that says which clause of the contract is broken. They need no test
framework: call them from a test of your own. Importing this package imports no torch.
"""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
