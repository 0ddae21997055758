"""Hosts and the links between them: read, measured, judged and drawn.

`read_topology` says what a host is made of, `measure_links` what its ranks reach; all
else are pure functions of the two. Only `measure_links` imports torch.
"""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
