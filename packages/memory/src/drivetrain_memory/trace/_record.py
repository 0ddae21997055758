"""Records what a program asks of a GPU's memory, on a machine without a GPU.

The program runs on tensors of a CUDA device that have no values (FakeTensorMode), so that
a model of any size is recorded in seconds, by the rules that PyTorch has for a GPU. What
kernels take for themselves, such as the workspace of a matrix product, is not seen.
"""

from __future__ import annotations

import random
import re
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

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

from drivetrain_memory._errors import MemoryUseError
from drivetrain_memory.trace._cuda_functions import DEVICE, cuda_functions
from drivetrain_memory.trace._recorder import Recorder
from drivetrain_memory.trace._replacements import replacements
from drivetrain_memory.trace._simulated_cuda import (
    Values,
    accelerator_is_cuda,
    require_simulation,
)
from drivetrain_memory.trace._stand_ins import StandIns, is_own
from drivetrain_memory.trace._values import require_number, values

if TYPE_CHECKING:
    from collections.abc import Iterator

# What PyTorch says where it needs values, or a device that is there.
_UNKNOWN = re.compile(
    "_cuda|with CUDA|CUDA support|CUDA build|dummy base|for cuda is|torch.cuda|not allocated|"
    "DataDependent|DynamicOutput|Could not run|no rule registered|Cannot access storage|"
    "not recognized: cuda|_share_fd_|create a new Stream|NCCL|split_sizes to sum|SafetensorError"
)
_TENSOR = torch.Tensor
# They show numbers, or take them out.
_SHOWN = {_TENSOR.numpy, _TENSOR.tolist, _TENSOR.__format__, _TENSOR.__array__}
_DATA = _TENSOR.data.__set__  # type: ignore[attr-defined]
# They say where a tensor of before will lie from its first use on.
_PLACES = {
    _TENSOR.device.__get__: DEVICE,
    _TENSOR.is_cuda.__get__: True,  # type: ignore[attr-defined]
}
# They say where to.
_PLACED = {str, int, torch.device, FakeTensor}
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
        self._default: Any = DEVICE.type

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
        if func == _TENSOR.pin_memory:
            return args[0]
        if func in _PLACES and is_own(self._stand_ins.known(args[0])):
            return _PLACES[func]
        shown = self._stand_ins.known(args[0]) if func in _SHOWN else None
        if isinstance(shown, FakeTensor):
            if func == _TENSOR.tolist:
                require_number(shown)
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

    def replacements(self) -> list[tuple[Any, dict[str, Any]]]:
        """Returns what stands in the place of functions that concern the mode itself."""
        run = torch.autograd.graph._engine_run_backward

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            # A step that is computed anew in the backward calls functions, too.
            with self, self._recorder.stream(self._recorder.current_stream):
                return run(*args, **kwargs)

        engine = {"_engine_run_backward": run_backward}
        return [
            (torch, {"set_default_device": self.set_default_device}),
            (torch.autograd, engine),
            (torch.autograd.graph, engine),
        ]

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
    given = [x for x in (*args[1:], *kwargs.values()) if type(x) in _PLACED]
    kinds = {torch.device(getattr(x, "device", x)).type for x in given}
    return func == _TENSOR.cuda or DEVICE.type in kinds


@contextmanager
def record(name: str) -> Iterator[Recorder]:
    """Records what is done inside, on tensors of a CUDA device that have no values.

    Tensors for which the program names no device lie on the CUDA device, and so do those
    that it had before, from their first use on; what a data loader gives and what is made
    with `device="cpu"` lie in the host's memory and are not recorded. What is made without
    a device and moved to the device later, or read by a data loader, lay in the host's memory
    until then, as does what `torch.Tensor(2, 3)` and its like make.

    A number that is asked of a tensor (`loss.item()`) is what follows from small tensors that
    the program gives, or draws as whole numbers, or else 1; a yes or no is what follows of
    that. One of several whole numbers that do not follow, as the tokens of each expert are, is
    refused.

    There is one device, `cuda:0`. Its streams are those that the program makes, and what
    `torch.cuda` says of its memory is what the trace holds. Other threads may make tensors of
    the host's memory, but not train, nor compute on the device. Modules, optimizers,
    schedulers, scalers and random numbers are given back as they were before, and `torch.save`
    and `torch.distributed.checkpoint` write nothing.

    Args:
        name: Of the trace.

    Raises:
        MemoryUseError: A step depends on values, in a way that changes what memory it
            takes; a tensor from before cannot be stood in for; a second device, a thread of
            the program's own that computes, a CUDA graph, a lazy module or
            DistributedDataParallel is used; or this build of PyTorch cannot be told of a
            device that is not there.

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
    recorder, stand_ins = Recorder(name, DEVICE.type), StandIns(DEVICE.type)
    fakes = Values(allow_non_fake_inputs=True, allow_fallback_kernels=False)
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
        for owner, others in (
            *cuda_functions(recorder, fakes),
            *replacements(recorder, stand_ins, stack),
            *program.replacements(),
        ):
            _replace(owner, others, stack)
        handle = register_optimizer_step_pre_hook(stand_ins.step)
        stack.callback(handle.remove)
        stack.enter_context(accelerator_is_cuda())
        for mode in (fakes, recorder, stand_ins, program):
            stack.enter_context(mode)
        try:
            yield recorder
        except Exception as error:
            if isinstance(error, MemoryUseError) or not _UNKNOWN.search(repr(error)):
                raise
            instead = "do it before, or leave it out"
            if "DataLoader worker" in str(error):
                instead = "make the data set before, or load with num_workers=0"
            message = (
                "this needs values, or a device that is there, and a program that is "
                f"recorded has neither: {instead}: {error}"
            )
            raise MemoryUseError(message) from error
        if fakes.refusal is not None:
            raise fakes.refusal


def _replace(owner: Any, others: dict[str, Any], stack: ExitStack) -> None:
    """Lets others stand in the place of an owner's functions, until the stack is closed."""
    for name, value in others.items():
        before = vars(owner).get(name)
        setattr(owner, name, value)
        undo = (setattr, owner, name, before) if before else (delattr, owner, name)
        stack.callback(*undo)
