"""A model over a mesh of ranks: pipeline, tensor, context and expert parallel.

How each axis lays a model out is derived from its data flow and proven on one process;
`accelerate(..., strategy=[("mesh", {"pipeline": 2, "tensor": 2})])` applies it. Besides:
what a step on a mesh costs (`cost`), training on clusters that are not at hand
(`drivetrain simulate`), and communication beside computing (`overlap`). Importing this
package imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core.lazy import load_export as _load_export

if TYPE_CHECKING:
    from drivetrain_parallel._version import __version__
    from drivetrain_parallel.device_mesh import ParallelMesh, create_mesh
    from drivetrain_parallel.layout_service import MeshLayouts
    from drivetrain_parallel.parallel_plan import ParallelPlan

__all__ = ["MeshLayouts", "ParallelMesh", "ParallelPlan", "__version__", "create_mesh"]

_HOME = {
    "MeshLayouts": "layout_service",
    "ParallelMesh": "device_mesh",
    "ParallelPlan": "parallel_plan",
    "__version__": "_version",
    "create_mesh": "device_mesh",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    return _load_export(__name__, _HOME, name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return list(__all__)
