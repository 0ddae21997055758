"""Settings of NCCL, Gloo and the kernel for this network, each with its reason.

`gather` reads what a host shows, `with_given`, `with_measured` and `with_cluster` add
what people know, `advise` says what follows, for the version of NCCL at hand. Nothing
is changed, and nothing is guessed: what is not known is said to be missing. Rules come
from manuals, sources and reports of users, which each of them names; none was proven
here on RDMA hardware.
"""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
