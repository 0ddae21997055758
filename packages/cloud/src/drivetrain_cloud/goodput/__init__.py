"""How much of a training's time counts: simulated, from what fails and what recovery takes.

A job's failures strike at random; what follows is decided by the functions that the master
and its agents use, on a virtual clock. Importing this imports neither torch nor matplotlib.
"""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
