"""Small training programs, always the same, for tests of packages that change programs.

Example:
    >>> from drivetrain_testing.programs import run
    >>> accelerated = run([("micro_batch", 2)])
    >>> str(accelerated)
    'Accelerated(micro_batch(num=2))'
    >>> accelerated.close()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from drivetrain_core import accelerate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from drivetrain_core import Accelerated

__all__ = [
    "SCRIPT",
    "Blocks",
    "adamw",
    "data",
    "loader",
    "mse",
    "run",
    "run_bytes",
    "sgd",
    "small",
]

SCRIPT = """
import sys
import torch
from drivetrain_core import accelerate

print("from the script", sys.argv[1:])

class Model(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 1)

def loss(output, batch):
    return torch.nn.functional.mse_loss(output, batch[1])

def main():
    accelerated = accelerate(
        Model,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        [(torch.ones(4, 3), torch.ones(4, 1))] * 2,
        loss,
        strategy=["micro_batch"],
        allow=(),
        device="cpu",
        budget=3600,
    )
    for batch in accelerated.loader:
        accelerated.train_step(batch)
    print("trained under", accelerated.plan)
    return 0

if __name__ == "__main__":
    sys.exit(main())
"""


class Blocks(nn.Module):
    """A stem, repeated blocks, and a head: (B, 4) in, (B, 1) out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 16)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3)
        )
        self.head = nn.Linear(16, 1)

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Returns one number for each row."""
        x_BD = self.stem(x_BD)
        for layer in self.layers:
            x_BD = x_BD + layer(x_BD)
        out_BO: torch.Tensor = self.head(x_BD)
        return out_BO


def loader(kind: str) -> Iterable[Any]:
    """Returns batches for `Blocks`: inputs (8, 4) and their sums (8, 1).

    Args:
        kind: "loader" for a `DataLoader` that shuffles, else a list.
    """
    generator = torch.Generator().manual_seed(0)
    x_BD = torch.randn(30, 4, generator=generator)
    dataset = TensorDataset(x_BD, x_BD.sum(1, keepdim=True))
    if kind == "loader":
        return DataLoader(
            dataset, batch_size=8, shuffle=True, generator=torch.Generator()
        )
    return [dataset[i : i + 8] for i in range(0, 24, 8)]


def mse(output: torch.Tensor, batch: Any) -> torch.Tensor:
    """The mean squared error to the second tensor of the batch."""
    return nn.functional.mse_loss(output, batch[1])


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """SGD with a rate of 0.1."""
    return torch.optim.SGD(parameters, lr=0.1)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """AdamW with a rate of 0.01."""
    return torch.optim.AdamW(parameters, lr=1e-2)


def data(count: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Returns batches for `small`: random inputs (8, 3) and targets (8, 1)."""
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(8, 3, generator=generator),
            torch.randn(8, 1, generator=generator),
        )
        for _ in range(count)
    ]


def small() -> nn.Module:
    """A linear model: (B, 3) in, (B, 1) out."""
    return nn.Linear(3, 1)


def run(
    strategy: Any,
    model: Any = small,
    optimizer: Any = sgd,
    batches: Iterable[Any] | None = None,
    loss: Callable[..., torch.Tensor] = mse,
    **settings: Any,
) -> Accelerated:
    """Accelerates a small regression, of which any part may be replaced.

    Args:
        strategy: As `accelerate` takes it.
        model: A module, or a function that makes one.
        optimizer: An optimizer, or a function of parameters that makes one.
        batches: What is trained on; `data()` without it.
        loss: Of an output and its batch.
        **settings: Further arguments of `accelerate`.
    """
    settings.setdefault("progress", False)
    batches = data() if batches is None else batches
    return accelerate(model, optimizer, batches, loss, strategy=strategy, **settings)


def run_bytes(strategy: Any, **settings: Any) -> Accelerated:
    """Accelerates a language model of bytes that is large enough for a GPU.

    Args:
        strategy: As `accelerate` takes it.
        **settings: Further arguments of `accelerate`.
    """
    from drivetrain_core.examples import byte_lm

    config = byte_lm.ByteLMConfig(num_layers=3, dim=128, num_heads=4, ffn_dim=256)
    text = b"the quick brown fox jumps over the lazy dog; " * 500
    return accelerate(
        lambda: byte_lm.ByteLM(config),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        byte_lm.loader(text, batch_size=16, length=64),
        byte_lm.loss,
        strategy=strategy,
        progress=False,
        **settings,
    )
