"""Kinds of programs: what users do to model, data, optimizer and loss, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from small_decoder import (
    BATCH,
    LENGTH,
    SAMPLES,
    WIDTH,
    Block,
    Case,
    Net,
    Tokens,
    cross_entropy,
)
from torch import nn
from torch.nn import functional
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

ROWS: dict[str, Any] = {}


def row(name: str) -> Any:
    def put(make: Any) -> Any:
        ROWS[name] = make
        return make

    return put


@row("nothing")
def _() -> Case:
    return Case(model=Net())


@row("forward hook that changes the output")
def _() -> Case:
    model = Net()
    model.blocks[0].register_forward_hook(lambda _m, _i, output: output * 0.5)
    return Case(model=model)


@row("backward hook that changes a gradient")
def _() -> Case:
    model = Net()
    model.blocks[1].register_full_backward_hook(lambda _m, grads, _o: (grads[0] * 0.5,))
    return Case(model=model)


@row("hook on a parameter")
def _() -> Case:
    model = Net()
    model.blocks[0].up.weight.register_hook(lambda grad: grad * 0.25)
    return Case(model=model)


@row("hook on a parameter that clips larger gradients")
def _() -> Case:
    model = Net()
    model.blocks[0].up.weight.register_hook(lambda grad: grad.clamp(-5.0, 5.0))
    return Case(model=model)


@row("attribute on parameters that the factory goes by")
def _() -> Case:
    model = Net()
    for parameter in model.parameters():
        parameter.is_slow = parameter.ndim > 1

    def factory(parameters: Any) -> torch.optim.Optimizer:
        slow, fast = [], []
        for parameter in parameters:
            (slow if getattr(parameter, "is_slow", False) else fast).append(parameter)
        groups = [{"params": slow, "lr": 0.1}, {"params": fast, "lr": 0.5}]
        return torch.optim.SGD([group for group in groups if group["params"]], lr=1e-3)

    return Case(model=model, optimizer=factory)


@row("subclass with a `__call__` of its own")
def _() -> Case:
    class Louder(Net):
        def __call__(self, *args: Any) -> Any:
            return super().__call__(*args) * 2.0

    return Case(model=Louder())


@row("attribute of the model set between steps")
def _() -> Case:
    class Dimmed(Net):
        factor = 1.0

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return super().forward(tokens) * self.factor

    model = Dimmed()
    model.factor = 0.5
    return Case(model=model)


@row("sampler with weights")
def _() -> Case:
    sampler = WeightedRandomSampler(torch.ones(SAMPLES), SAMPLES, replacement=False)
    data = DataLoader(Tokens(), batch_size=BATCH, sampler=sampler)
    return Case(model=Net(), data=data, is_ordered=False)


@row("batch sampler")
def _() -> Case:
    batches = BatchSampler(range(SAMPLES - 1, -1, -1), BATCH, drop_last=True)
    return Case(model=Net(), data=DataLoader(Tokens(), batch_sampler=batches))


@row("batch sampler that shuffles")
def _() -> Case:
    batches = BatchSampler(RandomSampler(Tokens()), BATCH, drop_last=False)
    data = DataLoader(Tokens(), batch_sampler=batches)
    return Case(model=Net(), data=data, is_ordered=False)


@row("subclass of DataLoader")
def _() -> Case:
    class Loader(DataLoader[Any]):
        def __iter__(self) -> Any:
            for tokens, targets, index in super().__iter__():
                yield tokens.flip(1), targets, index

    return Case(model=Net(), data=Loader(Tokens(), batch_size=BATCH))


@row("iterable data set")
def _() -> Case:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            data = Tokens()
            return (data[index] for index in range(SAMPLES))

    return Case(model=Net(), data=DataLoader(Stream(), batch_size=BATCH))


@row("list of batches")
def _() -> Case:
    return Case(model=Net(), data=list(DataLoader(Tokens(), batch_size=BATCH)))


@row("loader with workers")
def _() -> Case:
    return Case(model=Net(), data=DataLoader(Tokens(), batch_size=BATCH, num_workers=1))


@row("data set that draws with numpy")
def _() -> Case:
    def turned(tokens: torch.Tensor) -> torch.Tensor:
        return tokens.roll(int(np.random.randint(3)))  # noqa: NPY002

    data = DataLoader(Tokens(turned), batch_size=BATCH)
    return Case(model=Net(), data=data, is_ordered=False)


@row("batches as mappings")
def _() -> Case:
    def collate(samples: Any) -> dict[str, torch.Tensor]:
        parts = [torch.stack(part) for part in zip(*samples, strict=True)]
        return dict(zip(("tokens", "targets", "number"), parts, strict=True))

    return Case(
        model=Net(),
        data=DataLoader(Tokens(), batch_size=BATCH, collate_fn=collate),
        forward=lambda model, batch: model(batch["tokens"]),
        loss=lambda output, batch: cross_entropy(output, (None, batch["targets"])),
    )


@row("table in a buffer")
def _() -> Case:
    class Placed(Net):
        def __init__(self) -> None:
            super().__init__()
            places = torch.arange(LENGTH)[:, None] / 100.0 ** torch.linspace(
                0, 1, WIDTH
            )
            self.register_buffer("places", places.sin(), persistent=False)

        def encode(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embed(tokens) + self.places[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.norm(x)

    return Case(model=Placed())


@row("buffer that a block writes")
def _() -> Case:
    class Counting(Block):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            return super().forward(x)

    return Case(model=Net(Counting))


@row("BatchNorm")
def _() -> Case:
    class Normed(Net):
        def __init__(self) -> None:
            super().__init__()
            self.batch_norm = nn.BatchNorm1d(LENGTH)

        def encode(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.batch_norm(self.embed(tokens))
            for block in self.blocks:
                x = block(x)
            return self.norm(x)

    return Case(model=Normed())


@row("convolution")
def _() -> Case:
    class Pictured(Net):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.stem(self.encode(tokens)[:, None])[:, 0])

    return Case(model=Pictured())


@row("recurrent layer")
def _() -> Case:
    class Recurrent(Net):
        def __init__(self) -> None:
            super().__init__()
            self.memory = nn.GRU(WIDTH, WIDTH, batch_first=True)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.memory(self.encode(tokens))[0])

    return Case(model=Recurrent())


@row("tied weights")
def _() -> Case:
    model = Net()
    model.head.weight = model.embed.weight
    return Case(model=model)


@row("frozen part")
def _() -> Case:
    model = Net()
    model.embed.requires_grad_(False)
    model.blocks[0].up.requires_grad_(False)
    return Case(model=model)


@row("part in evaluation mode")
def _() -> Case:
    class Dropping(Block):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.drop(super().forward(x))

    model = Net(Dropping)
    for block in model.blocks:
        block.drop.eval()
    return Case(model=model)


@row("gates that begin at zero")
def _() -> Case:
    class Gated(Block):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Parameter(torch.zeros(WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.gate * super().forward(x)

    return Case(model=Net(Gated))


@row("blocks that differ in a flag")
def _() -> Case:
    class Flagged(Block):
        power = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.power

    model = Net(Flagged, blocks=4)
    model.blocks[3].power = 0.5
    return Case(model=model)


@row("weights under a parametrization")
def _() -> Case:
    model = Net()
    nn.utils.parametrizations.weight_norm(model.head)
    return Case(model=model)


@row("sparse gradients")
def _() -> Case:
    model = Net()
    model.embed.sparse = True
    return Case(model=model, optimizer=lambda p: torch.optim.SGD(p, lr=0.05))


class Clipping(torch.optim.SGD):
    """Clips by the norm over all of its gradients, by itself."""

    def step(self, closure: Any = None) -> Any:
        grads = [
            p.grad for g in self.param_groups for p in g["params"] if p.grad is not None
        ]
        norm = torch.stack([grad.norm() for grad in grads]).norm()
        for grad in grads:
            grad.mul_((0.1 / (norm + 1e-6)).clamp(max=1.0))
        return super().step(closure)


@row("optimizer that clips by itself")
def _() -> Case:
    return Case(model=Net(), optimizer=lambda p: Clipping(p, lr=0.5))


@row("`max_grad_norm`")
def _() -> Case:
    return Case(
        model=Net(), optimizer=lambda p: torch.optim.SGD(p, lr=0.5), max_grad_norm=0.1
    )


@row("optimizer as an object, groups by name")
def _() -> Case:
    model = Net()
    named = dict(model.named_parameters())
    plain = [p for n, p in named.items() if n.endswith("bias") or "norm" in n]
    other = [p for n, p in named.items() if not (n.endswith("bias") or "norm" in n)]
    groups = [{"params": plain, "weight_decay": 0.0}, {"params": other, "lr": 1e-2}]
    return Case(model=model, optimizer=torch.optim.AdamW(groups, lr=1e-3))


@row("optimizer with hooks")
def _() -> Case:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def shrink(one: Any, *_: Any) -> None:
        with torch.no_grad():
            for group in one.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.99)

    optimizer.register_step_post_hook(shrink)
    return Case(model=model, optimizer=optimizer)


@row("optimizer hook that clips by `.item()` of norms")
def _() -> Case:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def clip(one: Any, *_: Any) -> None:
        grads = [p.grad for g in one.param_groups for p in g["params"]]
        norm = sum(grad.norm().item() ** 2 for grad in grads) ** 0.5
        for grad in grads if norm > 0.1 else ():
            grad.mul_(0.1 / norm)

    optimizer.register_step_pre_hook(clip)
    return Case(model=model, optimizer=optimizer)


@row("optimizer that was stepped before")
def _() -> Case:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batch = next(iter(DataLoader(Tokens(), batch_size=BATCH)))
    cross_entropy(model(batch[0]), batch).backward()
    optimizer.step()
    optimizer.zero_grad()
    return Case(model=model, optimizer=optimizer)


@row("scheduler")
def _() -> Case:
    return Case(
        model=Net(),
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.3),
    )


@row("forward that calls another method")
def _() -> Case:
    return Case(
        model=Net(),
        forward=lambda model, batch: model.head(model.encode(batch[0])),
    )


@row("loss computed in the model")
def _() -> Case:
    class Losing(Net):
        def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return cross_entropy(super().forward(tokens), (None, targets))

    return Case(
        model=Losing(), loss=None, forward=lambda model, batch: model(*batch[:2])
    )


@row("auxiliary loss that blocks keep")
def _() -> Case:
    class Keeping(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            self.kept = y.square().mean()
            return y

    model = Net(Keeping)

    def loss(output: Any, batch: Any) -> torch.Tensor:
        kept = sum(block.kept for block in model.blocks)
        return cross_entropy(output, batch) + 0.1 * kept

    return Case(model=model, loss=loss)


@row("loss that holds the model")
def _() -> Case:
    model = Net()

    def loss(output: Any, batch: Any) -> torch.Tensor:
        return cross_entropy(output, batch) + 0.1 * model.head.weight.square().sum()

    return Case(model=model, loss=loss)


@row("function that holds modules")
def _() -> Case:
    class Closed(Block):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = lambda x: self.down(functional.gelu(self.up(x)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.attend(self.norm(x))
            return x + self.mlp(self.second_norm(x))

    return Case(model=Net(Closed))


@row("loss that counts its calls")
def _() -> Case:
    calls = 0

    def loss(output: Any, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return cross_entropy(output, batch) * (1.0 + 0.01 * calls)

    return Case(model=Net(), loss=loss)


@row("loss with a gradient penalty")
def _() -> Case:
    model = Net()

    def loss(output: Any, batch: Any) -> torch.Tensor:
        value = cross_entropy(output, batch)
        (slope,) = torch.autograd.grad(value, model.head.weight, create_graph=True)
        return value + slope.square().sum()

    return Case(model=model, loss=loss)


@row("loss that is a sum")
def _() -> Case:
    def loss(output: Any, batch: Any) -> torch.Tensor:
        flat = output.flatten(0, 1)
        return functional.cross_entropy(flat, batch[1].flatten(), reduction="sum")

    return Case(model=Net(), loss=loss)


@row("loss that compares samples")
def _() -> Case:
    def loss(output: Any, batch: Any) -> torch.Tensor:
        one = functional.normalize(output.mean(1))
        scores = 5.0 * one @ one.roll(1, 1).T
        return functional.cross_entropy(scores, torch.arange(len(scores)))

    return Case(model=Net(), loss=loss)


@row("targets that are ignored")
def _() -> Case:
    def loss(output: Any, batch: Any) -> torch.Tensor:
        targets = batch[1].masked_fill(batch[1] < 3 + 4 * (batch[2][:, None] % 4), -100)
        return functional.cross_entropy(output.flatten(0, 1), targets.flatten())

    return Case(model=Net(), loss=loss)


@row("loss that changes its batch")
def _() -> Case:
    def loss(output: Any, batch: Any) -> torch.Tensor:
        return cross_entropy(output, (None, batch[1].remainder_(5)))

    return Case(model=Net(), loss=loss)


@row("model in float64")
def _() -> Case:
    return Case(model=Net().double())
