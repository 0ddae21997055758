"""Every planted bug is caught, for the reason that it is one, and no healthy plan is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from drivetrain_core import Reject
from drivetrain_testing import run_ranks

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import silent_bugs

# Of these programs and bugs, what the guard says must be the cause.
CAUSES = {
    "residual: bug_stale_optimizer": "do not train",
    "residual: bug_optimizer_on_copies": "16 parameter(s) do not train",
    "residual: bug_partial_optimizer": "8 parameter(s) do not train",
    "convolutions: bug_dropped_scheduler": "does not follow the learning rate",
    "convolutions: bug_doubled_scheduler": "the scheduler has counted 6 steps",
    "tied: bug_dropped_clipping": "clipping differs",
    "recurrent: bug_dropped_clipping": "clipping differs",
    "recurrent: bug_halved_updates": "the parameters go 50.0% of the baseline's way",
    "residual: bug_frozen_layer": "get no gradient: stem.weight",
    "residual: bug_short_gradient": "the gradient differs for stem.weight",
    "residual: bug_detached_branch": "the gradient differs for",
    "convolutions: bug_scaled_loss": "every gradient is 0.500 times",
    "tied: bug_broken_tie": "the tie of embedding.weight and head.weight is broken",
    "residual: bug_micro_batches_summed": "every gradient is 2.000 times",
    "residual: bug_uneven_micro_batches": "the gradient differs for",
    "residual: bug_dropped_micro_batch": "8 samples go through the forward",
    "residual: bug_loader_skips": "batch 2 of the loader is batch 3",
    "tied: bug_loader_repeats": "batch 2 of the loader is batch 1",
    "tied: bug_loader_reorders": "holds other samples",
    "residual: bug_loader_mispairs": "holds other samples",
    "residual: bug_loader_trims": "has 15 samples, the program's has 16",
    "residual: bug_evaluation_mode": "left in evaluation mode",
    "tied: bug_evaluation_inside": "dropout does nothing",
    "convolutions: bug_doubled_forward": "the buffer differs for layers.1.running_mean",
    "counting: bug_doubled_forward": "the buffer differs for layers.0.calls",
    "counting: activation_checkpoint": "the buffer differs for layers.0.calls",
    "residual: bug_bf16_without_masters": "do not train",
    "residual: precision + bug_slightly_wrong_gradient": "the gradient differs",
    "2 ranks: bug_no_averaging": "the ranks drift apart",
    "2 ranks: bug_averaging_by_sum": "summed over the 2 ranks",
    "2 ranks: bug_averaging_twice": "divided by the 2 ranks twice",
    "2 ranks: bug_one_left_out": "the ranks drift apart in head.bias",
    "2 ranks: bug_same_loader": "only 8 different samples of 16",
    "2 ranks: bug_same_batch": "the gradient differs",
    "2 ranks: bug_root_not_sharded": "the ranks drift apart in",
    "2 ranks: bug_optimizer_before_sharding": "do not train",
}


@pytest.fixture(scope="module")
def answers():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    wrong, right = silent_bugs.answers_here()
    torch.set_num_threads(threads)
    more = run_ranks(silent_bugs.answers_of_rank, 2)
    assert more[0] == more[1]
    return {**wrong, **more[0][0]}, {**right, **more[0][1]}


@pytest.mark.slow
def test_silent_bugs_are_all_caught(answers):
    missed = [title for title, a in answers[0].items() if not isinstance(a, Reject)]
    assert not missed
    assert len(answers[0]) >= 40


@pytest.mark.slow
def test_silent_bugs_are_caught_for_their_cause(answers):
    found = {title: answers[0][title].because for title in CAUSES}
    assert {t: b for t, b in found.items() if CAUSES[t] not in b} == {}


@pytest.mark.slow
def test_silent_bugs_are_not_seen_in_healthy_plans(answers):
    alarms = {t: a.because for t, a in answers[1].items() if isinstance(a, Reject)}
    assert alarms == {}
    assert len(answers[1]) >= 35


@pytest.mark.slow
def test_silent_bugs_are_caught_in_trials():
    payload = silent_bugs.payload_of(silent_bugs.programs()["residual"])
    bugs = {b.name: b for _, b in silent_bugs.BUGS}
    chosen = [bugs["bug_loader_skips"], silent_bugs.BESIDE[0][1]]
    plans = {
        "loader": ["bug_loader_skips"],
        "below bf16": ["precision", "bug_slightly_wrong_gradient"],
        "healthy": ["precision", "data_loading"],
    }
    with silent_bugs.registered(*chosen):
        answers = silent_bugs.in_trials(
            payload,
            {k: silent_bugs.choices_of(p, payload.context) for k, p in plans.items()},
        )
    assert "batch 2 of the loader is batch 3" in answers["loader"].because
    assert "without its low precision" in answers["below bf16"].because
    assert "stem.weight" in answers["below bf16"].because
    assert not isinstance(answers["healthy"], Reject)
