"""What stands in the place of PyTorch's functions that call no operator, or read values."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.checkpoint import state_dict_saver
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from drivetrain_memory._errors import MemoryUseError, refused
from drivetrain_memory.trace._cuda_functions import always, require_first
from drivetrain_memory.trace._stand_ins import StandIns, is_recorded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain_memory.trace._recorder import Recorder


def replacements(
    recorder: Recorder, stand_ins: StandIns, stack: ExitStack
) -> list[tuple[Any, dict[str, Any]]]:
    """Returns what stands in whose place while a program is recorded."""
    resize = torch.UntypedStorage.resize_
    apply: Any = torch.autograd.Function.apply
    convert: Any = nn.Module._apply
    swap: Any = torch.utils.swap_tensors
    types = {"_foreach_supported_types": [torch.Tensor, nn.Parameter, FakeTensor]}

    def resized(storage: Any, size: int) -> Any:
        out = resize(storage, size)
        recorder.resized(storage)
        return out

    def applied(function: Any, *args: Any, **kwargs: Any) -> Any:
        if is_recorded():
            args, kwargs = tree_map(stand_ins.of, (args, kwargs))
        return apply.__func__(function, *args, **kwargs)

    def converted(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        for held in (module._parameters, module._buffers) if is_recorded() else ():
            held.update({name: stand_ins.of(leaf) for name, leaf in held.items()})
        return convert(module, *args, **kwargs)

    def swapped(one: torch.Tensor, other: Any) -> None:
        # A tensor that is remembered cannot take the place of another.
        one = stand_ins.known(one)
        if isinstance(one, FakeTensor) and one.device.type != "meta":
            one.data = other
            return
        if isinstance(other, FakeTensor):
            other.fake_mode.fake_tensor_converter.meta_converter.tensor_memo.clear()
        swap(one, other)

    def on_one_device(parallel: Any, *args: Any, **kwargs: Any) -> Any:
        require_first(max(parallel.device_ids, default=0))
        return parallel.module(*args, **kwargs)

    lazy = {"__new__": refused("a lazy module", "give its layers their sizes")}
    parallel = refused("DistributedDataParallel", "record the module in it")
    return [
        (
            torch.Tensor,
            {"record_stream": lambda x, of: recorder.record_stream(x, of.number)},
        ),
        (nn.parameter.UninitializedParameter, lazy),
        (nn.parameter.UninitializedBuffer, lazy),
        (nn.DataParallel, {"forward": on_one_device}),
        (nn.parallel.DistributedDataParallel, {"__init__": parallel}),
        (torch.UntypedStorage, {"resize_": resized}),
        (torch.autograd.Function, {"apply": classmethod(applied)}),
        (nn.Module, {"_apply": converted}),
        (torch.backends.cudnn, {"is_acceptable": always(False)}),
        (torch.utils, {"swap_tensors": swapped}),
        (sys.modules[torch.optim.Optimizer.__module__], types),
        (torch.utils._foreach_utils, types),
        *_files(),
        *_loaders(recorder, stack),
    ]


def _files() -> list[tuple[Any, dict[str, Any]]]:
    save, load, keep = torch.save, torch.load, state_dict_saver._save_state_dict
    # Nothing that has no values is written where a program's checkpoints lie.
    unwritten = set()

    def is_empty(what: Any) -> bool:
        return is_recorded() or any(isinstance(x, FakeTensor) for x in tree_iter(what))

    def saved(what: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        if is_empty(what):
            unwritten.add(str(file))
        else:
            save(what, file, *args, **kwargs)

    def kept(*args: Any, **kwargs: Any) -> Any:
        return None if is_empty((args, kwargs)) else keep(*args, **kwargs)

    def loaded(file: Any, *args: Any, **kwargs: Any) -> Any:
        if str(file) in unwritten:
            message = (
                f"{file} was not written: a program that is recorded saves nothing"
            )
            raise MemoryUseError(message)
        return load(file, *args, **kwargs)

    return [
        (torch, {"save": saved, "load": loaded}),
        (state_dict_saver, {"_save_state_dict": kept}),
    ]


def _loaders(recorder: Recorder, stack: ExitStack) -> list[tuple[Any, dict[str, Any]]]:
    iterate, next_batch = DataLoader.__iter__, _BaseDataLoaderIter.__next__

    @contextmanager
    def loading() -> Iterator[None]:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            yield

    def batch_of(iterator: Any) -> Any:
        with loading(), recorder.of_the_host():
            batch = next_batch(iterator)
        recorder.add(batch)
        for leaf in tree_iter(batch):
            if recorder.on_host(leaf):
                recorder.open(leaf)
        return batch

    def batches_of(loader: Any) -> Any:
        pinned, loader.pin_memory = loader.pin_memory, False
        for owner in (loader, loader.sampler):
            generator = getattr(owner, "generator", None)
            if generator is not None:
                stack.callback(generator.set_state, generator.get_state())
        try:
            with loading():
                return iterate(loader)
        finally:
            loader.pin_memory = pinned

    return [
        (DataLoader, {"__iter__": batches_of}),
        (_BaseDataLoaderIter, {"__next__": batch_of}),
    ]
