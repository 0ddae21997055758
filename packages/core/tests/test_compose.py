"""Strategies: read, completed, ordered, and refused before anything is touched."""

from __future__ import annotations

import dataclasses

import pytest

from drivetrain_core import (
    BaseOptimization,
    Choice,
    Numerics,
    Phase,
    Plan,
    PlanError,
    PlanFormatError,
    PluginError,
    Slot,
    WorldFacts,
    register,
    unregister,
)
from drivetrain_core._compose import (
    arrange,
    complete,
    numerics_of,
    problems,
    read_strategy,
    require_usable,
)

SAME = "precision(dtype=bf16_autocast) + compile(scope=block)"


@pytest.mark.parametrize(
    "strategy",
    [
        ["compile", "precision"],
        [("compile", "block"), ("precision", {"dtype": "bf16_autocast"})],
        [{"compile": {"scope": "block"}}, Choice("precision", {})],
        {"compile": None, "precision": "bf16_autocast"},
        Plan(choices=(Choice("compile", {}), Choice("precision", {}))),
        (("precision", "bf16_autocast"), "compile"),
    ],
)
def test_strategy_forms_mean_the_same(strategy):
    assert str(read_strategy(strategy)) == SAME


def test_strategy_path_is_read(tmp_path):
    path = read_strategy(["compile", "precision"]).save(tmp_path / "plan.yaml")
    assert str(read_strategy(path)) == SAME
    assert str(read_strategy(str(path))) == SAME


@pytest.mark.parametrize(
    ("strategy", "code", "words"),
    [
        (["compil"], "UNKNOWN", "nearest: compile"),
        (["zzzzzz"], "UNKNOWN", "known: "),
        ([("compile", "all")], "CONFIG", "must be one of block, whole, got 'all'"),
        ([("compile", {"scop": "block"})], "CONFIG", "nearest: scope"),
        ([("micro_batch", 0)], "CONFIG", "at least 1, got 0"),
        ([("micro_batch", True)], "CONFIG", "of type int, got True"),
        ([("micro_batch", "two")], "CONFIG", "of type int, got 'two'"),
        ([("channels_last", 3)], "CONFIG", "must be a mapping"),
        ([3], "FORMAT", "(name, options) pair, got 3"),
        ("compile", "FORMAT", "write ['compile']"),
        (
            ("precision", "bf16_autocast"),
            "FORMAT",
            "write [('precision', 'bf16_autocast')]",
        ),
        (("micro_batch", 2), "FORMAT", "write [('micro_batch', 2)]"),
        (
            ["compile", {"scope": "block"}],
            "FORMAT",
            "must be a list of names and pairs",
        ),
        (["compile", {"micro_batch": 0}], "CONFIG", "at least 1, got 0"),
        (["compile", "precisio"], "UNKNOWN", "nearest: precision"),
        (7, "FORMAT", "got int"),
    ],
)
def test_strategy_that_is_wrong_is_one_error(strategy, code, words):
    with pytest.raises(PlanError) as caught:
        read_strategy(strategy)
    assert caught.value.code == code
    assert words in str(caught.value)


def test_a_wrong_value_in_a_file_names_the_file(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("drivetrain_plan: 1\nstrategy:\n- compile: {scope: hole}\n")
    for strategy in (path, str(path)):
        with pytest.raises(PlanError) as caught:
            read_strategy(strategy)
        assert caught.value.optimization == "compile"
        assert caught.value.because.startswith(f"in {path}: option scope")


def test_choices_are_applied_by_phase():
    given = ["data_loading", "optimizer_impl", "compile", "precision", "cpu_threads"]
    names = [choice.name for choice in read_strategy(given).choices]
    assert names == list(reversed(given))


def test_two_answers_to_one_slot_conflict(context):
    choices = read_strategy([("compile", "block"), ("compile", "whole")]).choices
    ((_, reject),) = problems(choices, context)
    assert reject.code == "CONFLICT"
    assert reject.because == "compile stands twice"


def test_unusable_plan_names_every_reason(context):
    one_thread = dataclasses.replace(context.device, num_cores=1)
    context = dataclasses.replace(context, device=one_thread)
    choices = read_strategy([("cpu_threads", 2), "ddp"]).choices
    with pytest.raises(PlanError) as caught:
        require_usable(choices, context)
    assert caught.value.optimization == "cpu_threads"
    assert list(caught.value.evidence) == ["ddp"]
    assert caught.value.fix


def test_several_ranks_get_gradient_averaging(context):
    two = dataclasses.replace(context, world=WorldFacts(size=2, local_size=2))
    compiled = read_strategy(["compile"]).choices
    assert [c.name for c in complete(compiled, two)] == ["compile", "ddp"]
    sharded = read_strategy(["fsdp"]).choices
    assert complete(sharded, two) == sharded
    assert complete(compiled, context) == compiled


class Needy(BaseOptimization):
    """Needs one optimization and excludes another."""

    name, slot, phase = "needy", Slot.KERNELS, Phase.MODEL_SWAP
    requires, conflicts = ("compile",), ("precision",)

    def apply(self, state, config):
        """Does nothing."""


@pytest.fixture
def needy():
    register(Needy())
    yield
    unregister("needy")


def test_requires_and_conflicts_are_held_to(needy, context):
    found = problems(read_strategy(["needy", "precision"]).choices, context)
    assert [reject.code for _, reject in found] == ["REQUIRES", "CONFLICT"]
    assert problems(read_strategy(["needy", "compile"]).choices, context) == []


def test_registered_name_cannot_be_taken_twice(needy):
    with pytest.raises(PluginError, match="exists already"):
        register(Needy())
    with pytest.raises(PluginError, match="lacks"):
        register(object())


def test_numerics_is_the_strongest():
    assert numerics_of(()) is Numerics.EXACT
    assert numerics_of(read_strategy(["compile"]).choices) is Numerics.REORDER
    mixed = read_strategy(["compile", "precision"]).choices
    assert numerics_of(mixed) is Numerics.LOW_PRECISION


def test_arrange_is_stable_under_permutation():
    choices = read_strategy(["compile", "precision", "micro_batch"]).choices
    assert arrange(reversed(choices)) == choices


def test_strategy_error_is_a_format_error_for_text():
    with pytest.raises(PlanFormatError):
        read_strategy("fastest")
