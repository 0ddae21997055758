"""To test with: `LocalJob` runs a job's agents here, `ScriptedWorlds` stands for one."""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
