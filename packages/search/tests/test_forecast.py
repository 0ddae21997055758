"""Forecasts against the allocator's trace of real runs, and what cannot be forecast."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from drivetrain_core import Choice, Measurement
from drivetrain_core._build import build
from drivetrain_core._compose import read_strategy
from drivetrain_core._optimizer.source import OptimizerSource
from drivetrain_core._plan import Plan
from drivetrain_core._probe import make_context
from drivetrain_core._program import Program
from drivetrain_search.prediction.fake_run import FakeRuns
from drivetrain_search.prediction.forecast import (
    Forecaster,
    layout_of,
    structure_of,
)
from drivetrain_search.prediction.kernel_memory import allocations
from drivetrain_search.prediction.memory_model import (
    Layout,
    Structure,
    predict_memory,
)
from drivetrain_search.process.payload import Payload, write_payload

CPU = torch.device("cpu")


class Deep(nn.Module):
    """A head tied to the embedding, around blocks."""

    def __init__(self, depth=6, width=32):
        super().__init__()
        self.embedding = nn.Embedding(64, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 64, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Branching(Deep):
    """Its path depends on values."""

    def forward(self, ids):
        out = super().forward(ids)
        return out if out.sum() > 0 else 2 * out


class Drawing(Deep):
    """Draws from a generator of its own."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(7)

    def forward(self, ids):
        noise = torch.randn(64, generator=self.generator)
        return super().forward(ids) + noise


class Unreadable(list):
    """Data that cannot be read where tensors have no values."""

    def __reduce__(self):
        return read_values, (self[0],)


def read_values(batch):
    batch[0].numpy()
    return Unreadable([batch])


class Knowing(Deep):
    """Cannot do without its fifth block."""

    def forward(self, ids):
        return super().forward(ids) + self.blocks[4][0].bias.sum()


class Deadly(Deep):
    """Ends its process in the forward, as fake tensors may."""

    def forward(self, ids):
        os.kill(os.getpid(), signal.SIGKILL)


class Hanging(Deep):
    """Never comes back."""

    def forward(self, ids):
        while True:
            time.sleep(1)


def loss(logits, batch):
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch[1].flatten())


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def make_batch():
    return torch.zeros(8, 16, dtype=torch.long), torch.ones(8, 16, dtype=torch.long)


def context_of(program):
    model = program.build_model()
    source = OptimizerSource.of(program.optimizer, model)
    return make_context(CPU, model, make_batch(), source, program.data, owns_step=True)


@pytest.fixture
def shipped(tmp_path):
    """Ships a program with a model; returns its path and its context."""

    def ship(model=Deep, optimizer=adamw, data=None, **fields):
        data = data or [make_batch()]
        program = Program(
            model=model, optimizer=optimizer, data=data, loss=loss, **fields
        )
        context = context_of(program)
        payload = Payload(
            program=program,
            context=context,
            guard_batches=(make_batch(),),
            device="cpu",
        )
        return write_payload(payload, tmp_path), program, context

    return ship


@pytest.fixture
def forecaster(shipped, tmp_path):
    """Returns a started forecaster of a model."""
    opened = []

    def make(model=Deep, timeout_s=90.0, **fields):
        path, _, context = shipped(model, **fields)
        made = Forecaster(path, tmp_path, context, timeout_s=timeout_s)
        opened.append(made)
        return made.__enter__()

    yield make
    for made in opened:
        made.__exit__()


def choices_of(*strategy):
    return read_strategy(list(strategy)).choices


def real_peak(program, context, choices):
    """The highest sum of all allocations and frees before the end of a second step."""
    gc.collect()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        profile_memory=True,
        acc_events=True,  # without it, torch 2.11 warns
    ) as profiler:
        batch = make_batch()
        model = program.build_model()
        source = OptimizerSource.of(program.optimizer, model)
        here = dataclasses.replace(program, data=[batch])
        built = build(here, model, source, Plan(choices=choices), context, CPU)
        built.train_step(batch)
        built.train_step(batch)
    built.close()
    live = peak = 0
    for _, size in allocations(profiler):
        live += size
        peak = max(peak, live)
    return peak


def predicted(path, choices, size=8, num=1):
    fields = FakeRuns(path).structure(structure_of(choices), (size,), 8)
    return predict_memory(Structure.from_dict(fields), 8 // num, Layout())


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        (),
        (("precision", "bf16_autocast"),),
        (("precision", "bf16_params"),),
        (("activation_checkpoint", "full"),),
        (("activation_checkpoint", "selective"),),
        (("activation_checkpoint", {"mode": "every_k", "k": 2}),),
    ],
)
def test_peak_is_that_of_the_allocator(shipped, strategy):
    path, program, context = shipped()
    choices = choices_of(*strategy)
    found = predicted(path, choices)
    assert found.peak_bytes == pytest.approx(
        real_peak(program, context, choices), rel=0.01
    )
    assert sum(found.parts.values()) == found.peak_bytes


@pytest.mark.slow
def test_peak_of_micro_batches_is_that_of_the_allocator(forecaster, shipped):
    _, program, context = shipped()
    choices = choices_of(("micro_batch", 4))
    found = forecaster().forecast(choices)
    assert found.peak_bytes == pytest.approx(
        real_peak(program, context, choices), rel=0.01
    )


@pytest.mark.slow
def test_truncated_depth_equals_the_whole_model(shipped, monkeypatch):
    path, *_ = shipped()
    truncated = FakeRuns(path).structure((), (8,), 8)
    monkeypatch.setattr("drivetrain_search.prediction.fake_run._FEWEST_BLOCKS", 100)
    whole = FakeRuns(path).structure((), (8,), 8)
    assert (truncated["exact"], whole["exact"]) == (False, True)
    (low,), (high,) = truncated["passes"], whole["passes"]
    for name, peak in low["phases"].items():
        assert peak == pytest.approx(high["phases"][name])
    for name, operations in low["work"].items():
        assert operations == pytest.approx(high["work"][name])
    assert predict_memory(
        Structure.from_dict(truncated), 8, Layout()
    ).parts == pytest.approx(
        predict_memory(Structure.from_dict(whole), 8, Layout()).parts
    )


@pytest.mark.slow
def test_model_that_cannot_be_truncated_runs_whole(shipped):
    path, *_ = shipped(Knowing)
    assert FakeRuns(path).structure((), (8,), 8)["exact"]


@pytest.mark.slow
def test_tied_weights_count_once_and_states_are_exact(shipped):
    path, *_ = shipped()
    states = FakeRuns(path).structure((), (8,), 8)["states"]
    size = sum(p.numel() * 4 for p in Deep().parameters())
    counters = 4 * len(list(Deep().parameters()))
    assert (states["parameters"], states["gradients"]) == (size, size)
    assert states["optimizer"] == 2 * size + counters
    assert (states["num_blocks"], states["buffers"]) == (6, 0)


@pytest.mark.slow
def test_module_and_stepped_optimizer_stay_as_they_are(shipped):
    model = Deep()
    optimizer = adamw(model.parameters())
    loss(model(make_batch()[0]), make_batch()).backward()
    optimizer.step()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    path, *_ = shipped(model, optimizer)
    states = FakeRuns(path).structure((), (8,), 8)["states"]
    assert states["optimizer"] > 2 * states["parameters"]
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert type(model.head.weight.data) is torch.Tensor


@pytest.mark.slow
def test_work_counts_the_products_of_a_pass(shipped):
    path, *_ = shipped()
    (found,) = FakeRuns(path).structure((), (8,), 8)["passes"]
    products = sum(o["flops"] for o in found["work"].values())
    weights = 6 * 2 * 32 * 64 + 32 * 64
    assert products == pytest.approx(6 * weights * 8 * 16)


@pytest.mark.slow
def test_forecasts_are_asked_for_once_a_structure(forecaster):
    made = forecaster()
    asked = []
    ask = made._ask

    def counting(question):
        asked.append(question["ask"])
        return ask(question)

    made._ask = counting
    base = made.forecast(())
    compiled = made.forecast(choices_of(("compile", "block")))
    foreach = made.forecast(choices_of(("optimizer_impl", "foreach")))
    made.forecast(choices_of(("data_loading", 1)))
    assert asked == ["structure", "rates"]
    assert (base.peak_bytes, base.because) == (compiled.peak_bytes, "")
    assert compiled.uncertainty == 0.15
    assert compiled.optimistic_step_time_s < base.optimistic_step_time_s
    assert foreach.peak_bytes >= base.peak_bytes
    assert made.rates.bytes_per_s > 0


@pytest.mark.slow
def test_calibration_makes_the_baseline_its_measurement(forecaster):
    made = forecaster()
    tensors = made.forecast(()).peak_bytes
    measured = Measurement(
        step_times_s=(0.4, 0.5, 0.6),
        samples_per_step=8,
        peak_memory_bytes=tensors + 1000,
        data_share=0.2,
    )
    made.calibrate((), measured)
    base = made.forecast(())
    assert made.overhead_bytes == 1000
    assert base.step_time_s == pytest.approx(0.5)
    assert 0 < base.optimistic_step_time_s < 0.4


@pytest.mark.slow
def test_ranks_share_the_batch_and_average_gradients(shipped, tmp_path):
    path, _, context = shipped()
    world = dataclasses.replace(context.world, size=2, local_size=2)
    context = dataclasses.replace(context, world=world)
    ddp = choices_of("ddp")
    with Forecaster(path, tmp_path, context, timeout_s=90.0) as made:
        found = made.forecast(ddp)
        alone = made.forecast(())
        assert made.rates.all_reduce is not None
    assert found.parts["gradients"] > alone.parts["parameters"]
    assert found.step_time_s > alone.step_time_s


def test_layout_is_read_from_the_plan(context):
    plan = choices_of("fsdp", ("optimizer_impl", "foreach"), "compile")
    assert layout_of(plan, context) == Layout(
        data_parallel="fsdp", foreach=True, compiled=True
    )


@pytest.mark.slow
def test_unknown_optimization_gives_a_reason(forecaster):
    found = forecaster().forecast((Choice("no_such_thing", {}),))
    assert found.peak_bytes is found.step_time_s is None
    assert "no_such_thing" in found.because


def test_control_flow_on_values_gives_a_reason(forecaster):
    found = forecaster(Branching).forecast(())
    assert found.peak_bytes is None
    assert "DataDependent" in found.because


@pytest.mark.slow
def test_loader_and_model_with_generators_are_forecast(forecaster):
    loader = DataLoader(
        TensorDataset(*make_batch()),
        batch_size=8,
        shuffle=True,
        generator=torch.Generator().manual_seed(3),
    )
    found = forecaster(Drawing(), data=loader).forecast(())
    assert found.because == ""
    assert found.step_time_s > 0


def test_rates_are_known_where_the_program_has_no_fake_run(forecaster, caplog):
    caplog.set_level("INFO", "drivetrain_search")
    made = forecaster(data=Unreadable([make_batch()]))
    because = made.forecast(()).because
    assert because
    assert f"no forecast: {because}" in caplog.text
    assert made.rates.rate("float32") > 0


def test_child_that_dies_gives_a_reason_and_starts_again(forecaster):
    made = forecaster(Deadly)
    found = made.forecast(())
    assert found.peak_bytes is None
    assert "exit code -9" in found.because
    assert made.rates is not None


@pytest.mark.slow
def test_child_that_hangs_ends_the_forecasts(forecaster):
    made = forecaster(Hanging, timeout_s=8.0)
    assert "longer than 8 s" in made.forecast(()).because
    assert made._processes is None
    other = made.forecast(choices_of(("precision", "bf16_autocast")))
    assert "for a plan before" in other.because
    assert made._processes is None
    assert made.rates is None
