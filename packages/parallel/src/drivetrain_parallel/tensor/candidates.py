"""Ways to split one region of a model's data flow: pure functions.

None of them is known to be right before it is verified. They stand in the order in
which they are tried: what costs least to exchange, and changes least, comes first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drivetrain_parallel.tensor.plan import HeadInput, ModuleStyle, Style, TensorPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from drivetrain_parallel.tensor.flow import Matrix

_HEADS = re.compile(r"head", re.IGNORECASE)
_NOT_HEADS = re.compile(r"dim|size|mask|group|per", re.IGNORECASE)
_NUM_LAYOUTS = 3
_GROUPS = re.compile(r"groups?$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Area:
    """One region in one block, and what is around it.

    Args:
        writers: Matrices whose outputs are in it.
        readers: Matrices whose inputs are in it.
        inner: Modules with parameters that are used in it, with their shapes.
        attributes: Integers that modules around it hold, by module and attribute.
        arguments: Shapes of tensors that modules around it were called with.
    """

    writers: tuple[Matrix, ...]
    readers: tuple[Matrix, ...]
    inner: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    attributes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    arguments: Mapping[tuple[str, str | int], tuple[int, ...]] = field(
        default_factory=dict
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A way to split some modules.

    Args:
        label: What it does, in words.
        plan: The styles and repairs of these modules alone.
    """

    label: str
    plan: TensorPlan


def layouts(matrix: Matrix, width: int) -> list[tuple[int, ...]]:
    """Returns how the outputs of a matrix may consist of parts; () is one part.

    Args:
        matrix: One that writes a region.
        width: Input features of the matrix that reads it.

    Example:
        >>> from drivetrain_parallel.tensor.flow import Matrix
        >>> qkv = Matrix(name="qkv", is_embedding=False, in_features=64,
        ...     out_features=128, weight="qkv.weight")
        >>> layouts(qkv, 64), layouts(qkv, 96), layouts(qkv, 128)
        ([(), (64, 64), (64, 32, 32)], [(), (96, 16, 16)], [()])
    """
    extra = matrix.out_features - width
    found: list[tuple[int, ...]] = [()]
    if matrix.is_embedding or extra <= 0:
        return found
    if matrix.out_features % width == 0:
        found.append((width,) * (matrix.out_features // width))
    if extra % 2 == 0 and (width, extra // 2, extra // 2) not in found:
        found.append((width, extra // 2, extra // 2))
    return found


def area_candidates(areas: list[Area], degree: int) -> Iterator[Candidate]:
    """Yields ways to split regions of one kind, one in each of several blocks.

    Args:
        areas: Alike but for the numbers of their blocks.
        degree: Ranks.
    """
    seen = set()
    for with_inputs in (False, True):
        for attributes in _attribute_rules():
            for shared_kv in (False, True):
                for layout in range(_NUM_LAYOUTS):
                    for split_inner in (False, True):
                        rule = _Rule(
                            layout=layout,
                            shared_kv=shared_kv,
                            split_inner=split_inner,
                            attributes=attributes,
                            with_inputs=with_inputs,
                        )
                        plan = _plan(areas, degree, rule)
                        if plan is None:
                            continue
                        key = repr(plan)
                        if key not in seen:
                            seen.add(key)
                            yield Candidate(label=rule.label(plan), plan=plan)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rule:
    layout: int
    shared_kv: bool
    split_inner: bool
    attributes: tuple[str, ...]
    with_inputs: bool

    def label(self, plan: TensorPlan) -> str:
        words = ["in parts"] if any(m.parts for m in plan.modules.values()) else []
        if any(m.style is Style.PARTIAL for m in plan.modules.values()):
            words.append("with summed gradients of what is between")
        if any(m.style is Style.SPLIT for m in plan.modules.values()):
            words.append("with what is between split by heads")
        if plan.attributes:
            names = {name for values in plan.attributes.values() for name in values}
            words.append(f"with {', '.join(sorted(names))} divided")
        if plan.head_inputs:
            words.append("with arguments split by heads")
        return ", ".join(["split", *words])


def _attribute_rules() -> tuple[tuple[str, ...], ...]:
    return (
        (),
        ("heads",),
        ("widths",),
        ("heads", "widths"),
        ("config",),
        ("config", "heads"),
        ("config", "heads", "widths"),
    )


def _plan(areas: list[Area], degree: int, rule: _Rule) -> TensorPlan | None:
    """Returns the plan of a rule; None where it says nothing new or does not divide."""
    modules: dict[str, ModuleStyle] = {}
    attributes: dict[str, dict[str, int]] = {}
    inputs: dict[str, tuple[HeadInput, ...]] = {}
    for area in areas:
        styles = _styles(area, degree, rule)
        if styles is None:
            return None
        modules.update(styles)
        for module, values in _divided(area, degree, rule).items():
            attributes.setdefault(module, {}).update(values)
        if rule.with_inputs:
            inputs.update(_head_inputs(area, degree))
    if rule.with_inputs and not inputs:
        return None
    return TensorPlan(
        degree=degree, modules=modules, attributes=attributes, head_inputs=inputs
    )


def _styles(area: Area, degree: int, rule: _Rule) -> dict[str, ModuleStyle] | None:
    width = area.readers[0].in_features
    if any(reader.in_features % degree for reader in area.readers):
        return None
    styles: dict[str, ModuleStyle] = {}
    for writer in area.writers:
        if rule.shared_kv and writer.out_features < width:
            styles[writer.name] = ModuleStyle(style=Style.PARTIAL)
            continue
        ways = layouts(writer, width)
        parts = ways[min(rule.layout, len(ways) - 1)]
        if writer.out_features % degree or any(part % degree for part in parts):
            return None
        styles[writer.name] = ModuleStyle(style=Style.COLWISE, parts=parts)
    for reader in area.readers:
        styles[reader.name] = ModuleStyle(style=Style.ROWWISE)
    for name, shapes in area.inner.items():
        divides = all(shape and shape[0] % degree == 0 for shape in shapes)
        style = Style.SPLIT if rule.split_inner and divides else Style.PARTIAL
        styles[name] = ModuleStyle(style=style, is_entered=True)
    return styles


def _divided(area: Area, degree: int, rule: _Rule) -> dict[str, dict[str, int]]:
    """Returns the attributes that count what is split, divided."""
    widths = {area.readers[0].in_features}
    for writer in area.writers:
        ways = layouts(writer, area.readers[0].in_features)
        widths.update((writer.out_features, *(part for way in ways for part in way)))
    found: dict[str, dict[str, int]] = {}
    for (module, name), value in area.attributes.items():
        if value < 2 or value % degree:
            continue
        counts_heads = bool(_HEADS.search(name)) and not _NOT_HEADS.search(name)
        in_config = "." in name
        wanted = (
            (counts_heads and in_config and "config" in rule.attributes)
            or (counts_heads and not in_config and "heads" in rule.attributes)
            or (value in widths and not in_config and "widths" in rule.attributes)
            or (rule.shared_kv and not in_config and bool(_GROUPS.search(name)))
        )
        if wanted:
            found.setdefault(module, {})[name] = value // degree
    return found


def _head_inputs(area: Area, degree: int) -> dict[str, tuple[HeadInput, ...]]:
    """Returns arguments with a dimension that counts heads, once or for each sample."""
    numbers = {
        value
        for (_, name), value in area.attributes.items()
        if _HEADS.search(name) and not _NOT_HEADS.search(name) and value % degree == 0
    }
    found: dict[str, tuple[HeadInput, ...]] = {}
    for (module, argument), shape in area.arguments.items():
        for heads in sorted(numbers, reverse=True):
            dims = [d for d, size in enumerate(shape) if size == heads]
            if not dims and shape and shape[0] % heads == 0:
                dims = [0]
            if dims and heads > 1:
                one = HeadInput(argument=argument, dim=dims[0], heads=heads)
                found[module] = (*found.get(module, ()), one)
                break
    return found
