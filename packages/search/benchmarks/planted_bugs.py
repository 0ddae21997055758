"""Optimizations with a silent bug of one process.

Each is registered and applied without an error, and trains something else, or nothing.
"""

from __future__ import annotations

import copy
import itertools

import torch
from torch import nn

from drivetrain_core._choice import Numerics, Phase, Slot
from drivetrain_core._data.batch import batch_size, map_tensors, split_batch
from drivetrain_core._model.forward import wrap_forward
from drivetrain_core._optimization import BaseOptimization
from drivetrain_core._program import check_loss
from drivetrain_core._step import TrainStep
from drivetrain_core.builtin.precision import _cast_ends


class Bug(BaseOptimization):
    """An optimization that breaks something in silence."""

    slot = Slot.KERNELS

    def __init__(self, act, phase, low=False):
        self.name = f"bug_{act.__name__}"
        self.act = act
        self.phase = phase
        self.low = low

    def numerics(self, config):
        return Numerics.LOW_PRECISION if self.low else Numerics.EXACT

    def apply(self, state, config):
        self.act(state)


def first_weight(module):
    return next(p for p in module.parameters() if p.ndim > 1)


def patch(state, holder, name, value):
    original = getattr(holder, name)
    setattr(holder, name, value)
    state.undo.append(lambda: setattr(holder, name, original))


# --- The optimizer


class Elsewhere(torch.optim.Optimizer):
    """Steps copies of the parameters that its groups show."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = copy.deepcopy(inner)

    def step(self, closure=None):
        pairs = zip(self.param_groups, self.inner.param_groups, strict=True)
        for theirs, ours in pairs:
            for p, q in zip(theirs["params"], ours["params"], strict=True):
                q.grad = p.grad.clone() if p.grad is not None else None
        self.inner.step()


class Deaf(torch.optim.Optimizer):
    """Keeps groups of its own, so that a scheduler changes nothing."""

    def __init__(self, inner):
        super().__init__([dict(g) for g in inner.param_groups], inner.defaults)
        self.inner = inner

    def step(self, closure=None):
        self.inner.step()


def stale_optimizer(state):
    for module in list(state.module.modules()):
        for name, p in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(p.detach().clone()))


def optimizer_on_copies(state):
    state.wrap_optimizer(Elsewhere)


def partial_optimizer(state):
    def halve(optimizer):
        for group in optimizer.param_groups:
            del group["params"][::2]
        return optimizer

    state.wrap_optimizer(halve)


def halved_updates(state):
    def slow(optimizer):
        step = optimizer.step

        def halved(closure=None):
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
            step(closure)
            for group in optimizer.param_groups:
                group["lr"] *= 2.0

        optimizer.step = halved
        return optimizer

    state.wrap_optimizer(slow)


def dropped_scheduler(state):
    state.wrap_optimizer(Deaf)


def doubled_scheduler(state):
    original = TrainStep.optimizer_step

    def twice(self):
        original(self)
        if self._scheduler is not None:
            self._scheduler.step()

    patch(state, TrainStep, "optimizer_step", twice)


def dropped_clipping(state):
    patch(state, TrainStep, "_clip", lambda self: None)


def gradients_kept(state):
    def keep(optimizer):
        optimizer.zero_grad = lambda set_to_none=True: None
        return optimizer

    state.wrap_optimizer(keep)


def frozen_layer(state):
    first_weight(state.module).requires_grad_(False)


# --- The gradient


def short_gradient(state):
    first_weight(state.module).register_hook(lambda g: 0.7 * g)


def slightly_wrong_gradient(state):
    first_weight(state.module).register_hook(lambda g: 0.96 * g)


def turned_gradient(state):
    first_weight(state.module).register_hook(lambda g: g + 0.1 * g.roll(1, 0))


def detached_branch(state):
    def around(forward):
        return lambda self, x, *args, **kwargs: forward(
            self, x.detach(), *args, **kwargs
        )

    for name in ("layers", "blocks"):
        blocks = getattr(state.module, name, None)
        if isinstance(blocks, nn.ModuleList):
            wrap_forward(blocks[1], around)


def scaled_loss(state):
    def accumulate(self, batch):
        loss = 0.5 * self._loss(self._forward(self._model, batch), batch)
        loss.backward()
        return loss.detach()

    patch(state, TrainStep, "accumulate", accumulate)


def broken_tie(state):
    head = state.module.head
    head.weight = nn.Parameter(head.weight.detach().clone())


# --- Micro-batches


def micro_batches(state, sizes_of, weight_of, parts_of=lambda parts: parts):
    def accumulate(self, batch):
        size, total = batch_size(batch), 0.0
        parts = parts_of(split_batch(batch, sizes_of(size)))
        for part in parts:
            loss = self._loss(self._forward(self._model, part), part)
            check_loss(loss)
            loss = loss * weight_of(parts)
            loss.backward()
            total = total + loss.detach()
        return total

    patch(state, TrainStep, "accumulate", accumulate)


def thirds(size):
    return (size - 2 * (size // 4), size // 4, size // 4)


def halves(size):
    return (size - size // 2, size // 2)


def micro_batches_summed(state):
    micro_batches(state, halves, lambda parts: 1.0)


def uneven_micro_batches(state):
    micro_batches(state, thirds, lambda parts: 1.0 / len(parts))


def dropped_micro_batch(state):
    micro_batches(
        state, halves, lambda parts: 1.0 / len(parts), lambda parts: parts[:-1]
    )


# --- The loader


class Changed:
    """Another loader's batches, changed."""

    def __init__(self, loader, change):
        self.loader = loader
        self.change = change

    def __iter__(self):
        return iter(self.change(iter(self.loader)))


def skip(batches):
    return itertools.islice(batches, 0, None, 2)


def repeat(batches):
    return itertools.chain.from_iterable((b, b) for b in batches)


def reverse(batches):
    return reversed(list(batches))


def mispair(batches):
    return ((x, y.roll(1, 0)) for x, y in batches)


def trim(batches):
    return (map_tensors(lambda t: t[:-1], batch) for batch in batches)


def loader_skips(state):
    state.loader = Changed(state.loader, skip)


def loader_repeats(state):
    state.loader = Changed(state.loader, repeat)


def loader_reorders(state):
    state.loader = Changed(state.loader, reverse)


def loader_mispairs(state):
    state.loader = Changed(state.loader, mispair)


def loader_trims(state):
    state.loader = Changed(state.loader, trim)


# --- Modes, buffers, precision


def evaluation_mode(state):
    state.module.eval()


def evaluation_inside(state):
    def around(forward):
        def run(self, *args, **kwargs):
            self.eval()
            try:
                return forward(self, *args, **kwargs)
            finally:
                self.train()

        return run

    wrap_forward(state.module, around)


def doubled_forward(state):
    def around(forward):
        def run(self, *args, **kwargs):
            with torch.no_grad():
                forward(self, *args, **kwargs)
            return forward(self, *args, **kwargs)

        return run

    wrap_forward(state.module, around)


def bf16_without_masters(state):
    for parameter in state.module.parameters():
        parameter.data = parameter.data.bfloat16()
    wrap_forward(state.module, _cast_ends)


BUGS = (
    ("residual", Bug(stale_optimizer, Phase.RUNTIME)),
    ("residual", Bug(optimizer_on_copies, Phase.OPTIMIZER)),
    ("residual", Bug(partial_optimizer, Phase.OPTIMIZER)),
    ("tied", Bug(dropped_scheduler, Phase.OPTIMIZER)),
    ("convolutions", Bug(dropped_scheduler, Phase.OPTIMIZER)),
    ("convolutions", Bug(doubled_scheduler, Phase.RUNTIME)),
    ("tied", Bug(dropped_clipping, Phase.RUNTIME)),
    ("recurrent", Bug(dropped_clipping, Phase.RUNTIME)),
    ("recurrent", Bug(halved_updates, Phase.OPTIMIZER)),
    ("residual", Bug(gradients_kept, Phase.OPTIMIZER)),
    ("residual", Bug(frozen_layer, Phase.MODEL_SWAP)),
    ("residual", Bug(short_gradient, Phase.MODEL_SWAP)),
    ("recurrent", Bug(turned_gradient, Phase.MODEL_SWAP)),
    ("residual", Bug(detached_branch, Phase.MODEL_SWAP)),
    ("tied", Bug(detached_branch, Phase.MODEL_SWAP)),
    ("convolutions", Bug(scaled_loss, Phase.RUNTIME)),
    ("tied", Bug(broken_tie, Phase.MODEL_SWAP)),
    ("residual", Bug(micro_batches_summed, Phase.RUNTIME)),
    ("residual", Bug(uneven_micro_batches, Phase.RUNTIME)),
    ("residual", Bug(dropped_micro_batch, Phase.RUNTIME)),
    ("residual", Bug(loader_skips, Phase.DATA)),
    ("tied", Bug(loader_repeats, Phase.DATA)),
    ("tied", Bug(loader_reorders, Phase.DATA)),
    ("residual", Bug(loader_mispairs, Phase.DATA)),
    ("residual", Bug(loader_trims, Phase.DATA)),
    ("residual", Bug(evaluation_mode, Phase.RUNTIME)),
    ("tied", Bug(evaluation_inside, Phase.RUNTIME)),
    ("convolutions", Bug(evaluation_inside, Phase.RUNTIME)),
    ("convolutions", Bug(doubled_forward, Phase.RUNTIME)),
    ("counting", Bug(doubled_forward, Phase.RUNTIME)),
    ("recurrent", Bug(bf16_without_masters, Phase.MODEL_SWAP, low=True)),
    ("residual", Bug(bf16_without_masters, Phase.MODEL_SWAP, low=True)),
)
"""The bugs of one process, each with the program that it is tried on."""

BESIDE = (
    ("residual", Bug(slightly_wrong_gradient, Phase.MODEL_SWAP), "precision"),
    ("recurrent", Bug(slightly_wrong_gradient, Phase.MODEL_SWAP), "precision"),
    ("counting", None, "activation_checkpoint"),
)
"""Bugs that show only beside another optimization."""
