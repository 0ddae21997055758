"""Training on nodes that may be taken away: decisions, and what carries them out.

`decide` is a pure function of the time, of what nodes there are and of what the user
wants; the supervisor, the operator of Kubernetes and the simulation of strategies all
ask it. Each of its five abilities is a file of its own: `max_wait_time`,
`checkpoint_saving`, `fail_tolerance`, `job_recovery` and `cost_observability`.
"""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
