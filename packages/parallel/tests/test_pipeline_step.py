"""Training through the schedules of torch, against one process."""

import pipeline_models as pm
import pytest
import torch
import torch.distributed as dist

from drivetrain_core import PlanError
from drivetrain_core._program import check_loss
from drivetrain_parallel.pipeline import (
    SCHEDULES,
    PipelineStep,
    build_stages,
    stages_per_rank,
)
from drivetrain_testing import run_ranks

NUM = 4
WEIGHTS = [0.1, 0.2, 0.3, 0.4]


def train(kind, loss, batch, schedules, **options):
    """Returns, for each schedule, how far a rank is from one process after 3 steps."""
    torch.set_num_threads(1)

    def loss_of(model, batch):
        found = loss(model, batch)
        check_loss(found)  # as a program may
        return found

    steps = [[batch(seed=10 * step + n) for n in range(NUM)] for step in range(3)]
    expected = pm.train_whole(pm.build(kind, **options), loss_of, steps, WEIGHTS)
    found = {}
    for schedule in schedules:
        num_stages = dist.get_world_size() * stages_per_rank(schedule)
        model, plan = pm.make(kind, loss_of, batch(), num_stages, **options)
        losses, parameters, _ = pm.train_stages(
            model, plan, loss_of, steps, WEIGHTS, schedule
        )
        found[schedule] = {
            "loss": max(abs(a - b) for a, b in zip(losses, expected[0], strict=True)),
            "parameters": max(
                float((parameters[n] - expected[1][n]).abs().max()) for n in parameters
            ),
            "names": set(parameters),
        }
    return found, set(expected[1])


def check(results):
    """All ranks are exact, agree, and hold every parameter together."""
    for schedule in results[0][0]:
        found = [ranks[schedule] for ranks, _ in results]
        for one in found:
            assert one["loss"] < 1e-5, (schedule, one)
            assert one["parameters"] < 1e-5, (schedule, one)
        assert set().union(*(one["names"] for one in found)) == results[0][1]


@pytest.mark.slow
def test_all_seven_schedules_train_a_tied_decoder_as_one_process_does():
    results = run_ranks(train, 2, pm.Decoder, pm.token_loss, pm.token_batch, SCHEDULES)
    assert len(results[0][0]) == 7
    check(results)


@pytest.mark.faults
def test_four_ranks_train_a_tied_decoder_with_eight_blocks():
    schedules = ("1f1b", "interleaved_1f1b")
    check(
        run_ranks(_train_eight, 4, pm.Decoder, pm.token_loss, pm.token_batch, schedules)
    )


def _train_eight(*args):
    return train(*args, blocks=8)


@pytest.mark.parametrize(
    ("kind", "loss_of", "batch"),
    [
        (pm.DirectHead, pm.token_loss, pm.token_batch),
        (pm.Conditioned, pm.noise_loss, pm.noise_batch),
        (pm.EncoderDecoder, pm.token_loss, pm.token_batch),
    ],
)
def test_what_runs_before_the_blocks_is_exact(kind, loss_of, batch):
    schedules = ("1f1b", "zbv_zero_bubble")
    check(run_ranks(train, 2, kind, loss_of, batch, schedules))


def _uneven():
    torch.set_num_threads(1)
    model, plan = pm.make(
        pm.Decoder, pm.token_loss, pm.token_batch(), 2, block=pm.TupleBlock, blocks=5
    )
    steps = [[pm.token_batch(seed=n) for n in range(NUM)]]
    expected = pm.train_whole(
        pm.build(pm.Decoder, block=pm.TupleBlock, blocks=5),
        pm.token_loss,
        steps,
        WEIGHTS,
    )
    losses, _, step = pm.train_stages(
        model, plan, pm.token_loss, steps, WEIGHTS, "1f1b"
    )
    assert abs(losses[0] - expected[0][0]) < 1e-5
    refused = []
    for sizes in ((2, 2, 2, 1), (2,)):
        parts = [pm.token_batch(size=n) for n in sizes]
        with pytest.raises(PlanError) as caught:
            step.run(parts, WEIGHTS[: len(sizes)])
        refused.append((caught.value.code.value, caught.value.because))
    with pytest.raises(PlanError, match="3 weights"):
        step.run(parts * 4, WEIGHTS[:3])
    # Nothing ran: the pipeline still works, with more and with shorter samples.
    whole = pm.build(pm.Decoder, block=pm.TupleBlock, blocks=5)
    losses = []
    for size, length, num in ((3, pm.LENGTH, 2), (1, 4, 4), (3, pm.LENGTH, 2)):
        parts = [pm.token_batch(size=size, length=length, seed=n) for n in range(num)]
        for stage in step.stages:
            named = dict(whole.named_parameters())
            for name, parameter in stage.model.named_parameters():
                canonical = plan.canonical_name(stage.stage_index, name)
                parameter.data.copy_(named[canonical])
        got = float(step.run(parts, [1 / num] * num))
        want = sum(float(pm.token_loss(whole, part)) for part in parts) / num
        losses.append(abs(got - want))
    return refused, losses


@pytest.mark.slow
def test_uneven_and_too_few_micro_batches_are_refused_on_every_rank():
    for refused, losses in run_ranks(_uneven, 2):
        (uneven, because), (few, why) = refused
        assert uneven == "UNEVEN_MICROBATCH"
        assert "[2, 2, 2, 1]" in because
        assert few == "CONFIG"
        assert "got 1" in why
        assert max(losses) < 1e-5


def _accumulate():
    """Runs twice without clearing: shared gradients must be summed once each."""
    torch.set_num_threads(1)
    model, plan = pm.make(pm.Decoder, pm.token_loss, pm.token_batch(), 2)
    whole = pm.build(pm.Decoder)
    group = dist.group.WORLD
    stages = build_stages(model, plan, (group.rank(),), pm.token_loss)
    step = PipelineStep(stages, plan, schedule="gpipe", group=group)
    for seed in (0, 5):
        parts = [pm.token_batch(seed=seed), pm.token_batch(seed=seed + 1)]
        step.run(parts, [0.5, 0.5])
        for part in parts:
            (pm.token_loss(whole, part) / 2).backward()
    wrong = {}
    for name, parameter in stages[0].model.named_parameters():
        expected = whole.get_parameter(plan.canonical_name(group.rank(), name)).grad
        wrong[name] = float((parameter.grad - expected).norm() / expected.norm())
    return {n: w for n, w in wrong.items() if w > 1e-4 and "bias" not in n}


def test_gradients_of_two_runs_add_up_those_of_shared_parameters_too():
    assert run_ranks(_accumulate, 2) == [{}, {}]


def _misfits():
    model, plan = pm.make(pm.Decoder, pm.token_loss, pm.token_batch(), 2)
    _, four = pm.make(pm.Decoder, pm.token_loss, pm.token_batch(), 4)
    group = dist.group.WORLD
    rank = group.rank()
    reasons = []

    def refused(stages, plan, schedule):
        with pytest.raises(PlanError) as caught:
            PipelineStep(stages, plan, schedule=schedule, group=group)
        reasons.append(caught.value.because)

    stages = build_stages(model, plan, (rank,), pm.token_loss)
    refused(stages, plan, "zbv_zero_bubble")
    refused(stages, four, "interleaved_1f1b")
    refused(stages, plan, "gpipe" if rank else "1f1b")
    stages[0].stage_index = 1
    refused(stages, plan, "gpipe")
    return reasons


def test_ranks_that_do_not_fit_together_all_hear_why():
    first, second = run_ranks(_misfits, 2)
    assert first == second
    assert "has 2 stages a rank, and the plan has 1" in first[0]
    assert "must hold stages (0, 2), and holds (0,)" in first[1]
    assert "ranks have different plans or schedules" in first[2]
    assert "on rank 0" in first[3]
    assert "holds (1,)" in first[3]
