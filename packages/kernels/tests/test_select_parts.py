"""The parts of the selector that are pure, and its clockwork on a clock of the test."""

import itertools
import logging

import pytest
import torch
from selector_models import Blocks, mlp
from torch import nn

from drivetrain_kernels import SelectionError, Trial, Watch
from drivetrain_kernels.selector._blocks import repeated_blocks
from drivetrain_kernels.selector._candidates import CANDIDATES
from drivetrain_kernels.selector._decide import decide, slowest, worth_compiling
from drivetrain_kernels.selector._first_batch import first_batch
from drivetrain_kernels.selector._install import install
from drivetrain_kernels.selector._race import Timing, is_settled, race, spread
from drivetrain_kernels.selector._store import Record
from drivetrain_kernels.selector._verify import reference_of
from drivetrain_kernels.selector._watch import verdict
from drivetrain_kernels.selector._workload import Workload

EAGER = Trial(name="eager", status="ok", step_s=1.0, ratio=1.0, low=1.0, high=1.0)


def trial(name, ratio, *, width=0.01, status="ok", **fields):
    ends = {"low": ratio - width, "high": ratio + width}
    return Trial(name=name, status=status, ratio=ratio, step_s=ratio, **ends, **fields)


@pytest.mark.parametrize(
    ("trials", "choice", "why"),
    [
        ([], "eager", "no candidate beats it"),
        ([trial("a", 0.9)], "a", "a: 0.900 of eager's time (0.890 to 0.910)"),
        ([trial("a", 0.9), trial("b", 0.7)], "b", "b: 0.700"),
        ([trial("a", 0.99)], "eager", "saves 1.0%, less than 2%"),
        ([trial("a", 1.527, width=0.6)], "eager", "slower, if not surely"),
        ([trial("a", 0.9, width=0.2)], "eager", "saves less than the noise (0.700 to"),
        ([trial("a", 1.2)], "eager", "slower (1.190 to 1.210)"),
        ([trial("a", 0.5, status="differs", why="x")], "eager", "no candidate"),
    ],
)
def test_decide_takes_what_surely_beats_eager(trials, choice, why):
    found = decide([EAGER, *trials])
    assert found.choice == choice
    assert why in found.reason


def test_decide_weighs_compile_seconds_against_the_steps_left():
    slow_to_compile = trial("a", 0.5, compile_s=100.0)
    quick = trial("b", 0.8, compile_s=1.0)
    assert decide([EAGER, slow_to_compile, quick], remaining_steps=300).choice == "a"
    assert decide([EAGER, slow_to_compile, quick], remaining_steps=100).choice == "b"
    assert decide([EAGER, slow_to_compile, quick], remaining_steps=2).choice == "eager"


def test_worth_compiling_needs_time_and_steps():
    facts = {"eager_s": 1.0, "compile_s": 10.0}
    assert not worth_compiling(remaining_steps=None, left_s=20.0, **facts)
    assert "5.0 s left" in worth_compiling(remaining_steps=None, left_s=5.0, **facts)
    assert worth_compiling(remaining_steps=20, left_s=20.0, **facts)
    assert not worth_compiling(remaining_steps=21, left_s=20.0, **facts)


def test_slowest_rank_counts_and_a_failure_anywhere_is_a_failure():
    failed = Trial(name="a", status="failed", why="no kernel")
    merged = slowest([[EAGER, trial("a", 0.5)], [EAGER, failed]])
    assert (merged[1].status, merged[1].why) == ("failed", "on rank 1: no kernel")
    merged = slowest([[EAGER, trial("a", 0.5)], [EAGER]])
    assert merged[1].why == "not tried on rank 1"
    merged = slowest([[EAGER, trial("a", 0.5)], [EAGER, trial("a", 0.9)]])
    assert merged[1].ratio == 0.9


def test_race_pairs_each_sample_with_eager_s_of_the_same_round():
    # The machine is slower every round; ratios do not show it.
    def drifting(factor):
        steps = itertools.count(1)
        return lambda: factor * next(steps)

    samplers = {"eager": drifting(1.0), "fast": drifting(0.5)}
    found = race(samplers, enough=0.98, out_of_time=lambda: False)
    assert (found["fast"].ratio, found["fast"].high) == (0.5, 0.5)


def test_race_stops_sampling_what_is_hopeless_and_when_time_is_over():
    values = itertools.cycle([0.7, 1.2])
    samplers = {"eager": lambda: 1.0, "slow": lambda: 2.0, "odd": lambda: next(values)}
    found = race(samplers, enough=0.98, out_of_time=lambda: False)
    assert found["slow"].num_rounds == 7
    assert found["odd"].num_rounds == found["eager"].num_rounds == 61
    found = race(samplers, enough=0.98, out_of_time=lambda: True)
    assert found["eager"].num_rounds == 1
    assert found["slow"].low < 2.0 < found["slow"].high


def test_race_settles_when_order_and_side_are_clear():
    def timing(low, high):
        middle = (low + high) / 2
        return Timing(step_s=1.0, ratio=middle, low=low, high=high, num_rounds=7)

    base = {"eager": timing(1.0, 1.0)}
    assert is_settled({**base, "a": timing(0.8, 0.9)}, "eager", 0.98)
    assert not is_settled({**base, "a": timing(0.9, 1.1)}, "eager", 0.98)
    assert is_settled({**base, "a": timing(0.976, 0.984)}, "eager", 0.98)
    unclear = {**base, "a": timing(0.6, 0.8), "b": timing(0.7, 0.9)}
    assert not is_settled(unclear, "eager", 0.98)


def test_spread_covers_the_median_by_order_statistics():
    assert spread([float(n) for n in range(31)]) == (15.0, 10.0, 20.0)


@pytest.mark.parametrize(
    ("phase", "medians", "action"),
    [
        ("compiled", [1.0], "stay"),
        ("compiled", [1.0, 2.0], "stay"),
        ("compiled", [1.0, 2.0, 1.1], "stay"),
        ("compiled", [1.0, 2.0, 2.0], "try eager"),
        ("eager", [1.0, 2.0, 2.0, 1.5], "demote"),
        ("eager", [1.0, 2.0, 2.0, 1.99], "go back"),
    ],
)
def test_watch_verdict(phase, medians, action):
    assert verdict(phase, medians)[0] == action


@pytest.mark.parametrize(("eager", "ends"), [(1.0, True), (3.0, False)])
def test_watch_tries_eager_after_a_regression_and_keeps_the_faster(eager, ends, caplog):
    now, state = [0.0], ["on"]
    watch = Watch(
        lambda: state.append("on"),
        lambda: state.append("off"),
        window=4,
        clock=lambda: now[0],
    )
    for step in range(60):
        compiled_s = 1.0 if step < 10 else 2.0
        now[0] += compiled_s if state[-1] == "on" else eager
        watch.tick()
    assert bool(watch.demoted) is ends
    assert state[-1] == ("off" if ends else "on")
    assert ("back to eager" in caplog.text) is ends


def test_watch_follows_an_optimizer_and_demotes_once(caplog):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ticks, offs = itertools.count(), []

    def clock():
        return float(next(ticks))

    watch = Watch(lambda: None, lambda: offs.append(1), window=2, clock=clock)
    watch.follow(optimizer)
    optimizer.step()
    assert next(ticks) == 1
    with caplog.at_level(logging.WARNING):
        watch.demote("first")
        watch.demote("second")
    assert (watch.demoted, offs) == ("first", [1])
    optimizer.step()
    assert next(ticks) == 2


def test_repeated_blocks_are_the_outermost_lists_of_one_class():
    model = nn.ModuleDict(
        {
            "layers": nn.ModuleList([Blocks(2), Blocks(2)]),
            "mixed": nn.Sequential(nn.Linear(2, 2), nn.GELU()),
            "linears": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]),
            "more": nn.Sequential(mlp(), mlp()),
        }
    )
    assert repeated_blocks(model) == [*model["layers"], *model["more"]]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("block", "there are no repeated blocks"),
        ("cudagraphs", "needs a device that captures graphs, got cpu"),
        ("max-autotune", "pays on GPUs, got cpu; name it to try it"),
        ("dynamic", "the example batches have one shape"),
    ],
)
def test_candidate_that_does_not_fit_says_why(name, why):
    workload = Workload(nn.Linear(2, 2), [torch.ones(1, 2)])
    assert CANDIDATES[name].unfit(workload, asked=False) == why


@pytest.mark.slow
def test_install_takes_a_candidate_without_measuring():
    model = Blocks()
    installed = install(model, "backend:aot_eager")
    assert model(torch.ones(2, 8)).shape == (2, 8)
    assert installed.num_graphs == 1
    installed.off()
    with pytest.raises(SelectionError, match="Linear cannot run as 'block': there are"):
        install(nn.Linear(2, 2), "block")


def test_first_batch_leaves_loader_and_random_state_alone():
    generator = torch.Generator().manual_seed(3)
    data = torch.arange(8.0)
    loader = torch.utils.data.DataLoader(
        data, batch_size=2, shuffle=True, generator=generator
    )
    before, random = generator.get_state(), torch.get_rng_state()
    batch = first_batch(loader, torch.device("cpu"))
    assert torch.equal(generator.get_state(), before)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(next(iter(loader)), batch)
    with pytest.raises(SelectionError, match="passed over only once"):
        first_batch(iter([data]), torch.device("cpu"))
    with pytest.raises(SelectionError, match="holds no batch"):
        first_batch([], torch.device("cpu"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 0}',
        '{"version": 1, "choice": "a", "reason": "", "trials": [], "verdicts": {}}',
        '{"version": 1, "choice": "a", "reason": "", "trials": [{"x": 1}]}',
        "[" * 100_000,
    ],
    ids=range(7),
)
def test_record_that_is_none_is_a_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011
        Record.from_json(text)


class Kink(nn.Module):
    """Half of the inputs of its activation are zero but for rounding."""

    def __init__(self, activation):
        super().__init__()
        weight = torch.full((2, 64), 0.1)
        weight[0, 32:] = 0.3
        self.weight = nn.Parameter(weight)
        self.activation = activation

    def forward(self, x):
        return self.activation(x * self.weight[0] - x * self.weight[1])


def test_tolerance_follows_what_rounding_does_to_eager():
    x = torch.linspace(1.0, 2.0, 64)
    smooth = reference_of(Workload(Kink(torch.tanh), [x]), None)
    tipping = reference_of(Workload(Kink(torch.relu), [x]), None)
    assert smooth.tolerance < 1e-4
    assert 1e-2 < tipping.tolerance < 0.05
    assert reference_of(Workload(Kink(torch.relu), [x]), 0.5).tolerance == 0.5


def test_tolerance_of_a_random_model_is_not_taken_from_its_randomness():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    found = reference_of(Workload(model, [torch.ones(4, 8)]), None)
    assert found.random
    assert found.tolerance < 1e-3
