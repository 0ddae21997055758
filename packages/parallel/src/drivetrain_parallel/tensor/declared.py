"""What a model declares of its own tensor parallelism, in our styles: pure functions.

Models of transformers have a `tp_plan`: a style by the name of a module, with `*` for the
number of a layer. It is one more way to split the model, and verified as any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drivetrain_parallel.tensor.plan import Dropped, ModuleStyle, Style, TensorPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from drivetrain_parallel.tensor.candidates import Area
    from drivetrain_parallel.tensor.flow import Matrix
    from drivetrain_parallel.tensor.repeated import BlockLists

_ATTRIBUTES = ("tp_plan", "_tp_plan")

_STYLES = {
    "colwise": Style.COLWISE,
    "packed_colwise": Style.COLWISE,
    "colwise_gather_output": Style.COLWISE_GATHERED,
    "colwise_rep": Style.COLWISE_GATHERED,
    "embedding_colwise": Style.COLWISE_GATHERED,
    "embedding_rowwise": Style.VOCAB,
    "rowwise": Style.ROWWISE,
    "packed_rowwise": Style.ROWWISE,
    "replicated_with_grad_allreduce": Style.PARTIAL,
}
_PACKED = ("packed_colwise", "packed_rowwise")

_WHOLE_INPUT = "its input is whole on every rank, and here it arrives split"
_MIXTURE = "the layers of a mixture are not divided along the tensor axis"
_NOT_OURS = {
    "rowwise_split_input": _WHOLE_INPUT,
    "rowwise_rep": _WHOLE_INPUT,
    "moe_tp_experts": _MIXTURE,
    "moe_identity_expert": _MIXTURE,
    "mla_kv_a_proj": "its outputs are in two parts with different gradients",
    "all_reduce": "outputs are summed by the matrix that they come from",
    "sequence_parallel": "the sequence is split by the option sequence_parallel",
    "local_params": "modules always see their own part of parameters",
}
_NOTHING = "replicate"


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """The plan that a model itself has, in our styles.

    Args:
        modules: The style of each module that it splits, by the module's name.
        refused: Modules whose declared style is not used.
        dropped: What of it says nothing that could be tried, and why.
    """

    modules: Mapping[str, ModuleStyle] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    dropped: tuple[Dropped, ...] = ()


def read_declared(model: nn.Module) -> tuple[dict[str, Any], tuple[Dropped, ...]]:
    """Returns the plan that a model holds, or that modules inside of it hold.

    Args:
        model: Any model; where it has a plan, those of modules in it are part of that.

    Returns:
        The style by name, as it is written, and what is no plan.
    """
    found: dict[str, Any] = {}
    dropped = []
    holders: list[str] = []
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        if any(name.startswith(holder) for holder in holders):
            continue
        plan, because = _own_plan(module)
        if because:
            dropped.append(_dropped(f"{prefix}tp_plan", "the value", because))
        elif plan:
            holders.append(prefix)
            found.update({f"{prefix}{key}": style for key, style in plan.items()})
    return found, tuple(dropped)


def declared_of(
    model: nn.Module, matrices: Mapping[str, Matrix], lists: BlockLists
) -> Declared:
    """Returns what a model declares of its modules, in our styles.

    Args:
        model: Any model; most declare nothing.
        matrices: Those that its forward pass called.
        lists: Its lists of blocks, whose numbers a declared name may leave open.
    """
    plan, dropped = read_declared(model)
    if not plan:
        return Declared(dropped=dropped)
    modules: dict[str, ModuleStyle] = {}
    refused: set[str] = set()
    problems: dict[tuple[str, str], None] = {}
    used = set()
    for name, module in model.named_modules():
        key = next((n for n in _written(name, lists) if n in plan), None)
        if key is None:
            continue
        used.add(key)
        style, because = _translated(plan[key], module, matrices.get(name))
        if style is not None:
            modules[name] = style
        elif because:
            refused.add(name)
            problems[key, because] = None
    parameters = {
        n for name, _ in model.named_parameters() for n in _written(name, lists)
    }
    for key in plan:
        if key not in used:
            is_parameter = key in parameters
            what = "names a parameter, and styles are of modules"
            because = what if is_parameter else "matches no module of the model"
            problems[key, because] = None
    return Declared(
        modules=modules,
        refused=frozenset(refused),
        dropped=(*dropped, *(_dropped(k, _said(plan[k]), b) for k, b in problems)),
    )


def declared_split(
    areas: Sequence[Area], degree: int, declared: Declared, lists: BlockLists
) -> tuple[TensorPlan | None, str]:
    """Returns how a model itself splits regions of one kind, or why that is not tried.

    Args:
        areas: Alike but for the numbers of their blocks.
        degree: Ranks.
        declared: What the model declares.
        lists: The model's lists of blocks.

    Returns:
        Styles of these modules alone; None where nothing is declared that we have a
        style for, or, with the reason, where it cannot be tried.
    """
    modules: dict[str, ModuleStyle] = {}
    by_pattern: dict[str, ModuleStyle | None] = {}
    for area in areas:
        matrices = {m.name: m for m in (*area.writers, *area.readers)}
        for name in (*matrices, *area.inner):
            pattern = lists.pattern(name)
            if name in declared.refused:
                return None, ""
            style = declared.modules.get(name)
            if by_pattern.setdefault(pattern, style) != style:
                return None, f"blocks that are alike declare different {pattern}"
            if style is None:
                continue
            because = (
                undivided(style, matrices[name], degree) if name in matrices else ""
            )
            if because:
                return None, because
            modules[name] = style
    return (TensorPlan(degree=degree, modules=modules) if modules else None), ""


def keeps_values_split(areas: Sequence[Area], plan: TensorPlan) -> bool:
    """Says whether a plan leaves all values of regions split from end to end."""

    def is_all(matrices: Sequence[Matrix], style: Style) -> bool:
        found = [plan.modules.get(matrix.name) for matrix in matrices]
        return all(one is not None and one.style is style for one in found)

    return all(
        is_all(area.writers, Style.COLWISE) and is_all(area.readers, Style.ROWWISE)
        for area in areas
    )


def undivided(style: ModuleStyle, matrix: Matrix, degree: int) -> str:
    """Returns which size a number of ranks does not divide, in words; empty if none.

    Example:
        >>> from drivetrain_parallel.tensor.flow import Matrix
        >>> down = Matrix(name="down", is_embedding=False, in_features=6,
        ...     out_features=4, weight="down.weight")
        >>> undivided(ModuleStyle(style=Style.ROWWISE), down, 4)
        '6 features are no multiple of 4'
        >>> undivided(ModuleStyle(style=Style.COLWISE), down, 4)
        ''
    """
    if style.style is Style.PARTIAL:
        return ""
    by_inputs = style.style in (Style.ROWWISE, Style.VOCAB)
    sizes = style.parts or (matrix.in_features if by_inputs else matrix.out_features,)
    wrong = [size for size in sizes if size % degree]
    return f"{wrong[0]} features are no multiple of {degree}" if wrong else ""


def _own_plan(module: nn.Module) -> tuple[Mapping[Any, Any], str]:
    """Returns the plan of a module, empty if it has none, or what is wrong with it."""
    for attribute in _ATTRIBUTES:
        # Some wrappers answer with what a module inside of them has.
        if attribute not in vars(module) and not hasattr(type(module), attribute):
            continue
        try:
            plan = getattr(module, attribute)
        # A property of somebody's class may raise whatever it likes.
        except Exception as error:  # noqa: BLE001
            return {}, f"reading it raised {type(error).__name__}: {error}"
        if plan is None:
            continue
        if isinstance(plan, Mapping):
            return plan, ""
        got = type(plan).__name__
        return {}, f"expected a dict of styles by name, got a {got}"
    return {}, ""


def _translated(
    said: Any, module: nn.Module, matrix: Matrix | None
) -> tuple[ModuleStyle | None, str]:
    """Returns our style, or None with the reason; no reason where nothing is split."""
    if said == _NOTHING:
        return None, ""
    if not isinstance(said, str):
        return None, "expected the name of a style"
    if said in _NOT_OURS:
        return None, _NOT_OURS[said]
    if said not in _STYLES:
        return None, f"no such style; known are {', '.join(sorted(_STYLES))}"
    style = _STYLES[said]
    if style is Style.PARTIAL:
        # Of what is not a matrix, the input is in the split part of the model.
        return ModuleStyle(style=style, is_entered=matrix is None), ""
    if matrix is None:
        return None, (
            f"it names a {type(module).__name__}, and what is split is a Linear, "
            "Embedding or Conv1D that the forward pass calls"
        )
    if style is Style.VOCAB and not matrix.is_embedding:
        return None, f"it is for embeddings, and names a {type(module).__name__}"
    if style is Style.ROWWISE and matrix.is_embedding:
        style = Style.VOCAB
    if said not in _PACKED:
        return ModuleStyle(style=style), ""
    features = matrix.out_features if style is Style.COLWISE else matrix.in_features
    if features % 2:
        return None, f"{features} features are no two equal parts"
    return ModuleStyle(style=style, parts=(features // 2,) * 2), ""


def _written(name: str, lists: BlockLists) -> tuple[str, str, str]:
    """Returns a name as it is, with `*` for its block, and with `*` for all numbers."""
    every = ("*" if part.isdigit() else part for part in name.split("."))
    return name, lists.pattern(name), ".".join(every)


def _said(value: Any) -> str:
    what = value if isinstance(value, str) else f"a {type(value).__name__}"
    return f"the declared style {what}"


def _dropped(name: object, tried: str, because: str) -> Dropped:
    # A key may be anything that somebody wrote.
    return Dropped(names=(str(name),), tried=tried, because=because, is_declared=True)
