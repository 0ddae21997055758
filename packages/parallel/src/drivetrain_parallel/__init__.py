"""A model over a mesh of ranks: pipeline, tensor, context and expert parallel.

How each axis lays a model out is derived from its data flow and proven on one process;
`accelerate(..., strategy=[("mesh", {"pipeline": 2, "tensor": 2})])` applies it. Besides:
what a step on a mesh costs (`cost`), training on clusters that are not at hand
(`drivetrain simulate`), and communication beside computing (`overlap`). Importing this
package imports no torch.
"""

from __future__ import annotations

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
