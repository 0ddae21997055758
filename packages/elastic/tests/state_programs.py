"""Training programs about what a repeated step and a joining rank have; see `step_programs.py`."""

from __future__ import annotations

import torch
from step_programs import OnePass, layers
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, StepLR
from torch.optim.swa_utils import AveragedModel


class ScheduleAfterEachStep(OnePass):
    """As in most scripts: without a look at which steps count."""

    def __init__(self):
        super().__init__()
        self.schedule = StepLR(self.optimizer, step_size=1, gamma=0.8)
        self.state = {"schedule": self.schedule}

    def after(self, k):
        self.schedule.step()

    def parameters(self):
        return [*super().parameters(), torch.tensor(float(self.schedule.last_epoch))]


class ScheduleBeforeEachStep(ScheduleAfterEachStep):
    def before(self, done):
        if done < 7:
            self.schedule.step()

    def after(self, k):
        pass


class ScheduleInEachStep(ScheduleAfterEachStep):
    steps_itself = True

    def update(self, k):
        self.optimizer.step()
        self.schedule.step()

    def after(self, k):
        pass


class RateByHandAfterEachStep(OnePass):
    def after(self, k):
        self.optimizer.param_groups[0]["lr"] *= 0.8


class RateInATensor(OnePass):
    def optimize(self):
        rate = torch.tensor(0.1)
        return torch.optim.Adam(self.model.parameters(), lr=rate, foreach=False)

    def __init__(self):
        super().__init__()
        self.schedule = LambdaLR(self.optimizer, lambda k: 1 / (k + 1))
        self.state = {"schedule": self.schedule}
        self.rate = self.optimizer.param_groups[0]["lr"]

    def after(self, k):
        self.schedule.step()

    def parameters(self):
        return [*super().parameters(), self.rate]


class AverageAfterEachStep(OnePass):
    def __init__(self):
        super().__init__()
        self.average = AveragedModel(self.model)
        self.state = {"average": self.average}

    def after(self, k):
        self.average.update_parameters(self.model)

    def parameters(self):
        return [*super().parameters(), *self.average.parameters()]


class PlainDataAfterEachStep(OnePass):
    """Counts in what it has given, and in a list that it holds itself."""

    def __init__(self):
        super().__init__()
        self.history = []
        self.state = {"count": 0, "history": self.history, "sum": torch.zeros(())}

    def after(self, k):
        self.state["count"] += 1
        self.state["sum"] += k
        self.history.append(k)

    def parameters(self):
        found = [self.state["count"], len(self.history), self.state["sum"]]
        return [*super().parameters(), torch.tensor([float(one) for one in found])]


class WeightsDecayedAfterEachStep(OnePass):
    def after(self, k):
        for one in self.model.parameters():
            one.data.mul_(0.9)


class TargetInTheModel(OnePass):
    """Follows what is trained, after each step."""

    def make(self):
        model = nn.ModuleDict({"online": layers(), "target": layers()})
        model["target"].requires_grad_(False)
        return model

    def loss(self, x, rows, k):
        return (self.model["online"](x) - self.model["target"](x)).square().mean()

    def follow(self):
        pairs = zip(
            self.model["target"].parameters(),
            self.model["online"].parameters(),
            strict=True,
        )
        with torch.no_grad():
            for one, other in pairs:
                one.lerp_(other, 0.1)

    def after(self, k):
        self.follow()


class TargetInTheStep(TargetInTheModel):
    steps_itself = True

    def update(self, k):
        self.optimizer.step()
        self.follow()

    def after(self, k):
        pass


class CentreInTheStep(OnePass):
    """Moves a buffer by what it finds in the gradients."""

    def make(self):
        model = layers()
        model.register_buffer("centre", torch.zeros(()))
        return model

    def loss(self, x, rows, k):
        return (self.model(x) - self.model.centre).square().mean()

    def update(self, k):
        self.model.centre.mul_(0.9).add_(self.model[0].weight.grad.mean())


class CountedPasses(OnePass):
    def make(self):
        model = layers()
        model.register_buffer("passes", torch.zeros(()))
        return model

    def count(self):
        self.model.passes += 1

    def loss(self, x, rows, k):
        self.count()
        return (self.model(x) / self.model.passes).square().mean()

    def parameters(self):
        return [*super().parameters(), self.model.passes]


class CountedPassesInAnotherTensor(CountedPasses):
    def count(self):
        self.model.passes = self.model.passes + 1


class CountedPassesByData(CountedPasses):
    def count(self):
        self.model.passes.data.add_(1)


class CountedPassesInALargeBuffer(CountedPasses):
    def make(self):
        model = layers()
        model.register_buffer("passes", torch.zeros(1 << 17))
        return model

    def loss(self, x, rows, k):
        self.count()
        return (self.model(x) / self.model.passes[0]).square().mean()


class SpectralNorm(OnePass):
    def make(self):
        model = layers()
        nn.utils.parametrizations.spectral_norm(model[0])
        return model


class StatisticsOfBatches(OnePass):
    """Sees the same on all ranks, as buffers are each rank's own."""

    def make(self):
        model = layers()
        model.norm = nn.BatchNorm1d(2)
        return model

    def loss(self, x, rows, k):
        self.model.norm(torch.tensor([[1.0, k], [k, 2.0]]))
        self.model.norm.eval()
        moved = self.model.norm(torch.ones(1, 2)).mean()
        self.model.norm.train()
        return (self.model[:3](x) * moved).square().mean()

    def parameters(self):
        return [*super().parameters(), *self.model.norm.buffers()]


class Shift(nn.Module):
    def forward(self, x):
        return x + 1 if self.training else x


class EvaluationFromSomeStepOn(OnePass):
    def make(self):
        return nn.Sequential(nn.Linear(4, 5), Shift(), nn.Linear(5, 1))

    def before(self, done):
        if done == 2:
            self.model[1].eval()


class BufferThatIsNotSaved(OnePass):
    done = 0

    def make(self):
        model = layers()
        model.register_buffer("scale", torch.ones(()), persistent=False)
        model.register_buffer("mask", torch.ones(1).expand(5), persistent=False)
        return model

    def loss(self, x, rows, k):
        return (self.model(x) * self.model.scale).square().mean()

    def before(self, done):
        if done != self.done:
            self.done = done
            self.model.scale += 0.1


class BufferThatGrows(OnePass):
    def make(self):
        model = layers()
        model.register_buffer("seen", torch.zeros(1), persistent=False)
        return model

    def loss(self, x, rows, k):
        return (self.model(x) * (1 + self.model.seen.mean())).square().mean()

    def after(self, k):
        self.model.seen = torch.cat([self.model.seen, torch.ones(1) * k])

    def parameters(self):
        return [*super().parameters(), self.model.seen]


class NoiseOfAGenerator(OnePass):
    def __init__(self):
        super().__init__()
        self.random = torch.Generator().manual_seed(3)
        self.state = {"random": self.random}

    def update(self, k):
        for one in self.parameters():
            one.grad += 0.1 * torch.randn(one.shape, generator=self.random)


class NoiseInTheParts(NoiseOfAGenerator):
    """Each rank draws the same once a step."""

    drawn = None

    def part(self, x, rows, k, weight):
        if self.drawn is None:
            self.drawn = torch.rand((), generator=self.random)
        (self.loss(x, rows, k) * self.drawn * weight).backward()

    def before(self, done):
        self.drawn = None

    def update(self, k):
        pass


class FrozenBesideTheModel(OnePass):
    def optimize(self):
        self.scales = [nn.Parameter(torch.ones(())) for _ in range(2)]
        found = [*self.model.parameters(), *self.scales]
        return torch.optim.SGD(found, lr=0.1, momentum=0.9)

    def loss(self, x, rows, k):
        return (self.model(x) * self.scales[0] * self.scales[1]).square().mean()

    def parameters(self):
        return [*super().parameters(), *self.scales]

    def before(self, done):
        if done == 2:
            self.scales[0].requires_grad_(False)


class ReplacedModule(OnePass):
    says = r"['2', '2.weight', '2.bias'] of the model came after the loop was made"

    def before(self, done):
        if done == 2:
            self.model[2] = nn.Linear(5, 1)


class ReplacedParameter(OnePass):
    says = "['2.bias'] of the model came after the loop was made"

    def before(self, done):
        if done == 2:
            self.model[2].bias = nn.Parameter(torch.zeros(1))


class OtherDtypeLater(OnePass):
    says = "the dtype of '0.weight' has changed from torch.float64 to torch.float32"
    most_apart = 1e-3

    def optimize(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.1)

    def before(self, done):
        if done == 2:
            self.model.float()

    def loss(self, x, rows, k):
        return self.model(x.to(self.model[0].weight.dtype)).square().mean()


class KeyOfTheStateLater(OnePass):
    says = "the keys of state were [] when the loop was made, and are ['best']"

    def after(self, k):
        self.state["best"] = k


class KeyOfTheStateFilledLater(OnePass):
    def __init__(self):
        super().__init__()
        self.state = {"best": None}

    def after(self, k):
        if k == 1:
            copies = {n: one.clone() for n, one in self.model.state_dict().items()}
            self.state["best"] = copies
        if k == 5:
            self.model.load_state_dict(self.state["best"])
