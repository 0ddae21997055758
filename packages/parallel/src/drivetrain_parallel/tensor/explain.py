"""Says in lines how a model is split, and by whose word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_parallel.tensor.areas import common_owner
from drivetrain_parallel.tensor.plan import Style

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_parallel.tensor.plan import ModuleStyle, TensorPlan


def explain_tensor_plan(plan: TensorPlan) -> list[str]:
    """Returns a line for each part of a block, and for each other module.

    A line ends with who has said so: `declared` is the model's own plan, `derived` the
    flow of its data. What the model declares and is not used follows, with the reason,
    and what could not be divided: its code runs whole on every rank.

    Example:
        >>> from drivetrain_parallel.tensor.plan import ModuleStyle, Style, TensorPlan
        >>> styles = {"up": Style.COLWISE, "gate": Style.COLWISE, "down": Style.ROWWISE}
        >>> plan = TensorPlan(degree=2, coverage={"layers.0": 1.0, "layers.1": 1.0},
        ...     modules={f"layers.{i}.mlp.{name}": ModuleStyle(style=style)
        ...         for i in range(2) for name, style in styles.items()})
        >>> explain_tensor_plan(plan)
        ['layers.*.mlp: up, gate colwise; down rowwise (derived)']
    """
    parts: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for name, style in plan.modules.items():
        pattern = _pattern(name, plan)
        owner, _, last = pattern.rpartition(".")
        if pattern == name:
            owner, last = name, ""
        source = "declared" if pattern in plan.declared else "derived"
        styles = parts.setdefault((owner, source), {})
        styles.setdefault(_words(style), {})[last] = None
    lines = []
    for (owner, source), styles in parts.items():
        words = (f"{', '.join(names)} {style}" for style, names in styles.items())
        lines.append(f"{owner}: {'; '.join(w.strip() for w in words)} ({source})")
    lines.extend(
        f"not used: {one.tried} of {short_names(one.names)}: {one.because}"
        for one in plan.dropped
        if one.is_declared
    )
    return lines + _not_divided(plan)


def _not_divided(plan: TensorPlan) -> list[str]:
    """Returns a line for modules that no way of dividing was exact for."""
    cut = {
        _pattern(name, plan)
        for name, style in plan.modules.items()
        if style.style is not Style.COLWISE_GATHERED
    }
    # The last way that was tried is the one that divides most.
    last = {one.names: one for one in plan.dropped if not one.is_declared}
    return [
        f"not divided: {short_names(names)}, whose values are whole on every rank "
        f"({one.tried}: {one.because})"
        for names, one in last.items()
        if cut.isdisjoint(names)
    ]


def short_names(names: Sequence[str]) -> str:
    """Returns names of modules with what they have in common said once.

    Example:
        >>> short_names(["layers.*.attn.q", "layers.*.attn.out"]), short_names(["head"])
        ('layers.*.attn (q, out)', 'head')
    """
    owner = common_owner(list(names))
    if len(names) < 2 or not owner:
        return ", ".join(names)
    return f"{owner} ({', '.join(n.removeprefix(f'{owner}.') for n in names)})"


def _pattern(name: str, plan: TensorPlan) -> str:
    """Returns a name with `*` for the number of its block."""
    parts = name.split(".")
    for index in range(len(parts)):
        if ".".join(parts[: index + 1]) in plan.coverage:
            return ".".join((*parts[:index], "*", *parts[index + 1 :]))
    return name


def _words(style: ModuleStyle) -> str:
    parts = f" in {len(style.parts)} parts" if style.parts else ""
    return f"{style.style.value}{parts}"
