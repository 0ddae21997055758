"""The forecast of a plan's peak memory against the allocator's trace of a real run.

The trace is the profiler's: every allocation and free of the process from before the
model is built, in order. It shares nothing with the tracker of the forecast.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch._C._profiler import _EventType
from torch.nn import functional as F  # noqa: N812

from drivetrain_core._build import build
from drivetrain_core._compose import problems, read_strategy
from drivetrain_core._optimizer.source import OptimizerSource
from drivetrain_core._plan import Plan, describe
from drivetrain_core._probe import make_context
from drivetrain_core._program import Program
from drivetrain_core.examples import byte_lm
from drivetrain_search.prediction.forecast import Forecaster
from drivetrain_search.process.payload import Payload, write_payload
from drivetrain_testing import Row

WORST = 0.02
CPU = torch.device("cpu")


class Blocks(nn.Module):
    """A stem, repeated blocks in between, and a head."""

    def __init__(self, stem, blocks, head):
        super().__init__()
        self.stem, self.head = stem, head
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Lstm(nn.Module):
    """A language model of two recurrent layers."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, 96)
        self.lstm = nn.LSTM(96, 96, num_layers=2, batch_first=True)
        self.head = nn.Linear(96, 256)

    def forward(self, ids):
        return self.head(self.lstm(self.embedding(ids))[0])


def language_model():
    config = byte_lm.ByteLMConfig(
        num_layers=7, dim=96, num_heads=6, num_kv_heads=2, ffn_dim=256
    )
    return byte_lm.ByteLM(config)


def mlp():
    def block():
        return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))

    return Blocks(nn.Linear(64, 256), [block() for _ in range(6)], nn.Linear(256, 10))


def conv():
    def block():
        return nn.Sequential(
            nn.Conv2d(24, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.ReLU()
        )

    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))
    stem = nn.Conv2d(3, 24, 3, padding=1)
    return Blocks(stem, [block() for _ in range(5)], head)


def encoder():
    layers = [
        nn.TransformerEncoderLayer(96, 4, 256, dropout=0.1, batch_first=True)
        for _ in range(6)
    ]
    return Blocks(nn.Embedding(256, 96), layers, nn.Linear(96, 256))


def tokens(size):
    ids = torch.zeros(size, 129, dtype=torch.long)
    return ids[:, :-1].clone(), ids[:, 1:].clone()


def vectors(size):
    return torch.zeros(size, 64), torch.zeros(size, dtype=torch.long)


def images(size):
    return torch.zeros(size, 3, 32, 32), torch.zeros(size, dtype=torch.long)


def classes(logits, batch):
    return F.cross_entropy(logits, batch[1])


MODELS = {
    "byte_lm": (language_model, partial(tokens, 8), byte_lm.loss),
    "mlp": (mlp, partial(vectors, 64), classes),
    "conv": (conv, partial(images, 16), classes),
    "lstm": (Lstm, partial(tokens, 8), byte_lm.loss),
    "encoder": (encoder, partial(tokens, 8), byte_lm.loss),
}
PRECISIONS = ("fp32", "bf16_autocast", "bf16_params")
CHECKPOINTS = ("off", "full", "selective")
MICRO_BATCHES = (1, 2)
QUICK = (
    ("byte_lm", "fp32", "off", 1),
    ("byte_lm", "bf16_autocast", "full", 2),
    ("mlp", "bf16_params", "off", 1),
    ("conv", "fp32", "off", 1),
    ("lstm", "fp32", "off", 1),
    ("encoder", "fp32", "selective", 1),
)


def plan_of(precision, checkpoint, micro_batch):
    strategy = []
    if precision != "fp32":
        strategy.append(("precision", precision))
    if checkpoint != "off":
        strategy.append(("activation_checkpoint", checkpoint))
    if micro_batch > 1:
        strategy.append(("micro_batch", micro_batch))
    return read_strategy(strategy).choices


def measured_peak(program, make_batch, context, choices):
    """Bytes of all tensors at the highest moment of a real run's second step."""
    # Cycles of the run before would be freed in the middle of this one.
    gc.collect()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        batch = make_batch()
        model = program.build_model()
        source = OptimizerSource.of(program.optimizer, model)
        here = dataclasses.replace(program, data=[batch])
        plan = Plan(choices=choices)
        accelerated = build(here, model, source, plan, context, CPU)
        accelerated.train_step(batch)
        with torch.profiler.record_function("second step"):
            accelerated.train_step(batch)
    accelerated.close()
    return peak_within(profiler, "second step")


def peak_within(profiler, name):
    events, span = [], None
    pending = list(profiler.profiler.kineto_results.experimental_event_tree())
    while pending:
        event = pending.pop()
        if event.tag == _EventType.Allocation:
            events.append((event.start_time_ns, event.extra_fields.alloc_size))
        elif event.name == name:
            span = (event.start_time_ns, event.end_time_ns)
        pending.extend(event.children)
    live = peak = 0
    for at, size in sorted(events, key=lambda pair: pair[0]):
        before, live = live, live + size
        if span[0] <= at <= span[1]:
            peak = max(peak, before, live)
    return peak


def compared(name, plans):
    """Returns (plan, predicted, measured) of each plan of one model."""
    make_model, make_batch, loss = MODELS[name]
    batch = make_batch()
    program = Program(
        model=make_model, optimizer=torch.optim.AdamW, data=[batch], loss=loss
    )
    model = program.build_model()
    source = OptimizerSource.of(program.optimizer, model)
    context = make_context(CPU, model, batch, source, program.data, owns_step=True)
    del model, source
    payload = Payload(
        program=program, context=context, guard_batches=(batch,), device="cpu"
    )
    rows = []
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        path = write_payload(payload, Path(folder))
        with Forecaster(path, Path(folder), context, timeout_s=60.0) as forecaster:
            for choices in plans:
                if problems(choices, context):
                    continue
                forecast = forecaster.forecast(choices)
                if forecast.peak_bytes is None:
                    message = f"{name}, {describe(choices)}: {forecast.because}"
                    raise RuntimeError(message)
                real = measured_peak(program, make_batch, context, choices)
                rows.append((describe(choices), forecast.peak_bytes, real))
                sys.stderr.write(
                    f"{name}, {describe(choices)}: {forecast.peak_bytes} predicted, "
                    f"{real} measured, {forecast.peak_bytes / real - 1.0:+.2%}\n"
                )
    return rows


def measure(quick):
    """The worst relative error of the predicted peak, and the median one."""
    grid = itertools.product(MODELS, PRECISIONS, CHECKPOINTS, MICRO_BATCHES)
    cases = QUICK if quick else tuple(grid)
    found = {}
    for name in MODELS:
        plans = [plan_of(*case[1:]) for case in cases if case[0] == name]
        for plan, predicted, real in compared(name, plans):
            found[f"{name}, {plan}"] = predicted / real - 1.0
    errors = {case: abs(error) for case, error in found.items()}
    worst = max(errors, key=errors.__getitem__)
    middle = statistics.median(errors.values())
    return Row(
        figure=f"worst {errors[worst]:.2%} ({worst}), median {middle:.2%}, "
        f"of {len(errors)} plans",
        holds=errors[worst] <= WORST,
        details={"errors": {case: round(error, 5) for case, error in found.items()}},
    )
