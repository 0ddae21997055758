"""The first all-gather of a step, under the loading of its batch."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from drivetrain_parallel.overlap._errors import OverlapError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn

_Batch = TypeVar("_Batch")
_logger = logging.getLogger(__name__)


def prefetch_first_unshard(
    model: nn.Module, loader: Iterable[_Batch], *, num_blocks: int = 1
) -> FirstUnshardLoader[_Batch]:
    """Returns the loader's batches; the first parameters are gathered as they load.

    The forward of a model under `fully_shard` begins with all-gathers that nothing
    hides: those of the root and of its first block. Here they start as soon as the loop
    asks for a batch, and the forward waits for what is left of them, as in "MegaScale",
    https://arxiv.org/abs/2402.15627, section 3.2. Parameters and results are the same.
    Should parameters change between the all-gather and the forward, as in a loop that
    takes its next batch before the optimizer's step, they are gathered again. That is
    seen for steps of a `torch.optim.Optimizer`, in-place operations and newly assigned
    parameters; not for writes to `.data`, nor `torch._foreach` calls of one's own: take
    the batch after those.

    Args:
        model: The root that `fully_shard` was called on.
        loader: Yields batches; equally many on all ranks. It may be endless.
        num_blocks: How many sharded modules below the root are gathered too, in the
            order of `model.modules()`, which should be that of the forward.

    Raises:
        OverlapError: The model is not under `fully_shard`, or the number is negative.

    Example:
        >>> import torch.distributed as dist
        >>> from torch import nn, ones
        >>> from torch.distributed.fsdp import fully_shard
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> model = fully_shard(nn.Linear(2, 1))
        >>> for batch in prefetch_first_unshard(model, [ones(3, 2)]):
        ...     model(batch).sum().backward()
        >>> dist.destroy_process_group()
    """
    if not isinstance(model, FSDPModule):
        message = (
            "model must be the root that torch.distributed.fsdp.fully_shard was called "
            f"on, got {type(model).__name__}; pass it rather than a wrapper around it"
        )
        raise OverlapError(message)
    if num_blocks < 0:
        message = f"num_blocks must be 0 or more, got {num_blocks}"
        raise OverlapError(message)
    return FirstUnshardLoader(model, loader, num_blocks)


class FirstUnshardLoader(Generic[_Batch]):
    """A loader that gathers the first parameters while it waits for a batch.

    May be iterated over again; everything else, such as `dataset`, is the loader's own.
    Not thread-safe: one loop drives it, in the thread that runs the forward. A loop that
    ends in any way leaves the parameters sharded.
    """

    def __init__(
        self, model: FSDPModule, loader: Iterable[_Batch], num_blocks: int
    ) -> None:
        """Keeps the model and the loader."""
        self._model = model
        self._loader = loader
        self._num_blocks = num_blocks

    def __iter__(self) -> Iterator[_Batch]:
        """Yields the batches."""
        with _first_modules(self._model, self._num_blocks) as first:
            batches = iter(self._loader)
            while True:
                first.start()
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                yield batch

    def __len__(self) -> int:
        """Returns the loader's length."""
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the loader."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)


@contextmanager
def _first_modules(model: FSDPModule, num_blocks: int) -> Iterator[_FirstModules]:
    """Looks at each forward of the model inside, and leaves nothing behind."""
    first = _FirstModules(model, num_blocks)
    # Before the hook of FSDP, which would take what has been gathered.
    module: Any = model
    # Compiled, it would count versions of traced tensors.
    look = torch.compiler.disable(first.before_forward)  # type: ignore[no-untyped-call]
    hook = module.register_forward_pre_hook(look, prepend=True)
    after_step = register_optimizer_step_post_hook(first.after_optimizer)
    try:
        yield first
    finally:
        hook.remove()
        after_step.remove()
        first.give_up()


class _FirstModules:
    """The root and the first blocks, and the all-gathers that are on their way."""

    def __init__(self, model: FSDPModule, num_blocks: int) -> None:
        root: Any = model
        blocks = [
            module
            for module in root.modules()
            if isinstance(module, FSDPModule) and module is not model
        ]
        self._modules = [model, *blocks[:num_blocks]]
        self._handles: list[Any] = []
        self._shards: list[torch.Tensor] = []
        self._versions: list[int] = []
        self._was_stale = False

    def start(self) -> None:
        """Starts the all-gathers; those of modules that are gathered cost nothing."""
        self.give_up()
        self._shards = self._current_shards()
        self._versions = self._current_versions()
        self._handles = [module.unshard(async_op=True) for module in self._modules]

    def before_forward(self, *_: object) -> None:
        """Leaves what is gathered to the forward, unless it is not current any more."""
        if not self._handles:
            return
        if self._is_current():
            self._handles.clear()
            return
        self._give_up_stale()

    def after_optimizer(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Gives up what is gathered if an optimizer has changed it.

        Multi-tensor and fused optimizers change a DTensor without counting it up.
        """
        if not self._handles:
            return
        shards = {id(shard) for shard in self._shards}
        if any(id(p) in shards for g in optimizer.param_groups for p in g["params"]):
            self._give_up_stale()

    def _give_up_stale(self) -> None:
        """Warns once, and gives up what is gathered."""
        if not self._was_stale:
            _logger.warning(
                "parameters changed between the prefetched all-gather and the forward, "
                "so they are gathered again; take the next batch after the optimizer's "
                "step for the overlap"
            )
        self._was_stale = True
        self.give_up()

    def give_up(self) -> None:
        """Waits for all-gathers that no forward has used, and shards again."""
        if not self._handles:
            return
        for handle in self._handles:
            handle.wait()
        for module in self._modules:
            module.reshard()
        self._handles.clear()

    def _is_current(self) -> bool:
        """Returns whether parameters are the ones that were gathered, unchanged."""
        shards = self._current_shards()
        if len(shards) != len(self._shards):
            return False
        if any(a is not b for a, b in zip(shards, self._shards, strict=True)):
            return False
        return self._current_versions() == self._versions

    def _current_shards(self) -> list[torch.Tensor]:
        return [p for module in self._modules for p in _own_parameters(module)]

    def _current_versions(self) -> list[int]:
        """Returns what every change in place of a shard or of its local part counts up."""
        found = []
        with torch.no_grad():  # in which a local part is no node of a graph
            for shard in self._shards:
                local = shard.to_local() if isinstance(shard, DTensor) else shard
                # Tensors of the inference mode are not counted, and not trained.
                found += [t._version for t in (shard, local) if not t.is_inference()]
        return found


def _own_parameters(module: Any) -> Iterator[torch.Tensor]:
    """Yields the parameters that are gathered with a module: not those of ones below."""
    yield from module.parameters(recurse=False)
    for child in module.children():
        if not isinstance(child, FSDPModule):
            yield from _own_parameters(child)
