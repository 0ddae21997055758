"""`replace`: finds modules that an op can stand in for, checks, and swaps them."""

from __future__ import annotations

import copy
import difflib
import math
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from drivetrain_core.accelerators import isolated_rng
from drivetrain_kernels._errors import (
    ImplementationError,
    ImplementationNameError,
    ReplacementError,
)
from drivetrain_kernels.replacement import _loss_head as loss_head
from drivetrain_kernels.replacement._check import TOLERANCES, disagreement, sample_input
from drivetrain_kernels.replacement._formula import relative
from drivetrain_kernels.replacement._forward_state import forward_state_of, has_hooks
from drivetrain_kernels.replacement._handle import Left, Replaced, Replacement
from drivetrain_kernels.replacement._identify import is_standin
from drivetrain_kernels.replacement._module_types import (
    KINDS,
    known_to_be_left,
    matches_for,
)
from drivetrain_kernels.replacement._proof import Proof
from drivetrain_kernels.replacement._trial_copy import trial_copy

if TYPE_CHECKING:
    from drivetrain_kernels.replacement._identify import OpMatch

_PLAIN = frozenset({"reference", "torch"})
"""What a model computes anyhow; where auto takes these there is nothing to gain."""


def replace(
    model: nn.Module,
    plan: str | Mapping[str, str] | None = None,
    *,
    example: Any = None,
    verify: bool = True,
) -> Replacement:
    """Lets ops of this package stand in for modules of a model, until undone.

    Modules are found by their structure, in any library's spelling: RMSNorm (Llama's,
    Gemma's, T5's, torch's), LayerNorm, gated feed-forwards with SiLU or GELU, and the
    loss of causal language models of transformers. Each is run beside its stand-in on
    random input first, forward and backward, and is left with a reason where they
    differ. Only instances change, and only their `forward` (or their loss function):
    parameters, names, hooks and the state dict stay.

    Args:
        model: Any module. Replace before it is compiled or sharded.
        plan: By kind ("rms_norm", "layer_norm", "swiglu", "geglu", "cross_entropy")
            the implementation to use; kinds that are not named are left alone. "auto"
            is the op's choice at each call, and replaces only where that choice is
            more than torch's own operators, which on a CPU is nowhere. "auto" as the
            whole plan, or None, is "auto" for every kind.
        example: A batch for the whole model; when given, its output is compared too.
            A tuple holds positional arguments, a mapping named ones.
        verify: Whether to check each stand-in.

    Returns:
        The handle, which says what was replaced and undoes it.

    Raises:
        ReplacementError: The plan names an unknown kind, or the model's output on
            `example` changed.
        ImplementationNameError: The plan names an unknown implementation.
        ImplementationError: An implementation that the plan names cannot take any
            module of its kind here.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.RMSNorm(8))
        >>> with replace(model, {"rms_norm": "reference"}) as replacement:
        ...     print(replacement)
        replaced  1 x RMSNorm  1  rms_norm(eps=1.19209e-07, offset=0, cast=float32) \
by reference
    """
    wanted = _checked_plan(model, plan)
    swap = _Swap(wanted, verify=verify)
    compiled = ""
    # Whatever the caller is in: gradients are compared.
    with torch.inference_mode(False):
        for name, module in model.named_modules():
            # What was compiled holds its parts as they were when it was.
            if _is_compiled(module):
                compiled = compiled or name or "the model"
            swap.visit(name, module, compiled)
            swap.visit_loss(name, module, compiled)
    swap.require_some_of_each()
    handle = Replacement(swap.replaced, swap.left, swap.bindings)
    if example is not None:
        _require_same_output(model, handle, example)
    handle.redo()
    return handle


class _Swap:
    """Collects what is to be replaced and what is to be left."""

    def __init__(self, wanted: Mapping[str, str], *, verify: bool) -> None:
        self.wanted = wanted
        self.verify = verify
        self.replaced: list[Replaced] = []
        self.left: list[Left] = []
        self.bindings: list[tuple[nn.Module, str, Any]] = []
        self._refusals: dict[str, ImplementationError] = {}

    def visit(self, name: str, module: nn.Module, compiled: str) -> None:
        """Decides on one module.

        Args:
            name: Its name in the model.
            module: The module.
            compiled: The compiled module that it is a part of, or empty.
        """
        kind = type(module).__name__
        matches = matches_for(module)
        why = known_to_be_left(module) if not matches else ""
        if matches:
            matches = [g for g in matches if g.kind in self.wanted]
            if not matches:
                return
            why = _unfit(module, compiled)
        if why:
            self.left.append(Left(name=name, module=kind, why=why))
        elif matches:
            self._try(name, module, matches)

    def require_some_of_each(self) -> None:
        """Raises if an implementation that was named can take no module of its kind."""
        done = {replaced.op.partition("(")[0] for replaced in self.replaced}
        for kind, error in self._refusals.items():
            if kind not in done:
                raise error

    def _try(self, name: str, module: nn.Module, matches: list[OpMatch]) -> None:
        kind = type(module).__name__
        best, error, why = None, None, self._nothing_to_gain(module, matches[0])
        if not why:
            proof = Proof(module, matches[0].width)
            best, error, why = self._best(module, matches, proof)
        if best is not None:
            impl, why = self._implementation(module, best)
            if not why:
                standin = best.build(impl, forward_state_of(module))
                own = disagreement(
                    module, standin, proof.width, _dtype(module), proof.shapes
                )
                if self.verify and not own <= TOLERANCES[_dtype(module)]:
                    why = f"{best.what} by {impl} differs by {own:.1e}"
                elif self.verify and (worse := proof.rounds_worse(standin)):
                    why = f"{best.what} by {impl} {worse}"
                else:
                    bound = types.MethodType(standin, module)
                    error = max(own, error or 0.0)
                    self._bind(name, (module, "forward", bound), best.what, impl, error)
                    return
        self.left.append(Left(name=name, module=kind, why=why))

    def visit_loss(self, name: str, module: nn.Module, compiled: str) -> None:
        """Decides on the loss of a model of transformers.

        Args:
            name: The model's name in the whole.
            module: Any module; most have no such loss.
            compiled: The compiled module that it is a part of, or empty.
        """
        kind = "cross_entropy"
        plain = loss_head.head_of(module)
        if plain is None or kind not in self.wanted:
            return
        device, dtype = _device(module), _dtype(module)
        if device.type == "meta":
            why = "its parameters are on the meta device"
            self.left.append(Left(name=name, module=_loss_of(module), why=why))
            return
        impl = self.wanted[kind]
        ours = loss_head.causal_loss(impl)
        why = f"{compiled} is compiled; replace before compiling" if compiled else ""
        facts = loss_head.loss_facts(device, dtype)
        try:
            chosen = KINDS[kind].choose(facts, impl).implementation.name
        except ImplementationError as error:
            self._refusals.setdefault(kind, error)
            why = str(error)
        else:
            if impl == "auto" and chosen in _PLAIN:
                why = f"{kind} would run torch's operators here as well"
        apart = 0.0 if why else loss_head.loss_disagreement(plain, ours, device, dtype)
        if self.verify and not apart <= TOLERANCES[dtype]:
            why = f"{kind} by {impl} differs by {apart:.1e}"
        if why:
            self.left.append(Left(name=name, module=_loss_of(module), why=why))
        else:
            self._bind(name, (module, loss_head.ATTRIBUTE, ours), kind, impl, apart)

    def _bind(
        self,
        name: str,
        binding: tuple[nn.Module, str, Any],
        what: str,
        impl: str,
        error: float,
    ) -> None:
        module, attribute, _ = binding
        loss = attribute == loss_head.ATTRIBUTE
        kind = _loss_of(module) if loss else type(module).__name__
        self.bindings.append(binding)
        shown = error if self.verify else None
        self.replaced.append(
            Replaced(name=name, module=kind, op=what, impl=impl, error=shown)
        )

    def _best(
        self, module: nn.Module, matches: list[OpMatch], proof: Proof
    ) -> tuple[OpMatch | None, float | None, str]:
        """Returns the match that computes what the module does, by its reference."""
        found: list[tuple[float, float, OpMatch]] = []
        why, known = proof.why, forward_state_of(module)
        for match in () if why else matches:
            try:
                standin = match.build("reference", known)
                apart = proof.error(standin)
                if not apart <= proof.alike:
                    why = f"it is no {match.what}: in float64 it differs by {apart:.1e}"
                    continue
                # Where it rounds shows in few bits only.
                error, few = (
                    disagreement(module, standin, proof.width, dtype, proof.shapes)
                    for dtype in (_dtype(module), torch.bfloat16)
                )
            except Exception as failure:  # noqa: BLE001
                # The module is something else, which may raise whatever it likes.
                why = f"it takes other input: {type(failure).__name__}"
                continue
            found.append((error, few, match))
        good = [f for f in found if f[0] <= TOLERANCES[_dtype(module)]]
        if good:
            error, _, match = min(good, key=lambda f: f[1])
            return match, error, ""
        if found:
            error, _, match = min(found, key=lambda f: f[0])
            why = f"it is no {match.what}: it differs by {error:.1e}"
        return None, None, why

    def _implementation(self, module: nn.Module, match: OpMatch) -> tuple[str, str]:
        """Returns the implementation to use, or why there is none."""
        impl = self.wanted[match.kind]
        if impl == "auto":
            return impl, self._nothing_to_gain(module, match)
        try:
            match.op.choose(_facts(module, match), impl)
        except ImplementationError as error:
            self._refusals.setdefault(match.kind, error)
            return "", str(error)
        return impl, ""

    def _nothing_to_gain(self, module: nn.Module, match: OpMatch) -> str:
        """Returns why "auto" leaves a module, or nothing."""
        if self.wanted[match.kind] != "auto":
            return ""
        chosen = match.op.choose(_facts(module, match)).implementation.name
        if chosen in _PLAIN:
            return f"{match.op.name} would run torch's operators here as well"
        return ""


def _loss_of(module: nn.Module) -> str:
    return f"loss of {type(module).__name__}"


def _facts(module: nn.Module, match: OpMatch) -> Any:
    x = sample_input(match.width, _device(module), _dtype(module))
    return match.facts(trial_copy(module), x.requires_grad_())


def _checked_plan(
    model: object, plan: str | Mapping[str, str] | None
) -> Mapping[str, str]:
    if not isinstance(model, nn.Module):
        message = f"replace() takes a module, got {type(model).__name__}"
        raise ReplacementError(message)
    if plan is None or plan == "auto":
        return dict.fromkeys(KINDS, "auto")
    if not isinstance(plan, Mapping):
        message = f"a plan is 'auto' or a mapping of kinds, got {plan!r}"
        raise ReplacementError(message)
    for kind, impl in plan.items():
        if kind not in KINDS:
            near = difflib.get_close_matches(str(kind), KINDS, n=1)
            hint = f", nearest: {near[0]}" if near else ""
            message = (
                f"a plan names kinds of modules; there is no kind {kind!r}{hint}; the "
                f"kinds are {', '.join(KINDS)}"
            )
            raise ReplacementError(message)
        _require_name(kind, impl)
    return plan


def _require_name(kind: str, impl: str) -> None:
    names = ["auto", *(one.name for one in KINDS[kind].implementations)]
    if impl not in names:
        message = (
            f"{kind}: there is no implementation {impl!r}; it has "
            f"{', '.join(map(repr, names))}"
        )
        raise ImplementationNameError(message)


def _is_plain(module: nn.Module) -> bool:
    """Returns whether a module's `forward` is its class's.

    That of one that was pickled while it had a stand-in is so, and its own attribute.
    """
    own = vars(module).get("forward")
    if own is None:
        return True
    plain = getattr(own, "__func__", None) is type(module).forward
    return plain and own.__self__ is module


def _unfit(module: nn.Module, compiled: str) -> str:
    """Returns why a module must be left whatever it computes, or nothing."""
    if is_standin(vars(module).get("forward")):
        return "replaced already"
    if type(module).__module__.partition(".")[0] == __name__.partition(".")[0]:
        return "it runs an op of this package already"
    if not _is_plain(module):
        return "another library has set its forward"
    if compiled:
        return f"{compiled} is compiled; replace before compiling"
    known = forward_state_of(module)
    if hooked := [n for n, *_ in known.parts if has_hooks(getattr(module, n))]:
        return f"its part {hooked[0]!r} has hooks, which would not fire"
    if known.unseen or not known.holds_for(module):
        what = known.unseen or "a value of its own"
        return f"its forward uses {what!r}, which may change what it does unseen"
    for parameter in module.parameters():
        if type(parameter.data) is not Tensor:
            return f"its parameters are {type(parameter.data).__name__}; replace before"
        if parameter.is_meta:
            return "its parameters are on the meta device"
        if parameter.dtype not in TOLERANCES:
            return f"its parameters are {parameter.dtype}"
    if not all(buffer.is_floating_point() for buffer in module.buffers()):
        return "its buffers hold whole numbers, which its forward may count or read"
    if len({(p.dtype, p.device) for p in module.parameters()}) > 1:
        return "its parameters differ in dtype or device"
    return ""


def _is_compiled(module: nn.Module) -> bool:
    named = type(module).__name__ == "OptimizedModule"
    return named or module._compiled_call_impl is not None


def _dtype(module: nn.Module) -> torch.dtype:
    return next(module.parameters()).dtype


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


def _require_same_output(model: nn.Module, handle: Replacement, example: Any) -> None:
    """Compares the whole model's outputs; the handle is left undone."""
    before = _outputs(copy.deepcopy(model), example)
    with handle:
        handle.redo()
        after = _outputs(copy.deepcopy(model), example)
    for ours, theirs in zip(before, after, strict=True):
        # Rounding grows from layer to layer.
        bound = 10 * TOLERANCES.get(ours.dtype, 1e-5)
        apart = relative(*(x.nan_to_num(math.e) for x in (ours, theirs)))
        if not apart <= bound:
            message = (
                f"the model's output on the example changed by {apart:.1e}, allowed is "
                f"{bound:.0e}; nothing was replaced"
            )
            raise ReplacementError(message)


def _outputs(model: nn.Module, example: Any) -> list[Tensor]:
    with torch.no_grad(), isolated_rng(0):
        if isinstance(example, Mapping):
            out = model(**example)
        elif isinstance(example, tuple | list):
            out = model(*example)
        else:
            out = model(example)
    leaves = pytree.tree_leaves(out.to_tuple() if hasattr(out, "to_tuple") else out)
    found = [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
    if not found:
        message = (
            f"the output on the example, a {type(out).__name__}, holds no floating tensor "
            "to compare; leave `example` out, or give a part of the model that has one"
        )
        raise ReplacementError(message)
    return found
