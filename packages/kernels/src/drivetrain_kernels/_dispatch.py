"""Dispatch of an op to one of its implementations: the table that each op fills.

An op lists its implementations in order of preference; the last is its reference in
torch's operators, which takes every call. `impl="auto"` takes the first that neither
refuses the call nor is held back by its own rule. A name takes that one, or raises:
nothing falls back silently where a name was given.
"""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003  (fields of dataclasses)
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from drivetrain_core import DrivetrainError
from drivetrain_kernels._errors import ImplementationError, ImplementationNameError
from drivetrain_kernels._fast_path import is_watched

_FactsT = TypeVar("_FactsT")

_NO_RULE = (
    "cannot take tensors of this kind (on the meta device, of a class of their own, so "
    "placed over ranks, or in a transform): torch has no rule for what it does; give plain "
    "tensors, as to_local() and full_tensor() are, or take another implementation"
)

Example = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a call: those by position, those by name."""


def always(facts: object) -> str | None:
    """Returns None: there is nothing against it.

    Args:
        facts: Not looked at.
    """
    del facts
    return None


def only_on_a_gpu(facts: Any) -> str | None:
    """Says why "auto" does not take what is made for a GPU, or None on one.

    Args:
        facts: Those of the call, with the type of the device as `device`.
    """
    if facts.device in {"cpu", "meta"}:
        return f"is made for a GPU, the tensors are on {facts.device}"
    return None


def not_interpreted(facts: Any) -> str | None:
    """Says why "auto" does not take Triton's interpreter, or None on a GPU.

    Args:
        facts: Those of the call, with the type of the device as `device`.
    """
    return "is only interpreted on a CPU" if facts.device == "cpu" else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Implementation(Generic[_FactsT]):
    """One way to compute an op.

    Args:
        name: As `impl` takes it: "reference", "compiled", "triton", or that of what
            it stands on, such as "torch" or "sdpa".
        call: Computes the op; all implementations of an op have the same signature.
        refuse: Says from the facts of a call why it cannot take it, as one clause
            ("needs a CUDA tensor, got cpu"), or None if it can.
        automatic: Says why "auto" passes it over although it could, or None.
        because: Why "auto" prefers it to those behind it.
    """

    name: str
    call: Callable[..., Any]
    refuse: Callable[[_FactsT], str | None] = always
    automatic: Callable[[_FactsT], str | None] = always
    because: str


def reference_form(
    call: Callable[..., Any], because: str = "it takes every call"
) -> Implementation[Any]:
    """Returns the entry of an op's reference.

    Args:
        call: Computes the op in torch's operators.
        because: Why it is the last.
    """
    return Implementation(name="reference", call=call, because=because)


def triton_form(
    call: Callable[..., Any], *, refuse: Callable[[Any], str | None], because: str
) -> Implementation[Any]:
    """Returns the entry of an op's Triton kernels, which "auto" takes on a GPU.

    Args:
        call: Runs the kernels.
        refuse: See `Implementation`.
        because: Likewise.
    """
    return Implementation(
        name="triton",
        call=call,
        refuse=refuse,
        automatic=only_on_a_gpu,
        because=because,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The implementation that was chosen, and why.

    Args:
        implementation: What runs.
        reason: Why it.
        passed_over: Those before it, each as (name, why not).
    """

    implementation: Implementation[Any]
    reason: str
    passed_over: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Op(Generic[_FactsT]):
    """An op and its implementations, in order of preference, the reference last.

    Args:
        name: The public function's name.
        implementations: What computes it.
        facts: Checks the public function's arguments, `impl` left out, and returns
            what a choice depends on: a frozen dataclass of plain values.
        example: Returns small arguments for a device and a dtype, as (args, kwargs).
    """

    name: str
    implementations: tuple[Implementation[_FactsT], ...]
    facts: Callable[..., _FactsT]
    example: Callable[[torch.device, torch.dtype], Example]

    def choose(self, facts: _FactsT, impl: str = "auto") -> Selection:
        """Returns the implementation for a call.

        Args:
            facts: What the op's `facts` says of the call.
            impl: "auto", or the name of an implementation.

        Raises:
            ImplementationNameError: There is none of that name.
            ImplementationError: That one cannot take this call.
        """
        if impl != "auto":
            return self._named(facts, impl)
        passed: list[tuple[str, str]] = []
        for one in self.implementations[:-1]:
            why = one.refuse(facts) or one.automatic(facts)
            if why is None:
                return Selection(
                    implementation=one, reason=one.because, passed_over=tuple(passed)
                )
            passed.append((one.name, why))
        last = self.implementations[-1]
        return Selection(
            implementation=last, reason=last.because, passed_over=tuple(passed)
        )

    def check_name(self, impl: str) -> None:
        """Raises unless a name is "auto" or that of an implementation.

        Raises:
            ImplementationNameError: It is another one.
        """
        if impl != "auto":
            self._by_name(impl)

    def _by_name(self, impl: str) -> Implementation[_FactsT]:
        for one in self.implementations:
            if one.name == impl:
                return one
        names = ", ".join(repr(one.name) for one in self.implementations)
        message = (
            f"{self.name}: there is no implementation {impl!r}; it has {names}, "
            "or take 'auto'"
        )
        raise ImplementationNameError(message)

    def _named(self, facts: _FactsT, impl: str) -> Selection:
        one = self._by_name(impl)
        why = one.refuse(facts)
        if why is not None:
            others = [o.name for o in self.implementations if o.refuse(facts) is None]
            message = (
                f"{self.name}: the implementation {impl!r} cannot take this call: it "
                f"{why}; here are {', '.join(map(repr, others))}, or take 'auto' "
                f"({facts})"
            )
            raise ImplementationError(message)
        return Selection(
            implementation=one, reason="it was asked for by name", passed_over=()
        )

    def run(self, facts: _FactsT, impl: str, *args: Any) -> Any:
        """Calls the implementation that is chosen for a call, and returns its result.

        Args:
            facts: What the op's `facts` says of the call.
            impl: "auto", or the name of an implementation.
            *args: The arguments that the op's implementations share.

        Raises:
            ImplementationError: It was named and cannot take the call, or torch has no
                rule for what it does with tensors of this class, or in a transform.
        """
        one = self.implementations[-1]
        if impl == "auto":
            # The same loop as in `choose`, without the words: a call takes it each time.
            for one in self.implementations:
                if one.refuse(facts) is None and one.automatic(facts) is None:
                    break
        else:
            one = self._named(facts, impl).implementation
        try:
            return one.call(*args)
        except (IndexError, RuntimeError) as error:
            is_meta = getattr(facts, "device", None) == "meta"
            is_ours = (
                isinstance(error, DrivetrainError) or torch.compiler.is_compiling()
            )
            if is_ours or not (is_meta or is_watched(*args)):
                raise
            message = f"{self.name}: the implementation {one.name!r} {_NO_RULE}"
            raise ImplementationError(message) from error
