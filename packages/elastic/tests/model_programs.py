"""Training programs about models, optimizers and state; see `step_programs.py`."""

from __future__ import annotations

import torch
from step_programs import BATCH, ClippedNorm, OnePass, SeveralParts, layers
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel


class UnusedHead(OnePass):
    def make(self):
        return nn.ModuleList(nn.Linear(4, 1) for _ in range(2))

    def loss(self, x, rows, k):
        return self.model[int(k == 0)](x).square().mean()


class UnusedHeadWithMomentum(UnusedHead):
    def optimize(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)


class Experts(OnePass):
    """The first sample of a batch goes to an expert of its own; one is used twice only."""

    def make(self):
        return nn.ModuleList(nn.Linear(4, 1) for _ in range(3))

    def loss(self, x, rows, k):
        which = [2 if k < 2 else int(row % BATCH == 0) for row in rows]
        return (
            torch.cat([self.model[at](x[i : i + 1]) for i, at in enumerate(which)])
            .square()
            .mean()
        )


class DroppedLayers(OnePass):
    def make(self):
        return nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def loss(self, x, rows, k):
        for at, layer in enumerate(self.model):
            if at != k % 3:
                x = x + layer(x)
        return x.square().mean()


class FrozenPart(OnePass):
    def make(self):
        model = layers()
        model[0].requires_grad_(False)
        return model


class UnfrozenLater(FrozenPart):
    def before(self, done):
        if done == 1:
            self.model[0].requires_grad_(True)


class FrozenLater(OnePass):
    def before(self, done):
        if done == 3:
            self.model[0].requires_grad_(False)


class UnfrozenInTheParts(FrozenPart):
    says = says_alone = "changed in the middle of a step"

    def part(self, x, rows, k, weight):
        self.model[0].requires_grad_(True)
        super().part(x, rows, k, weight)


class GroupGivenLater(OnePass):
    says = "given other parameters after the loop was made"

    def optimize(self):
        return torch.optim.SGD(self.model[2].parameters(), lr=0.1, momentum=0.9)

    def before(self, done):
        if done == 2:
            self.optimizer.add_param_group({"params": self.model[0].parameters()})


class ParametersBesideTheModel(OnePass):
    def optimize(self):
        self.temperature = nn.Parameter(torch.ones(()))
        found = [*self.model.parameters(), self.temperature]
        return torch.optim.SGD(found, lr=0.1, momentum=0.9)

    def loss(self, x, rows, k):
        return (self.model(x) * self.temperature).square().mean()

    def parameters(self):
        return [*super().parameters(), self.temperature]


class SkippedBatch(OnePass):
    def part(self, x, rows, k, weight):
        if k not in {2, 3}:
            super().part(x, rows, k, weight)


class SkippedOnSomeRanks(ClippedNorm):
    """Bad samples come first in a batch: the first rank has no good ones."""

    def part(self, x, rows, k, weight):
        good = [i for i, row in enumerate(rows) if row % BATCH > 2]
        if good:
            loss = self.model(x[good]).square().sum() / len(rows)
            (loss * weight).backward()


class SkippedByTheNorm(OnePass):
    def update(self, k):
        if k in {1, 4}:
            self.optimizer.zero_grad()


class SparseRows(OnePass):
    def make(self):
        return nn.Embedding(48, 3, sparse=True)

    def optimize(self):
        return torch.optim.SparseAdam(list(self.model.parameters()), lr=0.1)

    def loss(self, x, rows, k):
        return self.model((x[:, 0] * 47).long()).square().mean()


class SparseRowsOfSGD(SparseRows):
    num_micro_batches = 2

    def optimize(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.1)


class SparseBesideDense(OnePass):
    def make(self):
        return nn.ModuleList([nn.Embedding(9, 4, sparse=True), layers()])

    def optimize(self):
        return [
            torch.optim.SparseAdam(self.model[0].parameters(), lr=0.1),
            torch.optim.AdamW(self.model[1].parameters(), lr=0.1),
        ]

    def loss(self, x, rows, k):
        return self.model[1](self.model[0]((x[:, 0] * 8).long()) + x).square().mean()


class SeveralOptimizers(OnePass):
    def optimize(self):
        return [
            torch.optim.SGD(self.model[0].parameters(), lr=0.1, momentum=0.9),
            torch.optim.AdamW(self.model[2].parameters(), lr=0.1),
        ]


class SeveralOptimizersByTheScript(SeveralOptimizers):
    says = says_alone = "of several optimizers only the loop takes steps"
    steps_itself = True

    def update(self, k):
        for one in self.optimizer:
            one.step()


class SecondOrder(OnePass):
    says = says_alone = "LBFGS takes a closure"

    def optimize(self):
        return torch.optim.LBFGS(self.model.parameters())


class TiedWeights(OnePass):
    def make(self):
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
        model[1].weight = model[0].weight
        return model


class SeveralTypes(OnePass):
    most_apart = 0.1  # of the half of them with 8 bits

    def make(self):
        return nn.ModuleList(
            nn.Linear(4, 1, dtype=dtype)
            for dtype in (torch.float64, torch.float32, torch.bfloat16)
        )

    def optimize(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def loss(self, x, rows, k):
        return (
            sum(one(x.to(one.weight.dtype)).double() for one in self.model)
            .square()
            .mean()
        )


class ComplexParameters(OnePass):
    def make(self):
        return nn.Linear(4, 1, dtype=torch.complex128)

    def loss(self, x, rows, k):
        return self.model(x.to(torch.complex128)).abs().square().mean()


class ParameterGroups(OnePass):
    def optimize(self):
        return torch.optim.Adam(
            [
                {"params": self.model[0].parameters(), "lr": 0.1},
                {"params": self.model[2].parameters(), "lr": 0.2},
            ]
        )


class OddShapes(OnePass):
    def make(self):
        model = layers()
        model.scale, model.none = (
            nn.Parameter(torch.ones(())),
            nn.Parameter(torch.ones(0)),
        )
        return model

    def loss(self, x, rows, k):
        return (
            (self.model(x) * self.model.scale + self.model.none.sum()).square().mean()
        )


class ChannelsLast(OnePass):
    def make(self):
        return nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)

    def loss(self, x, rows, k):
        return self.model(x.view(-1, 1, 2, 2).expand(-1, 2, 2, 2)).square().mean()


class HookOfAParameter(OnePass):
    def make(self):
        model = layers()
        model[0].weight.register_hook(lambda gradient: gradient * 0.5)
        return model


class HookThatClips(OnePass):
    says_from = 2
    says = "a hook of '0.weight' changes its gradient by more than a factor"

    def make(self):
        model = layers()
        model[0].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        return model


class HookThatMasksInPlace(OnePass):
    def make(self):
        model = layers()
        model[0].weight.register_hook(self.mask)
        return model

    def mask(self, gradient):
        gradient[1] = 0


class Schedule(OnePass):
    def __init__(self):
        super().__init__()
        self.schedule = StepLR(self.optimizer, step_size=2, gamma=0.5)
        self.state = {"schedule": self.schedule}

    def before(self, done):
        while self.schedule.last_epoch < done:
            self.schedule.step()


class AverageOfWeights(OnePass):
    def __init__(self):
        super().__init__()
        self.average = AveragedModel(self.model)
        self.state = {"average": self.average}

    def before(self, done):
        if self.average.n_averaged < done:
            self.average.update_parameters(self.model)

    def parameters(self):
        return [*super().parameters(), *self.average.parameters()]


class Buffer(OnePass):
    def make(self):
        model = layers()
        model.register_buffer("mask", self.buffer())
        return model

    def buffer(self):
        return torch.ones(3, dtype=torch.complex64).conj()


class ExpandedBuffer(Buffer):
    says = says_alone = "'model.mask' is a view whose elements share memory"

    def buffer(self):
        return torch.rand(1).expand(5)


class SparseBuffer(Buffer):
    says = says_alone = "'model.mask'"

    def buffer(self):
        return torch.eye(3).to_sparse()


class CompressedBuffer(SparseBuffer):
    def buffer(self):
        return torch.eye(3).to_sparse_csr()


class QuantizedBuffer(SparseBuffer):
    def buffer(self):
        return torch.quantize_per_tensor(torch.rand(3).float(), 0.1, 0, torch.qint8)


class ArrayInTheState(OnePass):
    says = says_alone = "counts is of type ndarray"

    def __init__(self):
        super().__init__()
        self.state = {"counts": torch.arange(3).numpy()}


class ExpandedInTheState(OnePass):
    says = says_alone = "'mask' is a view whose elements share memory"

    def __init__(self):
        super().__init__()
        self.state = {"mask": torch.ones(1).expand(4)}


class LazyModule(OnePass):
    says = says_alone = "has no shape yet"

    def make(self):
        return nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))

    def optimize(self):
        return torch.optim.SGD(self.model[1].parameters(), lr=0.1)

    def parameters(self):
        return list(self.model[1].parameters())


class ErrorThatIsCaught(OnePass):
    """A sample is broken, once; the script goes on all the same."""

    only_alone = True  # what makes worlds of a job here hears of no errors
    has_failed = False

    def part(self, x, rows, k, weight):
        super().part(x, rows, k, weight)
        if 3 * BATCH in rows and not self.has_failed:
            self.has_failed = True
            raise LookupError


class OptimizerOutsideTheLoop(OnePass):
    """A learned temperature has an optimizer of its own, which the loop does not know."""

    says = "an optimizer that the loop was not given (SGD)"

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.outside = torch.optim.SGD([self.scale], lr=0.1)

    def loss(self, x, rows, k):
        return (self.model(x) * self.scale - 1).square().mean()

    def update(self, k):
        self.outside.step()
        self.outside.zero_grad()

    def parameters(self):
        return [*super().parameters(), self.scale]


class OptimizerOfTheModelOutsideTheLoop(OnePass):
    """It is made anew in each step, and trains what the loop trains."""

    says = OptimizerOutsideTheLoop.says

    def update(self, k):
        torch.optim.SGD(self.model.parameters(), lr=0.1).step()


class OptimizerOfAnInnerLoop(OnePass):
    """The inputs are moved by an optimizer that is made for them."""

    def part(self, x, rows, k, weight):
        moved = x.clone().requires_grad_()
        inner = torch.optim.SGD([moved], lr=0.1)
        for _ in range(2):
            loss = self.model(moved).square().sum()
            moved.grad = torch.autograd.grad(loss, moved)[0]
            inner.step()
        super().part(moved.detach(), rows, k, weight)


class UpdateInTheParts(OnePass):
    """Plain descent, by the gradient of a part."""

    says, says_from = "'0.weight' was written to within the loop over the parts", 2

    def part(self, x, rows, k, weight):
        super().part(x, rows, k, weight)
        with torch.no_grad():
            for one in self.model.parameters():
                one -= 0.1 * one.grad


class MovedAndPutBack(OnePass):
    """The gradient is that of a place nearby, which the first pass has found."""

    says, says_from = UpdateInTheParts.says, 2

    def part(self, x, rows, k, weight):
        own = self.parameters()
        found = torch.autograd.grad(self.loss(x, rows, k), own)
        with torch.no_grad():
            torch._foreach_add_(own, found, alpha=0.1)
        super().part(x, rows, k, weight)
        with torch.no_grad():
            torch._foreach_sub_(own, found, alpha=0.1)


class RowsOfBoundedLength(OnePass):
    """A forward pass shortens the rows that it reads."""

    says, says_from = "'0.weight' was written to", 2

    def make(self):
        return nn.Sequential(nn.Embedding(BATCH, 3, max_norm=0.5), nn.Linear(3, 1))

    def loss(self, x, rows, k):
        return self.model(torch.tensor([row % BATCH for row in rows])).square().mean()


class ReadAsAccumulated(OnePass):
    """Hooks that only look on are none of the loop's affair."""

    def make(self):
        model, self.sizes = layers(), []
        for one in model.parameters():
            one.register_post_accumulate_grad_hook(self.hook)
        return model

    def hook(self, one):
        self.sizes.append(one.grad.norm())


class ClippedAsAccumulated(ReadAsAccumulated):
    says, says_from = "changed before they were sums", 2

    def hook(self, one):
        one.grad.clamp_(-0.01, 0.01)


class ReplacedAsAccumulated(ClippedAsAccumulated):
    def hook(self, one):
        one.grad = one.grad.clamp(-0.01, 0.01)


class ClippedByTheNode(OnePass):
    """By what autograd calls before it accumulates a gradient."""

    says, says_from = ClippedAsAccumulated.says, 2

    def make(self):
        model, self.nodes = layers(), []
        for one in model.parameters():
            node = one.view_as(one).grad_fn.next_functions[0][0]
            node.register_prehook(lambda grads: (grads[0].clamp(-0.01, 0.01),))
            self.nodes.append(node)
        return model


class ClippedByData(SeveralParts):
    """By a tensor that shares memory, and counts its writes itself."""

    says = says_alone = ClippedAsAccumulated.says

    def part(self, x, rows, k, weight):
        super().part(x, rows, k, weight)
        for one in self.model.parameters():
            one.grad.data.clamp_(-0.01, 0.01)
