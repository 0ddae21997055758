"""The profile of any module: its loss is run once on the meta device, and counted.

No weight is allocated: a module that is not on the meta device already is copied there.
Repeated blocks are found as everywhere in Drivetrain; what runs before the first one is
the prologue, what runs after the last the epilogue. Attention is counted, not run.
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

from drivetrain_core import Code, PlanError
from drivetrain_core.extending import find_blocks, repeated_blocks
from drivetrain_parallel.cost.model_profile import Matmul, ModelProfile, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_PROLOGUE, _EPILOGUE = -1, -2
_PRODUCTS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
)
_ALL = (torch.all, torch.Tensor.all)
# What a fused block moves between products at the least: two norms read and write, two
# residual sums read two and write one.
_LEAST_OUTER = 10


def profile_module(
    module: nn.Module,
    batch: Any,
    loss_of: Callable[[nn.Module, Any], torch.Tensor],
    *,
    name: str = "",
) -> ModelProfile:
    """Returns the profile of a model.

    Args:
        module: The whole model, on any device; it is not changed.
        batch: One batch as the loss takes it, of a sample or more. Tensors may be on
            the meta device.
        loss_of: Called with a copy of the module and the batch, as tensors on the meta
            device; returns the loss.
        name: What to call the model; empty for the name of its class.

    Raises:
        PlanError: The model has no repeated blocks, or its loss depends on values,
            which the meta device has none of.

    Example:
        >>> block = lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        >>> model = nn.Sequential(*(block() for _ in range(3)))
        >>> profile = profile_module(model, torch.zeros(4, 8), lambda m, x: m(x).sum())
        >>> profile.num_blocks, profile.num_parameters, profile.block.regions
        (3, 840, 1)
    """
    shadow = _on_meta(module)
    inputs = tree_map_only(torch.Tensor, lambda t: t.to("meta"), batch)
    blocks = repeated_blocks(shadow, find_blocks(shadow))
    if not blocks:
        raise PlanError(
            Code.NOT_APPLICABLE,
            "mesh",
            because=f"{type(module).__name__} has no list of repeated blocks to profile",
            fix="put two blocks or more of one class and size side by side into one "
            "ModuleList or Sequential",
        )
    counter = _Counter(shadow)
    handles = [*_mark(blocks, counter), *_note_owners(shadow, counter)]
    try:
        with counter.functions, counter, counter.saved_tensors():
            loss_of(shadow, inputs)
    except PlanError:
        raise
    except (NotImplementedError, RuntimeError, ValueError, TypeError) as error:
        raise PlanError(
            Code.NOT_APPLICABLE,
            "mesh",
            because=f"{type(module).__name__} cannot run on the meta device: {error}",
            fix="describe it with profile_transformer, or make its forward independent "
            "of values",
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return _assemble(module, shadow, blocks, counter, name)


def _on_meta(module: nn.Module) -> nn.Module:
    """Returns a copy of a module whose tensors have no values."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(empty, parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(module, memo)


@dataclass(slots=True)
class _Tally:
    """What one part did, for all tokens together."""

    products: list[tuple[int, int, int, str]] = field(default_factory=list)
    attention_flops: float = 0.0
    attention_work: float = 0.0
    scores: float = 0.0
    keys: float = 0.0
    outer: float = 0.0
    inner: float = 0.0
    outer_saved: float = 0.0
    inner_saved: float = 0.0
    kernels: int = 0
    regions: int = 0


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators of each part while it is entered."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights = {_storage(p) for p in module.parameters()}
        self.at = _PROLOGUE
        self.tallies: dict[int, _Tally] = {_PROLOGUE: _Tally()}
        self.owners: dict[int, set[nn.Module]] = {}
        self.stream: torch.Size | None = None
        self.functions = _Attention(self)
        self._is_open = False
        self._is_mixed = False
        self._packed: dict[int, torch.Tensor] = {}
        self.heads: set[int] = set()

    @property
    def tally(self) -> _Tally:
        """Returns that of the part which runs."""
        return self.tallies.setdefault(self.at, _Tally())

    @property
    def width(self) -> int:
        """Returns the width of the residual stream; 0 while it is not known."""
        return self.stream[-1] if self.stream else 0

    def enter(self, part: int) -> None:
        """Counts for another part from now on."""
        self.at, self._is_open, self._is_mixed = part, False, False

    def saved_tensors(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Returns a context that counts what is kept for the backward."""

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            key = _storage(tensor)
            if key not in self.weights and key not in self._packed:
                # It must live on, or another storage would get its number.
                self._packed[key] = tensor
                self.keep(tensor)
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    def keep(self, tensor: torch.Tensor) -> None:
        """Counts a tensor that is kept."""
        if self._is_outer(tensor):
            self.tally.outer_saved += tensor.numel()
        else:
            self.tally.inner_saved += tensor.numel()

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool
    ) -> None:
        """Counts fused attention."""
        if query.dim() > 3:
            self.heads.update(t.shape[-3] for t in (query, key))
        scores = float(query.numel() // query.shape[-1] * key.shape[-2])
        flops = 2 * scores * (query.shape[-1] + value.shape[-1])
        tally = self.tally
        tally.attention_flops += flops
        tally.attention_work += flops * (0.5 if causal else 1.0)
        tally.scores += scores
        tally.keys += key.numel() + value.numel()
        tally.kernels += 1
        tally.inner_saved += 2 * query.numel() + key.numel() + value.numel()
        self._is_mixed = True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs an operator and counts it."""
        del types
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in _tensors((args, kwargs)) if t.is_meta]
        results = [t for t in _tensors(out) if t.is_meta]
        known = {_storage(t) for t in tensors}
        is_view = all(_storage(t) in known for t in results)
        if is_view and not func._schema.is_mutable:
            return out  # A view moves nothing.
        self.tally.kernels += 1
        if func in _PRODUCTS:
            self._product(func, args)
            return out
        moved = sum(t.numel() for t in results)
        moved += sum(t.numel() for t in tensors if _storage(t) not in self.weights)
        if any(self._is_outer(t) for t in results):
            self.tally.outer += moved
        else:
            self.tally.inner += moved
        return out

    def _product(self, func: Any, args: tuple[Any, ...]) -> None:
        left, right = args[-2:]
        rows, inputs, outputs = left.shape[-2], left.shape[-1], right.shape[-1]
        if _storage(right) not in self.weights:
            flops = 2.0 * rows * inputs * outputs * (left.numel() // (rows * inputs))
            self.tally.attention_flops += flops
            self.tally.attention_work += flops
            self._is_mixed = True
            return
        del func
        split = ""
        if (
            self._is_open
            and outputs == self.width
            and (inputs != self.width or self._is_mixed)
        ):
            split, self._is_open, self._is_mixed = "inputs", False, False
            self.tally.regions += 1
        elif inputs == self.width or not self.width:
            split, self._is_open = "outputs", True
        self.tally.products.append((rows, inputs, outputs, split))

    def _is_outer(self, tensor: torch.Tensor) -> bool:
        stream = self.stream
        if stream is None:
            return False
        flat = (stream[:-1].numel(), stream[-1])
        return tensor.shape in (stream, flat)


class _Attention(TorchFunctionMode):
    """Counts fused attention in place of running it, and answers for values.

    A forward that asks whether something holds for all elements is told that it does,
    and whether for any that it does not: so it is for samples without padding.
    """

    def __init__(self, counter: _Counter) -> None:
        super().__init__()
        self.counter = counter
        # The answers to "do all?", kept so that no other tensor gets their identity.
        self._all: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Returns an empty result for attention, and what a function returns else."""
        del types
        kwargs = kwargs or {}
        if func is torch.Tensor.__bool__ and args[0].is_meta:
            return id(args[0]) in self._all
        if func is not nn.functional.scaled_dot_product_attention:
            out = func(*args, **kwargs)
            if func in _ALL and isinstance(out, torch.Tensor):
                self._all[id(out)] = out
            return out
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        query, key, value = given["query"], given["key"], given["value"]
        self.counter.attend(query, key, value, bool(given.get("is_causal")))
        with torch.utils._python_dispatch._disable_current_modes():
            return query.new_empty((*query.shape[:-1], value.shape[-1]))


def _mark(blocks: list[nn.Module], counter: _Counter) -> list[Any]:
    """Tells the counter which block runs, and returns the hooks that do."""
    handles = []
    for index, block in enumerate(blocks):

        def before(_: nn.Module, args: Any, kwargs: Any, index: int = index) -> None:
            stream = next(_tensors((args, kwargs)), None)
            if index == 0 and stream is not None:
                counter.stream = stream.shape
            counter.enter(index)

        def after(*_: Any) -> None:
            counter.enter(_EPILOGUE)

        handles.append(block.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(block.register_forward_hook(after))
    return handles


def _note_owners(module: nn.Module, counter: _Counter) -> list[Any]:
    """Notes in which part each module with parameters of its own runs."""

    def note(owner: nn.Module, _: Any) -> None:
        counter.owners.setdefault(min(counter.at, 0), set()).add(owner)

    return [
        child.register_forward_pre_hook(note)
        for child in module.modules()
        if any(True for _ in child.parameters(recurse=False))
    ]


def _assemble(
    module: nn.Module,
    shadow: nn.Module,
    blocks: list[nn.Module],
    counter: _Counter,
    name: str,
) -> ModelProfile:
    stream = counter.stream
    missing = [i for i in range(len(blocks)) if i not in counter.tallies]
    if stream is None or missing or len(stream) < 2:
        raise PlanError(
            Code.NOT_APPLICABLE,
            "mesh",
            because=f"block {missing[0] if missing else 0} of {type(module).__name__} "
            "was not called with a tensor of tokens",
            fix="call every block in the forward, its input first",
        )
    width, sequence = stream[-1], stream[1] if len(stream) > 2 else 1
    tokens = stream.numel() / width
    inside = {p for block in blocks for p in block.parameters()}
    before, after = _end_parameters(shadow, counter, inside)
    block = _part(
        [counter.tallies[i] for i in range(len(blocks))], tokens, width, inside
    )
    epilogue = _part([counter.tallies.get(_EPILOGUE, _Tally())], tokens, width, after)
    vocabulary = max((m.outputs for m in epilogue.matmuls), default=0)
    return ModelProfile(
        name=name or type(module).__name__,
        num_blocks=len(blocks),
        block=block,
        prologue=_part([counter.tallies[_PROLOGUE]], tokens, width, before),
        epilogue=_head(epilogue, vocabulary),
        width=width,
        sequence=sequence,
        vocabulary=vocabulary,
        tied_parameters=sum(p.numel() for p in before & after),
        heads=_heads(module) or tuple(sorted(counter.heads)),
    )


def _end_parameters(
    shadow: nn.Module, counter: _Counter, inside: set[nn.Parameter]
) -> tuple[set[nn.Parameter], set[nn.Parameter]]:
    """Returns the parameters of the prologue and of the epilogue."""
    found = []
    for part in (_PROLOGUE, _EPILOGUE):
        owners = counter.owners.get(part, set())
        found.append({p for o in owners for p in o.parameters(recurse=False)} - inside)
    # What no module's call reaches, such as a table that is indexed, comes first.
    found[0] |= set(shadow.parameters()) - inside - found[0] - found[1]
    return found[0], found[1]


def _part(
    tallies: list[_Tally], tokens: float, width: int, parameters: set[nn.Parameter]
) -> Part:
    """Returns the mean of equal parts, for one token."""
    number = len(tallies)
    scale = 1 / (number * tokens)
    products: dict[tuple[int, int, int, str], int] = {}
    for tally in tallies:
        for product in tally.products:
            products[product] = products.get(product, 0) + 1
    matmuls = tuple(
        Matmul(
            inputs=inputs,
            outputs=outputs,
            split=split,
            count=max(1, round(count / number)),
            tokens=rows / tokens * (count / number) / max(1, round(count / number)),
        )
        for (rows, inputs, outputs, split), count in products.items()
    )
    outer = sum(t.outer for t in tallies) * scale
    inner = sum(t.inner for t in tallies) * scale
    between = sum(
        m.count * m.tokens * (m.outputs if m.split == "outputs" else m.inputs)
        for m in matmuls
        if m.split
    )
    least_outer = min(outer, float(_LEAST_OUTER * width))
    least_inner = min(inner, between)
    return Part(
        parameters=round(sum(p.numel() for p in parameters) / number),
        split_parameters=round(
            sum(p.numel() for p in parameters if p.dim() > 1) / number
        ),
        matmuls=matmuls,
        attention_flops=sum(t.attention_flops for t in tallies) * scale,
        attention_work=sum(t.attention_work for t in tallies) * scale,
        score_elements=sum(t.scores for t in tallies) * scale,
        key_elements=sum(t.keys for t in tallies) * scale,
        outer_elements=least_outer,
        inner_elements=least_inner,
        unfused_outer=outer - least_outer,
        unfused_inner=inner - least_inner,
        outer_saved=sum(t.outer_saved for t in tallies) * scale,
        inner_saved=sum(t.inner_saved for t in tallies) * scale,
        regions=round(sum(t.regions for t in tallies) / number),
        kernels=round(sum(t.kernels for t in tallies) / number),
    )


def _head(part: Part, vocabulary: int) -> Part:
    """Returns the epilogue with the logits that the loss keeps counted once.

    How many copies of them there are is an option of the step.
    """
    return dataclasses.replace(
        part, inner_saved=float(vocabulary), regions=max(1, part.regions)
    )


def _heads(module: nn.Module) -> tuple[int, ...]:
    """Returns the numbers of heads that a model's configuration names."""
    config = getattr(module, "config", None)
    config = getattr(config, "text_config", config)
    names = ("num_attention_heads", "num_key_value_heads", "n_head", "num_heads")
    found = {getattr(config, name, None) for name in names}
    return tuple(sorted(n for n in found if isinstance(n, int) and n > 0))


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree_map(lambda t: found.append(t) if isinstance(t, torch.Tensor) else None, tree)
    return iter(found)
