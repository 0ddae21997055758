"""Models by name, and models described by their sizes: `layers=32,hidden=4096`."""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any

from drivetrain_core import Code, PlanError
from drivetrain_parallel.cost.transformer_profile import profile_transformer

if TYPE_CHECKING:
    from drivetrain_parallel.cost.model_profile import ModelProfile

__all__ = ["MODELS", "load_model"]

MODELS: dict[str, dict[str, Any]] = {
    "gpt2-xl": {
        "layers": 48,
        "hidden": 1600,
        "heads": 25,
        "vocab": 50257,
        "seq": 1024,
        "biases": True,
        "positions": True,
        "tied": True,
    },
    "gpt3-175b": {
        "layers": 96,
        "hidden": 12288,
        "heads": 96,
        "vocab": 51200,
        "seq": 2048,
        "biases": True,
        "positions": True,
        "tied": True,
    },
    "llama2-13b": {
        "layers": 40,
        "hidden": 5120,
        "heads": 40,
        "ffn": 13824,
        "vocab": 32000,
        "seq": 4096,
        "gated": True,
    },
    "llama3-8b": {
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "ffn": 14336,
        "vocab": 128256,
        "seq": 8192,
        "gated": True,
    },
    "llama3-70b": {
        "layers": 80,
        "hidden": 8192,
        "heads": 64,
        "kv_heads": 8,
        "ffn": 28672,
        "vocab": 128256,
        "seq": 8192,
        "gated": True,
    },
    "llama3-405b": {
        "layers": 126,
        "hidden": 16384,
        "heads": 128,
        "kv_heads": 8,
        "ffn": 53248,
        "vocab": 128256,
        "seq": 8192,
        "gated": True,
    },
    "mixtral-8x7b": {
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "ffn": 14336,
        "vocab": 32000,
        "seq": 4096,
        "gated": True,
        "experts": 8,
        "active_experts": 2,
    },
}
"""What `profile_transformer` takes for the models that are known by name."""

_FLAGS = {"true": True, "false": False}


def load_model(text: str, *, seq: int | None = None) -> ModelProfile:
    """Returns the profile of a model.

    Args:
        text: A name of `MODELS`, or what `profile_transformer` takes, as
            `layers=32,hidden=4096,heads=32,vocab=32000,seq=2048`; a name may be
            followed by sizes that replace its own.
        seq: Tokens of a sample; None for what the text says.

    Raises:
        PlanError: The text names no model, or a size is missing or not valid.

    Example:
        >>> load_model("llama3-8b,layers=4", seq=2048).num_blocks
        4
    """
    sizes: dict[str, Any] = {}
    name = text
    for position, item in enumerate(text.split(",")):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals and position == 0 and key in MODELS:
            name, sizes = key, dict(MODELS[key])
        elif not equals:
            raise _unknown(key)
        else:
            sizes[key] = _value(key, value)
    if seq is not None:
        sizes["seq"] = seq
    known = inspect.signature(profile_transformer).parameters
    for key in sizes:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = (
                f"; nearest: {near[0]}" if near else f"; known are {', '.join(known)}"
            )
            raise PlanError(
                Code.UNKNOWN, "model", because=f"a model has no {key!r}{hint}"
            )
    missing = [
        key
        for key, parameter in known.items()
        if parameter.default is parameter.empty and key not in sizes
    ]
    if missing:
        raise PlanError(
            Code.CONFIG,
            "model",
            because=f"{text!r} lacks {', '.join(missing)}",
            fix=f"add {missing[0]}=NUMBER, or use one of {', '.join(MODELS)}",
        )
    return profile_transformer(**sizes, name=name)


def _value(key: str, text: str) -> int | bool:
    if text.lower() in _FLAGS:
        return _FLAGS[text.lower()]
    try:
        return int(text)
    except ValueError:
        raise PlanError(
            Code.CONFIG,
            "model",
            because=f"{key} must be an integer, true or false, got {text!r}",
        ) from None


def _unknown(name: str) -> PlanError:
    near = difflib.get_close_matches(name, MODELS, n=3)
    hint = f"; nearest: {', '.join(near)}" if near else ""
    return PlanError(
        Code.UNKNOWN,
        "model",
        because=f"no model {name!r}{hint}; there are {', '.join(MODELS)}",
        fix="give its sizes: layers=32,hidden=4096,heads=32,vocab=32000,seq=2048",
    )
