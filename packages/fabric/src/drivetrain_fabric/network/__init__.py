"""Data-centre fabrics, simulated: how flows meet, how fast they are, what to do.

Flows of collectives and jobs are placed on a folded Clos network, hashed to its links,
and get max-min fair rates. A second, finer model shows queues, marks and pauses of a few
flows. Nothing here imports torch.
"""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
