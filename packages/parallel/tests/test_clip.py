"""Gradients over a mesh are clipped to the norm that the program as written has."""

import mesh_programs as programs
import pytest
import torch

from drivetrain_core import accelerate
from drivetrain_core.extending import data_part_of
from drivetrain_parallel.clip import clip_grad_norm
from drivetrain_testing import run_ranks


def clip(dtypes):
    """Returns norms and gradients, as this package and as torch clip them."""
    found = []
    for way in (torch.nn.utils.clip_grad_norm_, clip_one):
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.ones(5, dtype=d)) for d in dtypes]
        for one in parameters:
            one.grad = torch.randn(5).to(one.dtype)
        norm = way(parameters, 0.25)
        found.append((norm, [one.grad for one in parameters]))
    return found


def clip_one(parameters, norm):
    return clip_grad_norm(parameters, norm, counted=lambda _: 1.0)


@pytest.mark.parametrize(
    "dtypes",
    [(torch.float32,), (torch.float64,), (torch.float64, torch.float32)],
    ids=["single", "double", "both"],
)
def test_norm_is_that_of_torch_in_its_dtype(dtypes):
    [((norm, wanted), (found_norm, found))] = run_ranks(clip, 1, dtypes)
    torch.testing.assert_close(found_norm, norm, rtol=1e-6, atol=0, check_dtype=False)
    assert (found_norm.dtype == torch.float64) is (torch.float64 in dtypes)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=0)


def lay(axis):
    """Returns which part of a batch the model on this rank says that it reads."""
    accelerated = accelerate(
        programs.Model,
        programs.sgd,
        programs.batches(),
        programs.loss,
        strategy=[("mesh", {axis: 2})],
        own_loop=True,
        progress=False,
    )
    part = data_part_of(accelerated.module)
    accelerated.close()
    return part


@pytest.mark.parametrize(
    ("axis", "parts"), [("context", [(1, 0), (1, 0)]), ("shard", [(2, 0), (2, 1)])]
)
def test_model_says_which_part_of_a_batch_its_rank_reads(axis, parts):
    assert run_ranks(lay, 2, axis) == parts
