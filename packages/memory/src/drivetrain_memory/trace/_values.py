"""What is known of the values of tensors that have none.

A tensor's values are known where they follow from what the program gives; of a yes or no,
it is known what it would be if each number that is not known were 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map

from drivetrain_memory._errors import refused

# Of tensors with more elements, at most one value is known, that all of them have.
_MOST_KNOWN = 1024
_UNSCALES = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default
# They make tensors of numbers that the program gives.
_GIVEN = {"arange", "eye", "full", "linspace", "ones", "scalar_tensor", "zeros"}
# Their whole numbers are drawn, as they often are lengths, or rows of a data set.
_DRAWN = {"randint", "randperm"}
_GIVEN |= _DRAWN
_WHOLE = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_FAILURES = (RuntimeError, IndexError, TypeError, ValueError)


def values(tensor: torch.Tensor) -> torch.Tensor:
    """Returns values for a tensor: those that are known, or some that programs go on with."""
    with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        return _assumed(tensor).expand(tensor.shape).clone()


def require_number(tensor: torch.Tensor) -> None:
    """Refuses what is not known of several whole numbers.

    They often are sizes: the tokens of each expert, the lengths of sequences.
    """
    several = tensor.untyped_storage().nbytes() > tensor.element_size()
    if several and tensor.dtype in _WHOLE and not _is_sure(tensor):
        refused("a whole number that is not known", "leave it out, or fix it")()


def number(tensor: torch.Tensor) -> Any:
    """Returns a number for a tensor of one element."""
    require_number(tensor)
    with _disable_current_modes():
        return values(tensor).item()


def know(tensor: torch.Tensor, own: torch.Tensor) -> None:
    """Notes that a tensor has the values of another, if they are few."""
    if own.numel() <= _MOST_KNOWN:
        tensor.known = values(own)  # type: ignore[attr-defined]


def follow(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Notes what is known of the values of what an operator made or changed."""
    given = [x for x in tree_iter((args, kwargs)) if isinstance(x, torch.Tensor)]
    made = [x for x in tree_iter(out) if isinstance(x, FakeTensor)]
    name = func._schema.name.partition("::")[2]
    follows = bool(given) or name in _GIVEN
    follows &= torch.Tag.nondeterministic_seeded not in func.tags or name in _DRAWN
    few = all(x.numel() <= _MOST_KNOWN for x in (*given, *made))
    follows &= few or func.is_view or name == "randperm"
    follows &= func.is_view or all(_is_sure(x) for x in given)
    follows &= all(_held(x) is not None for x in given)
    with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        if follows and _computed(func, args, kwargs, made):
            for one in made:
                one.guessed = not all(map(_is_sure, given))  # type: ignore[attr-defined]
        elif isinstance(out, FakeTensor) and out.dtype == torch.bool:
            _guess(func, args, kwargs, out)
        else:
            _forget(func, args)


def _held(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the values of a tensor, known or guessed, in its shape."""
    return getattr(tensor, "known", None) if isinstance(tensor, FakeTensor) else tensor


def _is_sure(tensor: torch.Tensor) -> bool:
    """Returns whether what is held of a tensor's values is no guess."""
    return _held(tensor) is not None and not getattr(tensor, "guessed", False)


def _assumed(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the values of a tensor, or one value for all of them."""
    held, one = _held(tensor), [1] * tensor.dim()
    if held is None:
        return torch.full(one, tensor.dtype != torch.bool, dtype=tensor.dtype)
    return (held if held.numel() <= _MOST_KNOWN else held.as_strided(one, one)).detach()


def _computed(func: Any, args: Any, kwargs: Any, made: list[FakeTensor]) -> bool:
    """Notes what follows from values; returns whether any does."""
    try:
        args, kwargs = tree_map(_on_host(_held), (args, kwargs))
        results = tree_iter(func(*args, **kwargs))
        results = [x for x in results if isinstance(x, torch.Tensor)]
        for one, result in zip(made, results, strict=True):
            one.known = result  # type: ignore[attr-defined]
    except _FAILURES:
        return False
    return True


def _forget(func: Any, args: Any) -> None:
    """Notes that what an operator changed is not known any more."""
    for argument, leaves in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            for leaf in tree_iter(leaves):
                if isinstance(leaf, FakeTensor) and _held(leaf) is not None:
                    # A scaler finds no infinity.
                    leaf.known.fill_(func is not _UNSCALES)  # type: ignore[attr-defined]
                    leaf.guessed = True  # type: ignore[attr-defined]


def _guess(func: Any, args: Any, kwargs: Any, out: FakeTensor) -> None:
    """Notes of a yes or no what it would be if each number were 1."""
    few = out.numel() <= _MOST_KNOWN
    try:
        args, kwargs = tree_map(_on_host(_assumed), (args, kwargs))
        answer = func(*args, **kwargs)
        answer = (answer if few else answer.all()).expand(out.shape)
    # An operator that minds the number of elements; no is the answer then.
    except _FAILURES:
        answer = torch.tensor(False).expand(out.shape)
    out.known = answer.clone() if few else answer  # type: ignore[attr-defined]
    out.guessed = True  # type: ignore[attr-defined]


def _on_host(of: Any) -> Any:
    """Returns what stands for an operator's argument where it is computed."""

    def leaf_of(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        return of(leaf) if isinstance(leaf, torch.Tensor) else leaf

    return leaf_of
