"""What a user may have done to a program, beside each optimization: the same, or refused.

`python integration/tests/same_program.py --write` makes docs/reference/same-program.md:
each cell trains a program by a plain loop, and by `accelerate` with one optimization.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

from drivetrain_core import DrivetrainError, Numerics, accelerate
from drivetrain_core.extending import numerics_of, read_strategy
from drivetrain_testing import run_ranks

VOCABULARY, LENGTH, WIDTH, SAMPLES, BATCH = 17, 8, 16, 32, 8
PAGE = Path(__file__).parents[2] / "docs/reference/same-program.md"

ALONE: dict[str, list[Any]] = {
    "activation_checkpoint full": [("activation_checkpoint", "full")],
    "activation_checkpoint selective": [("activation_checkpoint", "selective")],
    "channels_last": ["channels_last"],
    "compile block": [("compile", "block")],
    "compile whole": [("compile", "whole")],
    "compile_select": ["compile_select"],
    "cpu_threads": [("cpu_threads", 1)],
    "data_loading": [("data_loading", 1)],
    "host_allocator": ["host_allocator"],
    "kernels": ["kernels"],
    "micro_batch": [("micro_batch", 2)],
    "optimizer_impl foreach": [("optimizer_impl", "foreach")],
    "optimizer_impl fused": [("optimizer_impl", "fused")],
    "bf16_autocast": [("precision", "bf16_autocast")],
    "bf16_params": [("precision", "bf16_params")],
}
"""Strategies of one process, by the column that they have."""

TWO_RANKS: dict[str, list[Any]] = {
    "ddp": ["ddp"],
    "ddp, micro_batch": ["ddp", ("micro_batch", 2)],
    "fsdp": ["fsdp"],
    "fsdp, bf16_params": ["fsdp", ("precision", "bf16_params")],
    "mesh tensor": [("mesh", {"tensor": 2})],
    "mesh tensor, sequence_parallel": [("mesh", {"tensor": 2}), "sequence_parallel"],
    "mesh pipeline": [("mesh", {"pipeline": 2}), ("micro_batch", 2)],
    "mesh context": [("mesh", {"context": 2})],
    "mesh shard": [("mesh", {"shard": 2})],
}
"""Strategies of two ranks."""


class Block(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 32), nn.Linear(32, width)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            f(x).unflatten(-1, (-1, 4)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm(x))
        return x + self.down(functional.gelu(self.up(self.second_norm(x))))


class Net(nn.Module):
    """A small decoder."""

    def __init__(self, make: Any = Block, blocks: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(make() for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def encode(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encode(tokens))


class Tokens(Dataset[Any]):
    """Samples that know their number."""

    def __init__(self, like: Any = None) -> None:
        generator = torch.Generator().manual_seed(5)
        self.tokens = torch.randint(VOCABULARY, (SAMPLES, LENGTH), generator=generator)
        self.targets = torch.randint(VOCABULARY, (SAMPLES, LENGTH), generator=generator)
        self.change = like

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        tokens, targets = self.tokens[index], self.targets[index]
        if self.change is not None:
            tokens = self.change(tokens)
        return tokens, targets, torch.tensor(index)


def cross_entropy(output: Any, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), batch[1].flatten())


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3)


@dataclass(kw_only=True)
class Case:
    """A program, and what is looked at besides its losses and weights."""

    model: nn.Module
    optimizer: Any = adamw
    data: Any = None
    loss: Any = cross_entropy
    forward: Any = None
    scheduler: Any = None
    max_grad_norm: float | None = None
    is_ordered: bool = True

    def __post_init__(self) -> None:
        if self.data is None:
            self.data = DataLoader(Tokens(), batch_size=BATCH)


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


STEPS = 8


def plain(case: Case) -> tuple[list[float], list[int], list[torch.Tensor]]:
    """Returns losses, samples and weights of a loop as its user would write it."""
    model, optimizer = case.model, case.optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer(model.parameters())
    scheduler = case.scheduler(optimizer) if case.scheduler else None
    losses, numbers = [], []
    for batch in itertools.islice(cycled(case.data), STEPS):
        numbers += numbers_of(batch)
        output = (case.forward or (lambda m, b: m(b[0])))(model, batch)
        loss = output if case.loss is None else case.loss(output, batch)
        loss.backward()
        if case.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), case.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
        losses.append(float(loss.detach()))
    return losses, numbers, [p.detach().double() for p in model.parameters()]


def cycled(data: Any) -> Any:
    while True:
        yield from data


def numbers_of(batch: Any) -> list[int]:
    return (batch["number"] if isinstance(batch, dict) else batch[2]).tolist()


def cell_of(make: Any, strategy: list[Any]) -> str:
    """Returns `same`, `refused: why`, or `WRONG: what`.

    Args:
        make: Returns the program, the same at each call.
        strategy: What `accelerate` is given.
    """
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.set_num_threads(1)
    # Compiled code does not look again whether a module of the class has hooks.
    torch.compiler.reset()
    reference = make()
    start = [
        p.detach().double() for p in copy.deepcopy(list(reference.model.parameters()))
    ]
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected, samples, weights = plain(reference)
    torch.manual_seed(0)
    case = make()
    torch.manual_seed(1)
    try:
        accelerated = accelerate(
            case.model,
            case.optimizer,
            case.data,
            case.loss,
            forward=case.forward,
            scheduler=case.scheduler,
            max_grad_norm=case.max_grad_norm,
            strategy=strategy,
            cache=False,
            progress=False,
        )
    except DrivetrainError as error:
        because = getattr(error, "because", str(error))
        return f"refused: {because}"
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    losses, found = [], []
    for batch in itertools.islice(accelerated.batches(), STEPS):
        found += numbers_of(batch)
        losses.append(summed(accelerated.train_step(batch)))
    accelerated.close()
    low = numerics_of(read_strategy(strategy).choices) is Numerics.LOW_PRECISION
    world = (
        torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    )
    if world > 1:
        parts: list[Any] = (
            [None] * accelerated.data_size * (world // accelerated.data_size)
        )
        torch.distributed.all_gather_object(parts, found)
        found = sorted(set(itertools.chain(*parts)))
        if found != sorted(set(samples)):
            return f"WRONG: {len(found)} of {len(set(samples))} samples came"
    elif sorted(found) != sorted(samples):
        return "WRONG: other samples"
    if not case.is_ordered:
        return "same"
    bound = 3e-2 if low else 2e-4
    gaps = [abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True)]
    if not max(gaps) < bound:
        return f"WRONG: a loss is {max(gaps):.1e} off"
    if world == 1:
        ways = [
            (w - s, p.detach().double() - s)
            for w, s, p in zip(weights, start, case.model.parameters(), strict=True)
        ]
        away = sum(float((a - b).square().sum()) for a, b in ways) ** 0.5
        whole = sum(float(a.square().sum()) for a, _ in ways) ** 0.5
        if not away < (0.3 if low else 5e-2) * whole:
            return f"WRONG: weights are {away / whole:.1e} of their way off"
    return "same"


def summed(loss: torch.Tensor) -> float:
    """Returns the loss of the global batch."""
    value = loss.detach().double().clone()
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(value)
        value /= torch.distributed.get_world_size()
    return float(value)


def cells(
    names: list[str], columns: dict[str, list[Any]]
) -> dict[tuple[str, str], str]:
    """Returns the verdicts of this process, or of its rank."""
    found = {}
    for name, column in itertools.product(names, columns):
        try:
            found[name, column] = cell_of(ROWS[name], columns[column])
        except Exception as error:  # noqa: BLE001
            found[name, column] = f"WRONG: {type(error).__name__}: {str(error)[:160]}"
    return found


def on_two_ranks(
    name: str, columns: dict[str, list[Any]]
) -> dict[tuple[str, str], str]:
    """Returns the verdicts of a row on two ranks, a column at a time if one fails."""
    try:
        first, second = run_ranks(cells, 2, [name], columns, timeout_s=240)
    except Exception as error:  # noqa: BLE001
        if len(columns) == 1:
            return {(name, next(iter(columns))): f"WRONG: {str(error)[-300:]!r}"}
        parts = [on_two_ranks(name, {c: s}) for c, s in columns.items()]
        return {key: value for part in parts for key, value in part.items()}
    return {
        key: first[key]
        if first[key] == second[key] or first[key][:4] != "same"
        else second[key]
        for key in first
    }


def page(found: dict[tuple[str, str], str]) -> str:
    """Returns the table, and why each cell that is refused is."""
    columns = list(dict.fromkeys(column for _, column in found))
    reasons: dict[str, int] = {}
    lines = [
        "# What stays the same under a plan",
        "",
        "Each cell trains a small program by a plain loop, and by `accelerate` with one",
        "optimization, for eight steps. `=`: the same losses and weights, within what the",
        "optimization declares to do to the numbers, and each sample as often. A number: the",
        "plan is refused before the first step, with the reason below. Made by",
        "`python integration/tests/same_program.py --write`, on CPUs, Gloo for two ranks.",
        "",
    ]
    for title, group in (("One process", ALONE), ("Two ranks", TWO_RANKS)):
        shown = [column for column in columns if column in group]
        lines += [
            f"## {title}",
            "",
            f"| | {' | '.join(shown)} |",
            "|---" * (len(shown) + 1) + "|",
        ]
        for name in ROWS:
            marks = []
            for column in shown:
                verdict = found[name, column]
                if verdict.startswith("refused: "):
                    number = reasons.setdefault(
                        verdict.removeprefix("refused: "), len(reasons) + 1
                    )
                    marks.append(str(number))
                else:
                    marks.append("=" if verdict == "same" else verdict)
            lines.append(f"| {name} | {' | '.join(marks)} |")
        lines.append("")
    lines += ["## Reasons", ""]
    lines += [f"{number}. {' '.join(why.split())}" for why, number in reasons.items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Makes the table, and tells of each cell that is neither the same nor refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--rows", nargs="*", default=list(ROWS))
    parser.add_argument("--columns", nargs="*")
    given = parser.parse_args()
    pick = functools.partial(
        lambda group: {
            c: s for c, s in group.items() if not given.columns or c in given.columns
        }
    )
    found: dict[tuple[str, str], str] = {}
    for name in given.rows:
        found |= cells([name], pick(ALONE))
        if pick(TWO_RANKS):
            found |= on_two_ranks(name, pick(TWO_RANKS))
        for key, verdict in found.items():
            if key[0] == name and verdict != "same":
                print(*key, verdict, sep=" | ", flush=True)
    wrong = sum(verdict.startswith("WRONG") for verdict in found.values())
    refused = sum(verdict.startswith("refused") for verdict in found.values())
    print(f"{len(found)} cells: {wrong} wrong, {refused} refused")
    if given.write:
        PAGE.write_text(page(found), encoding="utf-8")
    return bool(wrong)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import same_program  # by its name, so that ranks find it

    sys.exit(same_program.main())
