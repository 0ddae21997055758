"""Records what a program asks of a GPU's memory, on a machine without a GPU.

The program runs on tensors of a CUDA device that have no values (FakeTensorMode), so that
a model of any size is recorded in seconds, by the rules that PyTorch has for a GPU. What
kernels take for themselves, such as the workspace of a matrix product, is not seen.
"""

from __future__ import annotations

import itertools
import random
import re
import sys
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import nn
from torch._dynamo import trace_rules
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from drivetrain_memory._errors import MemoryUseError
from drivetrain_memory.trace._recorder import Recorder, values
from drivetrain_memory.trace._simulated_cuda import (
    Values,
    accelerator_is_cuda,
    require_simulation,
)
from drivetrain_memory.trace._stand_ins import StandIns, is_own, is_recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DEVICE = "cuda"
_MOST_STREAMS = 256
_TENSOR = torch.Tensor
_PROPERTIES = SimpleNamespace(
    name="a simulated device",
    major=9,
    minor=0,
    total_memory=80 * 2**30,
    multi_processor_count=132,
)
# They show numbers, or take them out.
_SHOWN = {_TENSOR.numpy, _TENSOR.tolist, _TENSOR.__format__, _TENSOR.__array__}
# What PyTorch says where it needs values, or a device that is there.
_UNKNOWN = re.compile(
    "_cuda|with CUDA|CUDA support|CUDA build|dummy base|for cuda is|torch.cuda|not allocated|"
    "DataDependent|DynamicOutput|Could not run|no rule registered|Cannot access storage|"
    "not recognized: cuda|_share_fd_|create a new Stream"
)
_DATA = _TENSOR.data.__set__  # type: ignore[attr-defined]
# They say where a tensor of before will lie from its first use on.
_PLACES = {
    _TENSOR.device.__get__: torch.device(_DEVICE, 0),
    _TENSOR.is_cuda.__get__: True,  # type: ignore[attr-defined]
}
# They change a tensor, and no operator is called.
_CHANGES = {
    _TENSOR.requires_grad_,
    _TENSOR.register_hook,
    _TENSOR.register_post_accumulate_grad_hook,
    _TENSOR.retain_grad,
}


class _Program(TorchFunctionMode):
    """Lets a program's tensors lie on the device unless the program says otherwise."""

    def __init__(self, recorder: Recorder, stand_ins: StandIns) -> None:
        """Says whom to tell."""
        super().__init__()
        self._recorder = recorder
        self._stand_ins = stand_ins
        self._default: Any = _DEVICE

    def set_default_device(self, device: Any) -> None:
        """Lets tensors lie elsewhere, for which the program names no device."""
        self._default = device or "cpu"

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls a function of PyTorch as a program on a GPU would."""
        del types
        kwargs = dict(kwargs or {})
        if func in _device_constructors() and kwargs.get("device") is None:
            generator = kwargs.get("generator")
            if generator is not None and generator.device.type == "cpu":
                del kwargs["generator"]
            out = self._stand_ins.call(func, args, {**kwargs, "device": self._default})
            self._recorder.open(out)
            return out
        if func is _TENSOR.pin_memory:
            return args[0]
        if func in _PLACES and is_own(self._stand_ins.known(args[0])):
            return _PLACES[func]
        shown = self._stand_ins.known(args[0]) if func in _SHOWN else None
        if isinstance(shown, FakeTensor):
            with _disable_current_modes():
                return func(values(shown), *args[1:], **kwargs)
        if func is _TENSOR.__deepcopy__:
            return self._copied(*args)
        if func in _CHANGES or func.__name__ == "__set__":
            args = tree_map(self._stand_ins.of, args)
        if func == _DATA and isinstance(args[0], FakeTensor):
            args[0].fake_device = args[1].device
        if func in {_TENSOR.cuda, _TENSOR.to} and _to_device(func, args, kwargs):
            args = (self._recorder.moved(args[0]), *args[1:])
        return self._stand_ins.call(func, args, kwargs)

    def _copied(self, tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
        # PyTorch's own copy of a tensor without values loses its storage.
        if id(tensor) not in memo:
            copied: torch.Tensor = self._stand_ins.of(tensor).detach().clone()
            if isinstance(tensor, nn.Parameter):
                copied = nn.Parameter(copied)
            memo[id(tensor)] = copied.requires_grad_(tensor.requires_grad)
            self._recorder.open(copied)
        return memo[id(tensor)]


def _to_device(func: Any, args: Any, kwargs: Any) -> bool:
    """Returns whether a tensor is moved to the device."""
    given = (*args[1:], *kwargs.values())
    if func is _TENSOR.cuda:
        return True
    places = [x for x in given if isinstance(x, str | torch.device)]
    places += [x.device for x in given if isinstance(x, FakeTensor)]
    places += [_DEVICE for x in given if type(x) is int]
    return any(torch.device(place).type == _DEVICE for place in places)


@contextmanager
def record(name: str) -> Iterator[Recorder]:
    """Records what is done inside, on tensors of a CUDA device that have no values.

    Tensors for which the program names no device lie on the CUDA device, and so do those
    that it had before, from their first use on; what a data loader gives and what is made
    with `device="cpu"` lie in the host's memory and are not recorded. What is made without
    a device and moved to the device later lay in the host's memory until then, as does what
    `torch.Tensor(2, 3)` and its like make. A number
    that is asked of a tensor (`loss.item()`) is what follows from small tensors that the
    program gives, or else 1; a yes or no is what follows of that.
    Modules, optimizers, schedulers, scalers and random numbers are given back as they were
    before, `torch.save` writes nothing, and no other thread may train meanwhile.

    Args:
        name: Of the trace.

    Raises:
        MemoryUseError: A step depends on values, in a way that changes what memory it
            takes; a tensor from before cannot be stood in for; or this build of PyTorch
            cannot be told of a device that is not there.

    Example:
        >>> with record("one product") as recorder:
        ...     model = torch.nn.Linear(1024, 1024, device="cuda")
        ...     recorder.step()
        ...     model(torch.empty(8, 1024).cuda()).sum().backward()
        >>> trace = recorder.trace()
        >>> trace.num_steps, trace.peak_live_bytes > 8 * 1024 * 1024
        (1, True)
    """
    require_simulation()
    recorder, stand_ins = Recorder(name, _DEVICE), StandIns(_DEVICE)
    stand_ins.keep()
    program = _Program(recorder, stand_ins)
    with ExitStack() as stack:
        stack.callback(stand_ins.restore)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        # Compiled code takes what its own planning leaves; the steps as written are recorded.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        # Dynamo knows PyTorch's functions before others stand in for them.
        trace_rules.get_torch_obj_rule_map()
        stack.enter_context(_simulated(recorder, stand_ins, program))
        stack.enter_context(accelerator_is_cuda())
        stack.enter_context(
            Values(allow_non_fake_inputs=True, allow_fallback_kernels=False)
        )
        stack.enter_context(recorder)
        stack.enter_context(stand_ins)
        stack.enter_context(program)
        try:
            yield recorder
        except Exception as error:
            if isinstance(error, MemoryUseError) or not _UNKNOWN.search(repr(error)):
                raise
            message = (
                "this needs values, or a device that is there, and a program that is "
                f"recorded has neither: do it before, or leave it out: {error}"
            )
            raise MemoryUseError(message) from error


@contextmanager
def _simulated(
    recorder: Recorder, stand_ins: StandIns, program: _Program
) -> Iterator[None]:
    """Meanwhile PyTorch has a device, and what calls no operator is seen all the same."""
    with ExitStack() as stack:
        for owner, replaced in _replacements(recorder, stand_ins, program, stack):
            for name, value in replaced.items():
                before = vars(owner).get(name)
                setattr(owner, name, value)
                stack.callback(
                    *(
                        (setattr, owner, name, before)
                        if before
                        else (delattr, owner, name)
                    )
                )
        handle = register_optimizer_step_pre_hook(stand_ins.step)
        stack.callback(handle.remove)
        yield


def _replacements(
    recorder: Recorder, stand_ins: StandIns, program: _Program, stack: ExitStack
) -> list[tuple[Any, dict[str, Any]]]:
    """Returns what stands in whose place while a program is recorded."""
    resize, next_batch = torch.UntypedStorage.resize_, _BaseDataLoaderIter.__next__
    apply: Any = torch.autograd.Function.apply
    convert: Any = nn.Module._apply
    swap: Any = torch.utils.swap_tensors
    iterate, run = DataLoader.__iter__, torch.autograd.graph._engine_run_backward
    types = {"_foreach_supported_types": [_TENSOR, nn.Parameter, FakeTensor]}
    nothing = _always(None)

    def resized(storage: Any, size: int) -> Any:
        out = resize(storage, size)
        recorder.resized(storage)
        return out

    def applied(function: Any, *args: Any, **kwargs: Any) -> Any:
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

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        # A step that is computed anew in the backward calls functions, too.
        with program:
            return run(*args, **kwargs)

    def batch_of(iterator: Any) -> Any:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            batch = next_batch(iterator)
        recorder.add(batch)
        return batch

    def batches_of(loader: Any) -> Any:
        pinned, loader.pin_memory = loader.pin_memory, False
        for owner in (loader, loader.sampler):
            generator = getattr(owner, "generator", None)
            if generator is not None:
                stack.callback(generator.set_state, generator.get_state())
        try:
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                return iterate(loader)
        finally:
            loader.pin_memory = pinned

    def current(*_: Any) -> _Stream:
        return _Stream(number=recorder.current_stream)

    _Stream.numbers = itertools.count(1)
    return [
        (
            torch.cuda,
            {
                "_lazy_init": nothing,
                "is_available": _always(True),
                "is_bf16_supported": _always(True),
                "device_count": _always(1),
                "current_device": _always(0),
                "get_device_capability": _always((9, 0)),
                "get_device_name": _always("a simulated device"),
                "get_device_properties": _always(_PROPERTIES),
                "mem_get_info": _always((_PROPERTIES.total_memory,) * 2),
                "memory_summary": _always(""),
                "reset_peak_memory_stats": nothing,
                "Stream": _Stream,
                "Event": _Idle,
                "device": _Idle,
                "current_stream": current,
                "default_stream": _always(_Stream(number=0)),
                "stream": lambda stream: recorder.stream(
                    stream.number if stream else 0
                ),
                "get_rng_state": _always(torch.zeros(16, dtype=torch.uint8)),
                "set_rng_state": nothing,
                "set_device": nothing,
                "synchronize": nothing,
                "empty_cache": nothing,
            },
        ),
        (
            torch.accelerator,
            {
                "is_available": _always(True),
                "device_count": _always(1),
                "current_accelerator": _always(torch.device(_DEVICE)),
                "current_device_index": _always(0),
                "current_stream": current,
                "synchronize": nothing,
            },
        ),
        # Nothing that has no values is written where a program's checkpoints lie.
        (torch, {"save": nothing, "set_default_device": program.set_default_device}),
        (nn.DataParallel, {"forward": lambda self, *x, **y: self.module(*x, **y)}),
        (
            _TENSOR,
            {"record_stream": lambda x, of: recorder.record_stream(x, of.number)},
        ),
        (torch.UntypedStorage, {"resize_": resized}),
        (torch.autograd.Function, {"apply": classmethod(applied)}),
        (torch.autograd, {"_engine_run_backward": run_backward}),
        (torch.autograd.graph, {"_engine_run_backward": run_backward}),
        (nn.Module, {"_apply": converted}),
        (torch.backends.cudnn, {"is_acceptable": _always(False)}),
        (torch.utils, {"swap_tensors": swapped}),
        (sys.modules[torch.optim.Optimizer.__module__], types),
        (torch.utils._foreach_utils, types),
        (DataLoader, {"__iter__": batches_of}),
        (_BaseDataLoaderIter, {"__next__": batch_of}),
    ]


class _Idle:
    """An event or a guard of a simulated device: all is done when it is asked."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Has nothing to do."""
        self.query, self.is_capturing = _always(True), _always(False)
        self.elapsed_time, self.record_event = _always(1.0), _always(self)

    def __getattr__(self, name: str) -> Any:
        """Nothing is waited for."""
        if name.startswith("__"):
            raise AttributeError(name)
        return _always(None)

    def __enter__(self) -> Self:
        """Changes nothing."""
        return self

    def __exit__(self, *_: object) -> None:
        """Changes nothing."""


class _Stream(_Idle):
    """A stream of a simulated device."""

    numbers = itertools.count(1)

    def __init__(self, *_: Any, number: int | None = None, **__: Any) -> None:
        """Takes the next number of the recording."""
        super().__init__()
        self.number = next(self.numbers) if number is None else number
        if self.number >= _MOST_STREAMS:
            message = f"a trace has at most {_MOST_STREAMS - 1} side streams"
            raise MemoryUseError(message)


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer
