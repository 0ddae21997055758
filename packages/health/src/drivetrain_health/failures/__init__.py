"""Why something has failed, which node is to blame, and what follows.

    evidence of a worker --diagnose--> diagnosis
    diagnoses of several workers --root_cause--> diagnosis --respond--> action

All are pure functions of plain values; `drivetrain_health.diagnosis` reads the evidence.
"""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
