"""What it takes to build and to plan models that no process holds whole.

Four ranks build a model over a mesh, whole on each rank and from the meta device, and
the growth of each rank's peak memory is compared. `--plan` plans a Llama of 7 billion
parameters for tp 8 x pp 4 without a weight.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
import warnings

import torch
from torch import nn
from torch.nn import functional as f

from drivetrain_testing import Row, run_ranks

WIDTH, BLOCKS, RANKS = 1024, 12, 4
MESH = {"shard": RANKS}
MIB = 1 << 20
# A rank of four should come to much less than the whole.
SHARE = 0.5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(f.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def batches():
    return [(torch.ones(RANKS, WIDTH), torch.ones(RANKS, WIDTH))]


def loss(output, batch):
    return f.mse_loss(output, batch[1])


def build(weights, limit_bytes):
    """Builds the model on this rank; returns how much its peak memory has grown."""
    from drivetrain_core import accelerate

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    run(nn.Linear(2, 2), "build")
    before = peak_bytes()
    if limit_bytes is not None:
        now = address_bytes()
        resource.setrlimit(resource.RLIMIT_AS, (now + limit_bytes, -1))
    accelerated = accelerate(
        Model,
        sgd,
        batches(),
        loss,
        strategy=[("mesh", MESH)],
        weights=weights,
        progress=False,
    )
    grown = peak_bytes() - before
    held = sum(p.to_local().nbytes for p in accelerated.module.parameters())
    return grown, held


def run(model, weights):
    """Loads what the first program of a process loads."""
    from drivetrain_core import accelerate

    del weights
    data = [(torch.ones(RANKS, 2), torch.ones(RANKS, 2))]
    accelerate(model, sgd, data, loss, strategy=[("mesh", MESH)], progress=False)


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def address_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[0]) * resource.getpagesize()


def whole_bytes():
    with torch.device("meta"):
        return sum(p.nbytes for p in Model().parameters())


def measure(quick):
    """Measures the peak of a rank that builds the model from the meta device."""
    del quick
    whole = whole_bytes()
    built = max(grown for grown, _ in run_ranks(build, RANKS, "build", None))
    found = run_ranks(build, RANKS, "reset", None)
    grown = max(grown for grown, _ in found)
    return Row(
        figure=f"{grown / MIB:.0f} MiB a rank, of a model of {whole / MIB:.0f} MiB "
        f"({built / MIB:.0f} MiB when built whole)",
        holds=grown < SHARE * whole,
        proven_on="cpu-gloo",
        details={"held_mib": round(found[0][1] / MIB)},
    )


def plan_seven_billion():
    """Plans a Llama on the meta device; returns seconds and growth of memory."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from drivetrain_parallel.meta.flow_mode import FlowMode
    from drivetrain_parallel.meta.meta_model import parameters_on_meta
    from drivetrain_parallel.pipeline import plan_pipeline
    from drivetrain_parallel.tensor import plan_tensor_parallel

    warnings.simplefilter("ignore")
    config = LlamaConfig(use_cache=False)
    ids = torch.zeros(2, 128, dtype=torch.long)
    batch = {"input_ids": ids, "labels": ids}

    def loss_of(model, batch):
        return model(**batch).loss

    before, started = peak_bytes(), time.monotonic()
    with parameters_on_meta():
        model = LlamaForCausalLM(config)
    with FlowMode():
        tensor = plan_tensor_parallel(model, batch, loss_of, 8, verify=False)
        pipeline = plan_pipeline(model, batch, loss_of, 4, verify=False)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": round(time.monotonic() - started, 1),
        "grown_mib": round((peak_bytes() - before) / MIB),
        "split_at_least": round(min(tensor.coverage.values()), 3),
        "blocks": [stage.end - stage.begin for stage in pipeline.stages],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--plan", action="store_true")
    options = parser.parse_args()
    if options.plan:
        found = plan_seven_billion()
        sys.stdout.write(f"{found}\n")
        return 0
    row = measure(quick=False)
    sys.stdout.write(f"{row.figure}, {row.details}\n")
    return int(not row.holds)


if __name__ == "__main__":
    sys.exit(main())
