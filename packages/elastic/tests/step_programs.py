"""Training programs, each a few lines: what a script may do in a step.

A program trains by a plain loop, or by an `ElasticLoop`; `step_table.py` compares the two.
"""

from __future__ import annotations

import torch
from torch import nn

NUM_STEPS, BATCH = 7, 6


def layers():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))


class OnePass:
    """One backward pass a part; what the other programs change is below.

    Attributes:
        says: Words of the refusal, if the program is refused.
        says_alone: The same on a rank that no other one can join.
        says_from: On how many ranks.
        steps_itself: Whether `update` steps the optimizers.
        batch: How many samples a step has.
        num_micro_batches: Of the loop.
        most_apart: How far the two loops may be from each other at the end.
        only_alone: Whether it is not tried on ranks of a job.
    """

    says = says_alone = ""
    says_from = 1
    steps_itself = False
    batch = BATCH
    num_micro_batches = 1
    most_apart = 1e-9
    only_alone = False

    def __init__(self):
        self.state = {}
        self.model = self.make()
        self.optimizer = self.optimize()

    def make(self):
        return layers()

    def optimize(self):
        return torch.optim.AdamW(self.model.parameters(), lr=0.1, weight_decay=0.1)

    def before(self, done):
        """Is called before each step, and at the end; `done` steps count."""

    def after(self, k):
        """Is called after each step, also after one that is lost."""

    def loss(self, x, rows, k):
        return self.model(x).square().mean()

    def part(self, x, rows, k, weight):
        (self.loss(x, rows, k) * weight).backward()

    @classmethod
    def refusal(cls, num_ranks):
        """Returns words of the refusal on so many ranks; 0 for one that is alone."""
        if not num_ranks:
            return cls.says_alone
        return cls.says if num_ranks >= cls.says_from else ""

    def update(self, k):
        """Is called once the parts are done."""

    def parameters(self):
        return list(self.model.parameters())


class FewSamples(OnePass):
    """Fewer than there are ranks."""

    batch = 2

    def update(self, k):
        nn.utils.clip_grad_norm_(self.parameters(), 0.1)


class SeveralParts(OnePass):
    num_micro_batches = 2


class SeveralBuckets(OnePass):
    num_micro_batches = 2

    def make(self):
        return nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))


class TwoPasses(SeveralBuckets):
    def part(self, x, rows, k, weight):
        (self.loss(x, rows, k) * weight / 2).backward()
        (self.model(x).abs().mean() * weight / 2).backward()


class RetainedGraph(SeveralBuckets):
    def part(self, x, rows, k, weight):
        y = self.model(x)
        (y.square().mean() * weight).backward(retain_graph=True)
        (y.abs().mean() * weight).backward()


class ClearedBetweenPasses(SeveralBuckets):
    num_micro_batches = 1

    def part(self, x, rows, k, weight):
        super().part(x, rows, k, weight)
        self.model.zero_grad()
        (self.model(x).abs().mean() * weight).backward()


class ClearedInEachPart(OnePass):
    num_micro_batches = 3
    says = says_alone = "changed before they were sums"

    def part(self, x, rows, k, weight):
        self.optimizer.zero_grad()
        super().part(x, rows, k, weight)


class PenaltyOnGradients(OnePass):
    def part(self, x, rows, k, weight):
        # Of each sample, so that it adds up over parts.
        for one in x:
            y = self.model(one).square().sum()
            grads = torch.autograd.grad(y, self.parameters(), create_graph=True)
            penalty = sum(grad.square().sum() for grad in grads)
            ((y + penalty) * weight / len(x)).backward()


class GraphOfGradients(OnePass):
    def part(self, x, rows, k, weight):
        (self.loss(x, rows, k) * weight).backward(create_graph=True)
        sum(one.grad.sum() for one in self.parameters()).backward()


class AssignedGradients(OnePass):
    def part(self, x, rows, k, weight):
        loss = self.loss(x, rows, k) * weight
        grads = torch.autograd.grad(loss, self.parameters())
        for one, grad in zip(self.parameters(), grads, strict=True):
            one.grad = grad


class AssignedAndClipped(AssignedGradients):
    def update(self, k):
        nn.utils.clip_grad_norm_(self.parameters(), 0.1)


class ReplacedAfterAPass(OnePass):
    says = says_alone = "changed before they were sums"

    def part(self, x, rows, k, weight):
        super().part(x, rows, k, weight)
        for one in self.parameters():
            one.grad = one.grad * 2


class AssignedTooLate(OnePass):
    says = says_alone = "after the loop over the parts"

    def part(self, x, rows, k, weight):
        self.late = torch.autograd.grad(self.loss(x, rows, k), self.parameters())

    def update(self, k):
        for one, grad in zip(self.parameters(), self.late, strict=True):
            one.grad = grad


class PassTooLate(OnePass):
    says = says_alone = "after the loop over the parts"

    def part(self, x, rows, k, weight):
        self.late = self.loss(x, rows, k) * weight

    def update(self, k):
        self.late.backward()


class SecondPassTooLate(PassTooLate):
    def part(self, x, rows, k, weight):
        super().part(x, rows, k, weight)
        self.late.backward(retain_graph=True)


class ClippedNorm(OnePass):
    def update(self, k):
        nn.utils.clip_grad_norm_(self.parameters(), 0.1)


class ClippedValues(SeveralParts):
    def update(self, k):
        nn.utils.clip_grad_value_(self.parameters(), 0.01)


class ClippedInTheParts(SeveralParts):
    says = says_alone = "changed before they were sums"

    def part(self, x, rows, k, weight):
        super().part(x, rows, k, weight)
        nn.utils.clip_grad_norm_(self.parameters(), 0.1)


class ClippedInAHook(OnePass):
    def optimize(self):
        optimizer = super().optimize()
        optimizer.register_step_pre_hook(self.clip)
        return optimizer

    def clip(self, *_):
        nn.utils.clip_grad_norm_(self.parameters(), 0.1)


class ScaledLoss(OnePass):
    """The usual four lines; one sample overflows, on whichever rank has it."""

    steps_itself = True

    def __init__(self):
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        self.state = {"scaler": self.scaler}

    def loss(self, x, rows, k):
        factor = [float("inf") if row == 2 * BATCH else 1.0 for row in rows]
        return (self.model(x)[:, 0].square() * torch.tensor(factor)).mean()

    def part(self, x, rows, k, weight):
        self.scaler.scale(self.loss(x, rows, k) * weight).backward()

    def update(self, k):
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.parameters(), 0.1)
        self.scaler.step(self.optimizer)
        self.scaler.update()


class ScaledLossOfFewSamples(ScaledLoss):
    batch = 2


class ScaledLossOfOneLine(ScaledLoss):
    def update(self, k):
        self.scaler.step(self.optimizer)
        self.scaler.update()


class ScaledLossOfAFusedOptimizer(ScaledLoss):
    def optimize(self):
        return torch.optim.AdamW(self.model.parameters(), lr=0.1, fused=True)


class ScalerThatIsSwitchedOff(ScaledLoss):
    def __init__(self):
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)
        self.state = {}

    def loss(self, x, rows, k):
        return OnePass.loss(self, x, rows, k)


class ScalerOutsideTheState(ScaledLoss):
    says = "give the loop the GradScaler"

    def __init__(self):
        super().__init__()
        self.state = {}


class ScaledOptimizer(torch.optim.SGD):
    """An optimizer whose step goes through its scaler."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        self.within = False

    def step(self, closure=None):
        if self.within:
            return super().step()
        self.within = True
        self.scaler.step(self)
        self.scaler.update()
        self.within = False
        return None


class ScalerInTheOptimizer(ScaledLoss):
    steps_itself = False

    def __init__(self):
        super().__init__()
        self.scaler = self.optimizer.scaler
        self.state = {"scaler": self.scaler}

    def optimize(self):
        return ScaledOptimizer(self.model.parameters())

    def update(self, k):
        pass


class ScalerInTheOptimizerAlone(ScalerInTheOptimizer):
    says = "give the loop the GradScaler"

    def __init__(self):
        super().__init__()
        self.state = {}


class StepByTheScript(OnePass):
    steps_itself = True

    def update(self, k):
        nn.utils.clip_grad_norm_(self.parameters(), 0.1)
        self.optimizer.step()
        self.optimizer.zero_grad()


class StepOfSomeSteps(StepByTheScript):
    says = says_alone = "was not called in this step"

    def update(self, k):
        if k != 1:
            super().update(k)


class StepInTheParts(OnePass):
    says = says_alone = "is called after the loop over the parts"
    steps_itself = True

    def part(self, x, rows, k, weight):
        super().part(x, rows, k, weight)
        self.optimizer.step()
