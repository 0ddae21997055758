"""What packages that stand on elastic are built with, and scripts have no need of.

Membership: a `RankAssignment` holds the ranks of one world for a worker, and
`SingleProcessMembership` assigns them to a process without an agent; `Connection`, from
`connect()`, has the membership of a worker and the store of its job; a `World` is the set of
ranks of one membership epoch, with its process groups. Masters: `MasterClient` calls one;
tokens say who may. `RateLimitedLog` says when a message that is repeated is due.
"""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
