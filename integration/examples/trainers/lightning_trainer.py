"""A Lightning `Trainer` whose module, optimizer and loader come from a search."""

from __future__ import annotations

import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from drivetrain_core import Accelerated, accelerate


class Classifier(lightning.LightningModule):
    """Trains what `accelerate` returned; the loop is Lightning's."""

    def __init__(self, accelerated: Accelerated) -> None:
        super().__init__()
        self.network, self._optimizer, _ = accelerated
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        loss = cross_entropy(self.network(batch[0]), batch)
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._optimizer


def cross_entropy(output: torch.Tensor, batch: list[torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(output, batch[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--trials", type=int, default=24)
    options = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(4096, 64)
    y = (x @ torch.randn(64, 10)).argmax(1)
    dim = options.dim
    network = nn.Sequential(
        nn.Linear(64, dim),
        *(nn.Sequential(nn.Linear(dim, dim), nn.GELU()) for _ in range(3)),
        nn.Linear(dim, 10),
    )
    accelerated = accelerate(
        network,
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True),
        cross_entropy,
        own_loop=True,
        budget={"seconds": options.seconds, "trials": options.trials},
    )
    print(f"plan: {accelerated.plan}")
    module = Classifier(accelerated)
    trainer = lightning.Trainer(
        max_steps=options.steps,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, accelerated.loader)
    tenth = max(1, len(module.losses) // 10)
    first, last = module.losses[:tenth], module.losses[-tenth:]
    print(f"loss: {sum(first) / tenth:.4f} to {sum(last) / tenth:.4f}")


if __name__ == "__main__":
    main()
