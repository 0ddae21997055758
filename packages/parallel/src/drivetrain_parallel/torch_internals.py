"""What is private in torch and needed here, in one place, with clear errors."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from drivetrain_core import MissingLibraryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch.distributed.device_mesh import DeviceMesh

# Names of process groups count up from here, so that none of a simulation is that of a
# group of the job.
_FIRST_SIMULATED_GROUP = 1 << 40


def flatten_mesh(mesh: DeviceMesh, name: str) -> DeviceMesh:
    """Returns a mesh of several axes as one axis.

    Args:
        mesh: A slice of the job's mesh.
        name: That of the new axis.
    """
    flatten = getattr(mesh, "_flatten", None)
    if flatten is None:
        raise MissingLibraryError(_missing("DeviceMesh._flatten"))
    found: DeviceMesh = flatten(name)
    return found


@contextmanager
def timeout_of_the_job() -> Iterator[None]:
    """Gives groups that are made inside the time-out of the job's own group.

    Torch gives them that of their backend, half an hour for some, and a receive of Gloo
    keeps for ever what its group was made with.
    """
    import torch.distributed.distributed_c10d as _c10d

    c10d: Any = _c10d
    whole = c10d._get_default_group()
    options = getattr(whole._get_backend(whole._device_types[0]), "options", None)
    timeout = getattr(options, "_timeout", None)
    if timeout is None:
        yield
        return
    if not hasattr(c10d, "_get_default_timeout"):
        raise MissingLibraryError(_missing("distributed_c10d._get_default_timeout"))
    usual = c10d._get_default_timeout
    c10d._get_default_timeout = lambda _backend: timeout
    try:
        yield
    finally:
        c10d._get_default_timeout = usual


def connect_stage_to_others_alone(stage: Any) -> Any:
    """Returns a stage of torch's pipeline that sends itself nothing at its first step.

    torch 2.11 connects neighbouring stages by a first message, also where one rank
    holds both, and Gloo cannot send to its own rank.
    """
    messages = getattr(stage, "_get_init_p2p_neighbors_ops", list)
    stage._get_init_p2p_neighbors_ops = lambda: [
        one for one in messages() if one.group_peer != one.group.rank()
    ]
    return stage


def replicate_module(module: Any, **options: Any) -> Any:
    """Averages the gradients of a module, as FSDP2 does without shards."""
    try:
        from torch.distributed._composable.replicate_with_fsdp import replicate
    except ImportError as error:
        what = "torch.distributed._composable.replicate_with_fsdp"
        raise MissingLibraryError(_missing(what)) from error
    return replicate(module, **options)


def is_replicated(module: Any) -> bool:
    """Returns whether `replicate_module` has wrapped a module."""
    home = sys.modules.get("torch.distributed._composable.replicate_with_fsdp")
    kind = getattr(home, "ReplicateModule", None)
    return kind is not None and isinstance(module, kind)


@contextmanager
def keep_donated_buffers(keep: bool) -> Iterator[None]:
    """Lets a compiled block run backwards in two halves, as zero-bubble schedules do.

    Compiled code gives buffers of the forward to its backward, which may then run only
    once. What is compiled inside of this context does not.

    Args:
        keep: Whether to do so; nothing changes otherwise.
    """
    if not keep:
        yield
        return
    try:
        import torch._functorch.config as functorch
    except ImportError as error:
        raise MissingLibraryError(_missing("torch._functorch.config")) from error
    if not hasattr(functorch, "donated_buffer"):
        yield
        return
    with functorch.patch(donated_buffer=False):
        yield


@contextmanager
def simulated_ranks(number: int) -> Iterator[DeviceMesh]:
    """Runs what is inside as so many ranks at once, in this process.

    Every tensor made inside has a value for each rank, and collectives exchange them.
    A process group that the job has stays as it is, and is hidden inside. Only one
    thread may be in here at a time.

    Args:
        number: Ranks; the mesh that is handed in has them along one axis.
    """
    import torch.distributed.distributed_c10d as _c10d
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed._local_tensor import LocalTensorMode
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError as error:
        raise MissingLibraryError(_missing("LocalTensorMode")) from error
    c10d: Any = _c10d
    if not hasattr(c10d, "_world") or not hasattr(c10d, "_World"):
        raise MissingLibraryError(_missing("distributed_c10d._World"))
    outside = c10d._world
    rank = outside.default_pg.rank() if outside.default_pg is not None else -1
    c10d._world = _simulated_world()
    try:
        c10d.init_process_group("fake", store=FakeStore(), rank=0, world_size=number)
        with LocalTensorMode(number):
            # Torch keeps results of layouts by mesh: a real mesh must not equal this one.
            yield init_device_mesh("cpu", (number,), mesh_dim_names=("simulated",))
    finally:
        for name in list(c10d._world.pg_names.values()):
            c10d._unregister_process_group(name)
        c10d._world = outside
        torch_c10d = sys.modules["torch._C._distributed_c10d"]
        torch_c10d._set_global_rank(rank)


def _simulated_world() -> Any:
    """Returns what torch.distributed knows of process groups: none as yet."""
    import torch.distributed.distributed_c10d as c10d

    class World(c10d._World):
        pg_map: Any = {}
        pg_names: Any = {}
        pg_group_ranks: Any = {}
        pg_backend_config: Any = {}
        tags_to_pg: Any = {}
        pg_to_tag: Any = {}
        group_count: Any = _FIRST_SIMULATED_GROUP

    return World()


def per_rank(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns the value that each simulated rank has; one where all have the same."""
    values = getattr(tensor, "_local_tensors", None)
    return [tensor] if values is None else [values[rank] for rank in sorted(values)]


def all_gather(x: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    """Returns the parts of all ranks of a group, joined along a dimension."""
    import torch.distributed._functional_collectives as funcol

    # Its name up to torch 2.12 is deprecated in 2.13.
    gather = getattr(funcol, "all_gather_single", None) or funcol.all_gather_tensor
    found: torch.Tensor = _wait(gather(x, dim, group))
    return found


def reduce_scatter(x: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    """Returns this rank's part, along a dimension, of the sum over a group."""
    import torch.distributed._functional_collectives as funcol

    scatter = getattr(funcol, "reduce_scatter_single", None)
    scatter = scatter or funcol.reduce_scatter_tensor
    found: torch.Tensor = _wait(scatter(x, "sum", dim, group))
    return found


def all_reduce(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Returns the sum over the ranks of a group."""
    import torch.distributed._functional_collectives as funcol

    found: torch.Tensor = _wait(funcol.all_reduce(x, "sum", group))
    return found


def _wait(x: Any) -> torch.Tensor:
    import torch.distributed._functional_collectives as funcol

    wait: Any = funcol.wait_tensor
    found: torch.Tensor = wait(x)
    return found


def on_each_rank(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor itself; in a simulation, with a value for each rank.

    A tensor from outside of the simulation is left alone by it until it meets one from
    inside, so what depends on the rank must not be computed from it before.
    """
    module = sys.modules.get("torch.distributed._local_tensor")
    mode = module.enabled_local_tensor_mode() if module is not None else None
    if mode is None or isinstance(tensor, module.LocalTensor):  # type: ignore[union-attr]
        return tensor
    found: torch.Tensor = mode.rank_map(lambda _: tensor)
    return found


def _missing(what: str) -> str:
    import torch

    return f"torch {torch.__version__} has no {what}; torch 2.11 to 2.13 have it"
