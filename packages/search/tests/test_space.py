"""What a search may try: allowed, denied, never unasked, and not worth a trial."""

from __future__ import annotations

import dataclasses

import pytest

from drivetrain_core import (
    BaseOptimization,
    Choice,
    Code,
    Estimate,
    Measurement,
    Numerics,
    Ok,
    Option,
    Phase,
    PlanError,
    Reject,
    Slot,
    WorldFacts,
    register,
    unregister,
)
from drivetrain_core._registry import find
from drivetrain_core.builtin import BUILTINS
from drivetrain_search.space import (
    SlotSpace,
    base_plan,
    calm_plans,
    make_space,
    reference_plans,
    require,
    seed_plans,
    skip_reason,
)


class Own(BaseOptimization):
    """An optimization whose answers a test sets."""

    name = "own"
    slot = Slot.KERNELS
    phase = Phase.RUNTIME
    options = {"level": Option(1)}
    kind = Numerics.EXACT
    answer = Ok()
    best = None
    fails_in = ""

    def _maybe(self, method):
        if self.fails_in == method:
            message = f"{method} is broken"
            raise RuntimeError(message)

    def numerics(self, config):
        self._maybe("numerics")
        return self.kind

    def configs(self, context):
        self._maybe("configs")
        return [{"level": 1}, {"level": 2}]

    def check(self, context, config, plan):
        self._maybe("check")
        return self.answer

    def estimate(self, context, config, plan):
        self._maybe("estimate")
        return self.best

    def apply(self, state, config):
        pass


@pytest.fixture
def own():
    """A registered `Own`, with attributes replaced."""

    def make(**attributes):
        optimization = Own()
        for name, value in attributes.items():
            setattr(optimization, name, value)
        register(optimization)
        return optimization

    yield make
    unregister("own")


def names(space):
    return {choice.name for entry in space for choice in entry.candidates}


def of_slot(space, slot):
    return next((entry for entry in space if entry.slot is slot), None)


def test_space_has_one_entry_a_slot_and_full_options(context):
    space, _ = make_space(context)
    slots = [entry.slot for entry in space]
    assert len(set(slots)) == len(slots)
    assert slots[0] is Slot.PRECISION
    assert all(entry.optional for entry in space)
    for entry in space:
        for choice in entry.candidates:
            assert find(choice.name).slot is entry.slot
            assert find(choice.name).normalize(choice.config) == choice.config


def test_space_allows_only_what_is_allowed(context):
    space, rejected = make_space(context, allow=["precision"])
    assert names(space) == {"precision"}
    assert {r.plan.partition("(")[0] for r in rejected} <= {"precision"}
    assert make_space(context, allow=[]) == ((), ())


def test_space_leaves_out_what_is_denied(context):
    everything, _ = make_space(context)
    space, rejected = make_space(context, deny=["precision", "micro_batch"])
    assert names(space) == names(everything) - {"precision", "micro_batch"}
    assert not any(r.plan.startswith("precision") for r in rejected)


def test_space_denies_what_is_allowed_and_denied(context):
    space, _ = make_space(context, allow=["precision", "ddp"], deny=["precision"])
    assert "precision" not in names(space)


@pytest.mark.parametrize("where", ["allow", "deny"])
def test_space_with_an_unknown_name_suggests_the_nearest(context, where):
    with pytest.raises(PlanError, match="nearest: precision") as caught:
        make_space(context, **{where: ["precison"]})
    assert caught.value.code is Code.UNKNOWN


def test_space_rejects_with_the_reason_of_the_check(context, own):
    own(answer=Reject(Code.NEEDS_DEVICE, "no such device", "buy one"))
    space, rejected = make_space(context, allow=["own"])
    assert space == ()
    assert [(r.plan, r.code, r.because, r.fix) for r in rejected] == [
        (f"own(level={level})", "NEEDS_DEVICE", "no such device", "buy one")
        for level in (1, 2)
    ]


def test_space_never_changes_the_algorithm_unasked(context, own):
    own(kind=Numerics.CHANGES_ALGORITHM)
    space, rejected = make_space(context, allow=["own"])
    assert space == ()
    assert {r.code for r in rejected} == {Code.ALGORITHM}
    assert "['own']" in rejected[0].fix
    space, rejected = make_space(context, allow=["own"], changes_algorithm=True)
    assert (names(space), rejected) == ({"own"}, ())


@pytest.mark.parametrize("method", ["configs", "numerics", "check"])
def test_space_survives_an_optimization_that_raises(context, own, method):
    own(fails_in=method)
    space, rejected = make_space(context)
    assert "own" not in names(space)
    assert names(space) >= {"precision"}
    broken = [r for r in rejected if r.plan.startswith("own")]
    assert {r.code for r in broken} == {Code.PLUGIN}
    assert f"{method} is broken" in broken[0].because


def test_space_keeps_what_is_monotone(context):
    space, _ = make_space(context)
    for entry in space:
        flags = {find(c.name).monotone for c in entry.candidates}
        assert entry.monotone in flags


@pytest.fixture
def two_ranks(context):
    """The facts on two ranks."""
    return dataclasses.replace(context, world=WorldFacts(size=2, local_size=2))


def test_ranks_must_average_gradients_whatever_is_allowed(two_ranks):
    space, _ = make_space(two_ranks, allow=["precision"])
    entry = of_slot(space, Slot.DATA_PARALLEL)
    assert {c.name for c in entry.candidates} == {"ddp"}
    assert not entry.optional
    denied, _ = make_space(two_ranks, allow=["precision"], deny=["ddp"])
    assert of_slot(denied, Slot.DATA_PARALLEL) is None


def test_seed_plan_is_bf16_compiled_blocks_a_fused_optimizer_and_kept_memory(context):
    space, _ = make_space(context)
    seed = {choice.name: choice.config for choice in seed_plans(space, (), context)[0]}
    assert seed["precision"]["dtype"] == "bf16_autocast"
    assert "optimizer_impl" in seed
    wanted = {"precision", "compile", "optimizer_impl", "host_allocator"}
    assert set(seed) <= wanted
    assert ("compile" in seed) == (of_slot(space, Slot.COMPILE) is not None)


def test_seed_plan_keeps_the_baselines_other_choices(context):
    space, _ = make_space(context, allow=["precision"])
    baseline = (Choice("micro_batch", find("micro_batch").normalize(2)),)
    seed = seed_plans(space, baseline, context)[0]
    assert [choice.name for choice in seed] == ["precision", "micro_batch"]


def test_seed_plan_of_a_space_without_it_is_none(context):
    space, _ = make_space(context, allow=["micro_batch"])
    assert seed_plans(space, (), context) == []
    assert seed_plans((), (), context) == []


def test_seed_plans_go_on_without_what_may_be_slow_here(context):
    space, _ = make_space(context, allow=["precision", "compile", "optimizer_impl"])
    found = [{c.name for c in seed} for seed in seed_plans(space, (), context)]
    if of_slot(space, Slot.COMPILE) is None:
        pytest.skip("nothing can be compiled here")
    assert found == [
        {"precision", "compile", "optimizer_impl"},
        {"compile", "optimizer_impl"},
        {"precision", "optimizer_impl"},
        {"optimizer_impl"},
    ]


def test_reference_plans_need_less_and_less_memory(context):
    space, _ = make_space(context)
    plans = reference_plans(space, ())
    savers = ["activation_checkpoint", "micro_batch"]
    expected = [s for s in savers if s in names(space)]
    assert expected
    for i, plan in enumerate(plans):
        assert {choice.name for choice in plan} == set(expected[: i + 1])
    for choice in plans[-1]:
        assert choice == of_slot(space, find(choice.name).slot).candidates[-1]
    assert reference_plans((), ()) == []


def test_reference_plans_replace_the_baselines_own_choice(two_ranks):
    space, _ = make_space(two_ranks, allow=["micro_batch", "fsdp"])
    baseline = (Choice("ddp", find("ddp").normalize(None)),)
    (first, *_, last) = reference_plans(space, baseline)
    assert "ddp" in {choice.name for choice in first}
    slots = [find(choice.name).slot for choice in last]
    assert len(slots) == len(set(slots))
    assert Slot.DATA_PARALLEL in slots


OWN = (Choice("own", {"level": 1}),)


def test_skip_reason_is_none_for_a_plan_that_deserves_a_trial(context, own):
    own()
    assert skip_reason(OWN, context) is None
    assert skip_reason((), context) is None


def test_skip_reason_is_what_cannot_be_used(context, own):
    own(answer=Reject(Code.NEEDS_DEVICE, "no such device", "buy one"))
    reason = skip_reason(OWN, context)
    assert (reason.plan, reason.code) == ("own(level=1)", "NEEDS_DEVICE")
    assert (reason.because, reason.fix) == ("no such device", "buy one")


@pytest.mark.parametrize(
    ("step_time", "skipped"), [(0.5, False), (0.99, False), (0.995, True), (1.2, True)]
)
def test_skip_reason_is_an_estimate_without_a_gain(context, own, step_time, skipped):
    own(best=Estimate(step_time=step_time, because="nothing to win"))
    reason = skip_reason(OWN, context)
    assert (reason is not None) == skipped
    if skipped:
        assert reason.code == Code.SLOWER
        assert reason.because == "no trial: nothing to win"


def test_skip_reason_of_workers_is_the_measured_wait_for_data(context):
    loop = dataclasses.replace(context.loop, loader="torch")
    waits_not = Measurement(step_times_s=(1.0,), samples_per_step=8, data_share=0.001)
    facts = dataclasses.replace(context, loop=loop).with_baseline(waits_not)
    choice = Choice("data_loading", find("data_loading").normalize({"workers": 1}))
    assert "waits only 0.1% for its data" in skip_reason((choice,), facts).because


def test_every_builtin_is_a_candidate_or_says_why_not(context):
    space, rejected = make_space(context)
    spoken = names(space) | {r.plan.partition("(")[0] for r in rejected}
    silent = set(BUILTINS) - spoken
    # These propose nothing where there is nothing that they could change.
    for name in silent:
        assert list(find(name).configs(context)) == []


def test_given_candidates_stand_in_for_the_proposed_ones(context):
    given = {"micro_batch": (Choice("micro_batch", {"num": 2}),)}
    space, _ = make_space(context, allow=["micro_batch"], given=given)
    assert [entry.candidates for entry in space] == [given["micro_batch"]]


def test_given_candidates_that_cannot_be_used_are_ruled_out(context):
    given = {"micro_batch": (Choice("micro_batch", {"num": 10_000}),)}
    space, rejected = make_space(context, allow=["micro_batch"], given=given)
    assert space == ()
    assert [r.code for r in rejected] == [Code.UNEVEN_MICROBATCH]


def test_required_choice_is_the_only_answer_of_its_slot(context):
    space, _ = make_space(context, allow=["precision", "compile"])
    fixed = Choice("precision", {"dtype": "bf16_params"})
    found = {e.slot: e for e in require(space, [fixed], [])}
    assert found[Slot.PRECISION].candidates == (fixed,)
    assert not found[Slot.PRECISION].optional
    assert found[Slot.COMPILE].optional


def test_required_name_keeps_its_options_open(context):
    space, _ = make_space(context, allow=["precision"])
    (entry,) = require(space, [], ["precision"])
    assert entry.candidates == space[0].candidates
    assert not entry.optional


def test_required_choice_needs_no_candidates_of_its_own(context):
    fixed = Choice("micro_batch", {"num": 2})
    (entry,) = require((), [fixed], [])
    assert entry.candidates == (fixed,)


@pytest.mark.parametrize(
    ("fixed", "named", "match"),
    [
        ([], ["data_loading"], "no configuration of it can be tried here"),
        ([Choice("precision", {"dtype": "fp32"})], ["precision"], "so is precision"),
    ],
)
def test_requirements_that_cannot_be_met_are_named(context, fixed, named, match):
    space, _ = make_space(context, allow=["precision", "data_loading"])
    with pytest.raises(PlanError, match=match):
        require(space, fixed, named)


def test_base_plan_holds_the_mildest_form_of_what_is_required(context):
    space, _ = make_space(context, allow=["precision", "compile"])
    space = require(space, [], ["compile"])
    mildest = next(e for e in space if e.slot is Slot.COMPILE).candidates[0]
    assert base_plan(space, (), ["compile"]) == (mildest,)
    assert base_plan(space, (), []) == ()


def test_busy_machine_is_asked_with_fewer_threads():
    threads = tuple(Choice("cpu_threads", {"num": n}) for n in (4, 1))
    entry = SlotSpace(slot=Slot.CPU_THREADS, candidates=threads, monotone=False)
    low = Choice("precision", {"dtype": "bf16_autocast"})
    (plan,) = calm_plans([entry], (threads[0], low))
    assert set(plan) == {threads[1], low}
    assert calm_plans([], (low,)) == []
