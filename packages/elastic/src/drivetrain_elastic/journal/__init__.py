"""What the master must not forget, kept where a crash does not reach it.

A journal is a list of records to which only the master appends that claimed it last. Where
several masters stand ready, a lease says which of them may claim it.
"""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
