"""One compilation: of a function, of a module, or of its repeated blocks.

Each compilation stands on its own. Dynamo keeps what it compiled with the code object
of the function, so that every compilation starts from a copy of a code object under a
name of its own: nothing that was tried before counts against its recompilations, and
what is no longer used is freed with the copy. Modules are compiled in place and keep
their class, their names and their hooks; switching is setting one attribute.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import time
import types
import weakref
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._dynamo.exc import TorchDynamoException

from drivetrain_core.extending import separate_compile_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)
_numbers = itertools.count(1)


class OutOfTimeError(Exception):
    """The time that was given to compile is over; never leaves the selector."""


class CompileLog:
    """Counts what one compilation compiles, and ends it when it is too much.

    Dynamo calls the backend once for each graph, so that watching costs nothing in a
    step that compiles nothing.

    Args:
        backend: What dynamo would call.
    """

    def __init__(self, backend: Callable[..., Any]) -> None:
        self.num_graphs = 0
        self.deadline: float | None = None
        self.limit: int | None = None
        self.demoted = ""
        self._backend = backend
        self._on_demotion: Callable[[], None] | None = None

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Compiles a graph, as dynamo asks a backend to."""
        self.num_graphs += 1
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTimeError
        if self.limit is None:
            return self._backend(graph, inputs)
        if self.num_graphs > self.limit:
            self.demote(f"{self.num_graphs} graphs were compiled, {self.limit} allowed")
            return graph.forward
        try:
            return self._backend(graph, inputs)
        except Exception as error:  # noqa: BLE001
            # It is in use: the step goes on as it would without a compiler.
            self.demote(first_line(error))
            return graph.forward

    def commit(self, limit: int, on_demotion: Callable[[], None]) -> None:
        """From now on nothing that goes wrong here may reach the user's step.

        Args:
            limit: The graphs that may be compiled, those up to now included.
            on_demotion: Called once, when the compilation is to be left.
        """
        self.deadline = None
        self.limit = limit
        self._on_demotion = on_demotion

    def demote(self, why: str) -> bool:
        """Leaves the compilation for eager; returns whether it was in use."""
        if self._on_demotion is None:
            return False
        if not self.demoted:
            self.demoted = why
            logger.warning("leaving compiled code for eager: %s", why)
            self._on_demotion()
        return True


class Compilation:
    """Something compiled, that can be switched on and off.

    Args:
        target: The user's module or function.
        parts: The modules to compile in place: the target itself, or its blocks. Empty
            for a function.
        backend: Called by dynamo with (graph, inputs).
        dynamic: As `torch.compile` takes it.

    Attributes:
        call: What stands for the target: for a module the module itself.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        parts: Sequence[nn.Module],
        backend: Callable[..., Any],
        *,
        dynamic: bool | None = None,
    ) -> None:
        self.log = CompileLog(backend)
        self.call = target
        self._is_on = False
        self._on_demotion: Callable[[], None] | None = None
        options: dict[str, Any] = {"backend": self.log, "dynamic": dynamic}
        # Inner functions that a graph break leaves have no copy of their code.
        if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
            options["isolate_recompiles"] = True
        separate_compile_cache()
        if parts:
            # Torch's own frames are never compiled by themselves, and `forward` of an
            # `nn.Sequential` is one of them; this one is ours, and inlines it.
            compiled = torch.compile(_copied(_call_module), **options)
            self._calls = [
                (m, self._guarded(partial(compiled, m), m._call_impl)) for m in parts
            ]
        else:
            compiled = torch.compile(_copied(target), **options)
            self._calls = []
            self.call = wraps(target)(self._guarded(compiled, target))

    def commit(self, limit: int, on_demotion: Callable[[], None]) -> None:
        """From now on nothing that goes wrong may reach the user's step.

        Args:
            limit: The graphs that may be compiled, those up to now included.
            on_demotion: Called once, when the compilation is to be left.
        """
        self._on_demotion = on_demotion
        # Dynamo keeps every backend for good; it must not keep the model with it.
        reference = weakref.WeakMethod(self._demoted)

        def demoted() -> None:
            method = reference()
            if method is not None:
                method()

        self.log.commit(limit, demoted)

    def _demoted(self) -> None:
        if self._on_demotion is not None:
            self._on_demotion()

    def on(self) -> None:
        """Lets calls of the target run what is compiled."""
        self._is_on = True
        for module, call in self._calls:
            module._compiled_call_impl = call

    def off(self) -> None:
        """Lets calls of the target run eager, exactly as before."""
        self._is_on = False
        for module, _ in self._calls:
            vars(module).pop("_compiled_call_impl", None)

    def _guarded(
        self, compiled: Callable[..., Any], plain: Callable[..., Any]
    ) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._is_on:
                return plain(*args, **kwargs)
            try:
                return compiled(*args, **kwargs)
            except TorchDynamoException as error:
                if not self.log.demote(first_line(error)):
                    raise
                return plain(*args, **kwargs)

        return call


def first_line(error: BaseException) -> str:
    r"""Returns the class of an exception and the first line of its message.

    Example:
        >>> first_line(ValueError("no such size\nmore"))
        'ValueError: no such size'
    """
    inner = getattr(error, "inner_exception", None)
    if isinstance(inner, BaseException):
        return first_line(inner)
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = f": {lines[0].strip()}" if lines else ""
    return f"{type(error).__name__}{text}"[:200]


def _call_module(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]


def _copied(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the same function with a code object of its own.

    The name is its own too: dynamo remembers by it which sizes changed.
    """
    if not isinstance(function, types.FunctionType):
        call = function

        def function(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

    copy = types.FunctionType(
        function.__code__.replace(co_name=f"selected_{next(_numbers)}"),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
