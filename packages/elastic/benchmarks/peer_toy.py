"""What the loops of all peers share: a model, a step of 50 ms, a line for each step."""

import argparse
import json
import os
import time
from pathlib import Path

import torch

PAUSE_S = 0.05


def parser_of(text):
    """A parser of the arguments that all loops have."""
    parser = argparse.ArgumentParser(description=text, allow_abbrev=False)
    parser.add_argument("--folder", type=Path, required=True, help="of lines")
    parser.add_argument("--timeout-s", type=float, help="of the process group")
    return parser


class Toy:
    """A small model, and the number of steps it has made."""

    def __init__(self, folder):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.step = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{os.getpid()}.jsonl").open("a")
        # The first step of an optimizer imports much: not while others wait.
        self.compute()
        self.optimizer.step()

    def compute(self):
        """Computes gradients, and sleeps for what a real model would compute."""
        self.optimizer.zero_grad()
        self.loss(range(8)).backward()

    def loss(self, indices):
        """Returns the loss of samples, after a pause."""
        loss = self.model(torch.randn(len(indices), 32)).square().mean()
        time.sleep(PAUSE_S)
        return loss

    def gradients(self):
        return [parameter.grad for parameter in self.model.parameters()]

    def update(self):
        self.optimizer.step()
        self.step += 1

    def write(self, rank, world_size, epoch, *, dropped=False):
        """Writes what this step was; one that was dropped changed no parameter."""
        line = {
            "pid": os.getpid(),
            "rank": rank,
            "step": self.step,
            "world_size": world_size,
            "epoch": epoch,
            "dropped": dropped,
            "at_s": time.monotonic(),
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def state_dict(self):
        return {"model": self.model.state_dict(), "step": self.step}

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.step = state["step"]
