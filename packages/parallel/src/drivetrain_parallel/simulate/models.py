"""Models by name, and models described by their sizes: `layers=32,hidden=4096`."""

from __future__ import annotations

import difflib
import inspect
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from drivetrain_core import Code, PlanError
from drivetrain_core.extending import load_yaml
from drivetrain_parallel.cost.transformer_profile import profile_transformer

if TYPE_CHECKING:
    from drivetrain_parallel.cost.model_profile import ModelProfile

_FILE = files("drivetrain_parallel.simulate") / "models.yaml"
_PLAIN: Any = load_yaml(_FILE.read_text("utf-8"), "models.yaml")

MODELS: dict[str, dict[str, Any]] = _PLAIN
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
