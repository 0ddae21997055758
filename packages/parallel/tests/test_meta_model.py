"""Models that no process holds whole: built on meta, planned, cut, and then made."""

from __future__ import annotations

import pytest
import torch
from laid_programs import (
    Decoder,
    alone,
    batches,
    build_wide,
    loss,
    program,
    size,
    train,
)
from torch import nn

from drivetrain_core import PlanError, ProgramError
from drivetrain_core._model.meta_model import move_to
from drivetrain_core.services import DcpCheckpointer
from drivetrain_parallel.meta.flow_mode import FlowMode
from drivetrain_parallel.meta.initialize import draw_weights, parts_of
from drivetrain_parallel.meta.meta_model import (
    build_meta_model,
    parameters_on_meta,
    require_meta_model,
)
from drivetrain_testing import RankError, run_ranks

CPU = torch.device("cpu")


def _reset(mesh, folder):
    accelerated = program(mesh, weights="reset", seed=3)
    DcpCheckpointer(folder).save(0, accelerated.state())
    return train(accelerated, 2)


def _restore(mesh, folder):
    accelerated = program(mesh, weights="restore")
    hollow = all(
        bool(local.isnan().all())
        for name, tensor in accelerated.state_dict()["model"].items()
        for _, local in tensor.local_chunks()
        if name != "places"
    )
    DcpCheckpointer(folder).restore(accelerated.state())
    return hollow, train(accelerated, 2)


def plain_losses(folder):
    model, optimizer = alone(folder)
    losses = []
    for batch in batches()[:2]:
        found = loss(model(batch[0]), batch)
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(found.detach()))
    return losses


@pytest.mark.slow
def test_weights_that_are_made_in_parts_are_those_of_one_process(tmp_path):
    mesh = {"pipeline": 2, "tensor": 2}
    found = run_ranks(_reset, size(mesh), mesh, tmp_path / "one", timeout_s=120)
    expected = plain_losses(tmp_path / "one")
    assert found[0] == pytest.approx(expected, rel=1e-5)
    model, _ = alone(tmp_path / "one")
    with parameters_on_meta():
        hollow = Decoder()
    drawn = {}
    for part in parts_of(hollow):
        drawn |= draw_weights(hollow, part, CPU, seed=3)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, drawn[name]), name


@pytest.mark.faults
def test_weights_are_the_same_on_any_mesh_and_come_from_a_checkpoint(tmp_path):
    losses = []
    for number, mesh in enumerate(({"shard": 2}, {"pipeline": 2, "shard": 2})):
        folder = tmp_path / str(number)
        losses.append(run_ranks(_reset, size(mesh), mesh, folder, timeout_s=120)[0])
        assert losses[-1] == pytest.approx(plain_losses(folder), rel=1e-5)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    mesh = {"shard": 2, "tensor": 2}
    for hollow, found in run_ranks(
        _restore, size(mesh), mesh, tmp_path / "0", timeout_s=120
    ):
        assert hollow
        assert found == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.faults
def test_a_model_that_fits_no_process_is_built_by_four():
    whole, limit = 256 << 20, 400 << 20
    with pytest.raises(RankError, match="can't allocate memory"):
        run_ranks(build_wide, 4, "build", limit, timeout_s=120)
    for grown in run_ranks(build_wide, 4, "reset", limit, timeout_s=120):
        assert grown < whole * 3 // 4


def test_buffers_keep_their_values_and_ties_stay():
    with parameters_on_meta():
        model = Decoder()
    assert all(p.is_meta for p in model.parameters())
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.places, Decoder().places)
    assert nn.Linear(2, 2).weight.is_meta is False


def test_what_is_on_meta_stays_there_when_the_rest_moves():
    with parameters_on_meta():
        model = Decoder()
    weight = model.embed.weight
    moved = move_to(model, CPU)
    assert moved.embed.weight is weight
    assert moved.places.device == CPU


class Peeking(nn.Module):
    """Cannot be built without weights."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.size = int(self.weight.sum())


class Silent(nn.Module):
    """Has a parameter that nothing sets."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.gain = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.inner(x) * self.gain


def test_a_model_that_reads_its_weights_is_refused():
    with pytest.raises(ProgramError, match="cannot be built without weights"):
        build_meta_model(Peeking)


def test_a_parameter_that_nothing_sets_is_named():
    with parameters_on_meta():
        model = Silent()
    with pytest.raises(ProgramError, match=r"Silent.* has a parameter 'gain'"):
        require_meta_model(model, "reset")
    require_meta_model(model, "restore")
    require_meta_model(model, lambda module: None)
    part = parts_of(model)[-1]
    with pytest.raises(ProgramError, match="'gain' that nothing sets"):
        draw_weights(model, part, CPU, seed=0, given=lambda module: None)
    assert all(p.is_meta for p in model.parameters())


def test_a_function_of_the_user_draws_the_weights():
    with parameters_on_meta():
        model = Silent()

    def ones(module):
        for parameter in module.parameters(recurse=False):
            parameter.fill_(1.0)

    found = {}
    for part in parts_of(model):
        found |= draw_weights(model, part, CPU, seed=0, given=ones)
    assert sorted(found) == ["gain", "inner.bias", "inner.weight"]
    assert all(bool((t == 1).all()) for t in found.values())


def test_weights_depend_on_the_seed_and_the_name():
    with parameters_on_meta():
        model = Decoder()
    one, again, other = (
        draw_weights(model, "blocks.0", CPU, seed=seed) for seed in (0, 0, 1)
    )
    next_block = draw_weights(model, "blocks.1", CPU, seed=0)
    name = "qkv.weight"
    assert torch.equal(one[f"blocks.0.{name}"], again[f"blocks.0.{name}"])
    assert not torch.equal(one[f"blocks.0.{name}"], other[f"blocks.0.{name}"])
    assert not torch.equal(one[f"blocks.0.{name}"], next_block[f"blocks.1.{name}"])


def test_what_does_not_depend_on_weights_has_values():
    with parameters_on_meta():
        model = Decoder()
    with FlowMode():
        places = torch.arange(4, device=model.embed.weight.device)
        assert places.tolist() == [0, 1, 2, 3]
        found = loss(model(batches()[0][0]), batches()[0])
        assert found.is_meta
        found.backward()
    assert model.blocks[0].qkv.weight.grad.is_meta


@pytest.mark.parametrize(
    ("weights", "message"),
    [("resett", "weights must be one of build"), ("reset", "the plan has no mesh")],
)
def test_weights_that_cannot_be_made_are_refused(weights, message):
    with pytest.raises((ProgramError, PlanError), match=message):
        program({}, weights=weights)


def test_a_model_with_values_is_not_built_again():
    with pytest.raises(ProgramError, match="pass a function that builds the model"):
        require_meta_model(Decoder(), "reset")
