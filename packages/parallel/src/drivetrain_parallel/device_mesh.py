"""The mesh of this job's ranks: groups by the names of their axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from drivetrain_core import DistributedError
from drivetrain_core.mesh_shape import MeshShape
from drivetrain_parallel.torch_internals import flatten_mesh, timeout_of_the_job

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class ParallelMesh:
    """The ranks of a job along the axes of a shape.

    Args:
        shape: How many there are along each axis.
        device_mesh: Torch's mesh of the axes that are used, the slowest first.
        rank: This rank.

    Attributes:
        shape: As given.
        device_mesh: As given.
        place: Where this rank lies along each axis.
    """

    def __init__(self, shape: MeshShape, device_mesh: DeviceMesh, rank: int) -> None:
        """Keeps the parts."""
        self.shape = shape
        self.device_mesh = device_mesh
        self.place = shape.coordinates(rank)
        self._flat: dict[tuple[str, ...], DeviceMesh] = {}

    def axis(self, name: str) -> DeviceMesh | None:
        """Returns torch's mesh of one axis; None where it has a single rank."""
        return self.device_mesh[name] if self.shape.used().get(name) else None

    def axes(self, *names: str) -> DeviceMesh | None:
        """Returns one flat mesh over several axes; None if none of them is used.

        All ranks must ask for the same axes in the same order: a group may be made.
        """
        used = tuple(name for name in self.shape.used() if name in names)
        if not used:
            return None
        if len(used) == 1:
            return self.device_mesh[used[0]]
        if used not in self._flat:
            with timeout_of_the_job():
                self._flat[used] = flatten_mesh(self.device_mesh[used], "_".join(used))
        return self._flat[used]

    def group(self, name: str) -> ProcessGroup | None:
        """Returns the group of ranks along one axis; None where it has a single one."""
        mesh = self.axis(name)
        return None if mesh is None else mesh.get_group()

    def __repr__(self) -> str:
        """Returns the shape."""
        return f"ParallelMesh({self.shape})"


def create_mesh(*, device_type: str | None = None, **axes: int | None) -> ParallelMesh:
    """Returns the mesh of all ranks of this job, with a group for each axis.

    Every rank calls it. Ranks that differ along the last axis only are neighbours.

    Args:
        device_type: Torch's device type; by default that of the accelerator, or `cpu`.
        **axes: Ranks along `pipeline`, `replicate`, `shard`, `expert`, `context` and
            `tensor`. Of `shard` and `replicate`, one that is not given takes what the
            others leave.

    Raises:
        PlanError: The axes do not multiply to the number of ranks, or one is unknown.
        DistributedError: No process group stands.

    Example:
        >>> import torch.distributed as dist
        >>> store = dist.HashStore()
        >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> mesh = create_mesh()
        >>> str(mesh.shape), mesh.place["tensor"]
        ('one rank', 0)
        >>> dist.destroy_process_group()
    """
    if not torch.distributed.is_initialized():
        message = (
            "a mesh needs a process group; call drivetrain_core.init_process_group()"
        )
        raise DistributedError(message)
    world = torch.distributed.get_world_size()
    shape = MeshShape.of(axes, world)
    if device_type is None:
        found = torch.accelerator.current_accelerator(check_available=True)
        device_type = "cpu" if found is None else found.type
    used = shape.used() or {"replicate": 1}
    with timeout_of_the_job():
        mesh = init_device_mesh(
            device_type, tuple(used.values()), mesh_dim_names=tuple(used)
        )
    return ParallelMesh(shape, mesh, torch.distributed.get_rank())
