"""Search for the fastest plan of a training program: what `strategy="auto"` does.

Trials run in processes of their own, are held to the numbers of the program as written,
and the best of them meet it in a final. `accelerate` finds this package by itself;
`drivetrain search` runs it for a script. Importing it imports no torch.
"""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
