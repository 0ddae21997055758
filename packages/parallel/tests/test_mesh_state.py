"""Programs over a mesh are saved as the program as written, and restored anywhere."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace

import laid_programs
import pytest
import torch
from laid_programs import (
    Decoder,
    adam,
    alone,
    batches,
    loss,
    program,
    restore_and_save,
    size,
    train,
    train_and_save,
)
from torch import nn

from drivetrain_core import CheckpointError, NamesError, accelerate
from drivetrain_core.services import (
    Chunk,
    ChunkedTensor,
    DcpCheckpointer,
    merge_entries,
    pack_state,
)
from drivetrain_parallel.state.model_entry import ModelEntry
from drivetrain_parallel.state.optimizer_entry import OptimizerEntry
from drivetrain_parallel.state.parallelized_model import ParallelizedModel, whole_model
from drivetrain_testing import run_ranks


def packed(folder):
    model, optimizer = alone(folder)
    return pack_state({"model": model, "optimizer": optimizer})


def require_same(one, other):
    assert list(one.tensors) == list(other.tensors)
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, other.tensors[name]), name
    assert one.entries == other.entries


def check_chain(folder, meshes):
    """Saves under the first mesh, then restores and saves under each other one."""
    at = folder / "0"
    losses = run_ranks(train_and_save, size(meshes[0]), meshes[0], at, timeout_s=120)
    saved = packed(at)
    model, optimizer = alone()
    expected = pack_state({"model": model, "optimizer": optimizer})
    assert saved.entries == expected.entries
    for name, tensor in expected.tensors.items():
        torch.testing.assert_close(saved.tensors[name], tensor, rtol=2e-4, atol=2e-5)
    model, optimizer = alone(at)
    batch = batches()[0]
    after = float(loss(model(batch[0]), batch).detach())
    for number, mesh in enumerate(meshes[1:], 1):
        new = folder / str(number)
        found = run_ranks(restore_and_save, size(mesh), mesh, at, new, timeout_s=120)
        assert found[0][0] == 7
        assert found[0][1] == pytest.approx([after], rel=1e-5)
        require_same(packed(new), saved)
        at = new
    return losses


@pytest.mark.slow
def test_a_checkpoint_of_one_mesh_is_restored_under_another_to_the_bit(tmp_path):
    check_chain(tmp_path, [{"pipeline": 2, "tensor": 2}, {"tensor": 2}])


@pytest.mark.faults
def test_a_checkpoint_goes_from_three_axes_through_every_other_mesh(tmp_path):
    meshes = [
        {"pipeline": 2, "shard": 2, "tensor": 2},
        {"tensor": 4},
        {"shard": 2},
        {"pipeline": 2, "shard": 2},
        {"replicate": 2, "tensor": 2},
        {"shard": 2, "tensor": 2},
        {"pipeline": 4},
        {"pipeline": 2, "shard": 2, "tensor": 2},
    ]
    check_chain(tmp_path, meshes)


def _misfits(folder):
    """Tries to restore checkpoints that do not fit, on two stages."""
    accelerated = program({"pipeline": 2})
    train(accelerated, 1)
    before = {
        name: [t.clone() for _, t in tensor.local_chunks()]
        for name, tensor in accelerated.state_dict()["model"].items()
    }
    found = {}
    for name in ("shapes", "names", "groups"):
        try:
            DcpCheckpointer(folder / name).restore(accelerated.state())
        except CheckpointError as error:
            found[name] = str(error)
    try:
        state = accelerated.state()
        DcpCheckpointer(folder / "new").save(1, {"optimizer": state["optimizer"]})
    except NamesError as error:
        found["alone"] = str(error)
    for name, tensor in accelerated.state_dict()["model"].items():
        for (_, now), was in zip(tensor.local_chunks(), before[name], strict=True):
            assert torch.equal(now, was), name
    return found


def save_the_module(mesh):
    """Returns why a checkpoint of the module of this rank is refused."""
    accelerated = program(mesh)
    with pytest.raises(NamesError) as caught:
        pack_state({"model": accelerated.module, "optimizer": accelerated.optimizer})
    pack_state(accelerated.state())
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [{"pipeline": 2}, {"tensor": 2}])
def test_what_a_rank_has_of_a_model_is_not_saved_as_the_model(mesh):
    for reason in run_ranks(save_the_module, 2, mesh, timeout_s=120):
        assert reason.startswith("'model' is what this rank has of a model over a mesh")
        assert "accelerated.state()" in reason


def test_shards_of_whole_tensors_are_saved_as_they_are():
    assert run_ranks(saved_names, 2) == [["model.weight", "model.bias"]] * 2


def saved_names():
    accelerated = accelerate(
        nn.Linear(2, 1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        [torch.ones(4, 2)],
        lambda output, _: output.mean(),
        strategy=[("mesh", {"shard": 2})],
        progress=False,
    )
    return list(pack_state({"model": accelerated.module}).tensors)


def test_a_checkpoint_that_does_not_fit_is_refused_on_all_ranks(tmp_path):
    model = Decoder()
    save = {"model": model, "optimizer": adam(model.parameters())}
    DcpCheckpointer(tmp_path / "groups").save(
        1, {**save, "optimizer": torch.optim.AdamW(model.parameters())}
    )
    model.norm = nn.LayerNorm(laid_programs.WIDTH + 1)
    DcpCheckpointer(tmp_path / "shapes").save(1, save)
    model.norm = nn.Identity()
    DcpCheckpointer(tmp_path / "names").save(1, save)
    for found in run_ranks(_misfits, 2, tmp_path, timeout_s=120):
        assert "'model.norm.weight' is [32]" in found["shapes"]
        assert (
            "'model.norm.weight' is here, but not in the checkpoint" in found["names"]
        )
        assert "group 0 of the parameters" in found["groups"]
        assert "save and restore the model with it" in found["alone"]


def _through_dcp(folder):
    """Saves with torch's own functions under one mesh, and loads under another."""
    import torch.distributed.checkpoint as dcp

    first = program({"tensor": 2})
    train(first, 1)
    state = first.state_dict()
    dcp.save(state, checkpoint_id=folder)
    expected = pack_state(first.state())
    second = program({"pipeline": 2}, seed=1)
    try:
        second.load_state_dict(copy.deepcopy(state))
    except CheckpointError as error:
        refusal = str(error)
    train(second, 1)
    state = second.state_dict()
    dcp.load(state, checkpoint_id=folder)
    second.load_state_dict(state)
    DcpCheckpointer(folder / "second").save(1, second.state())
    again = program({"tensor": 2}, seed=2)
    train(again, 1)
    DcpCheckpointer(folder / "second").restore(again.state())
    for name, tensor in pack_state(again.state()).tensors.items():
        blocks = zip(
            expected.tensors[name].local_chunks(), tensor.local_chunks(), strict=True
        )
        assert all(torch.equal(a[1], b[1]) and a[0] == b[0] for a, b in blocks), name
    kept = copy.deepcopy(again.state_dict())
    losses = train(again, 1)
    again.load_state_dict(kept)
    return refusal, losses, train(again, 1)


@pytest.mark.faults
def test_torch_itself_saves_and_loads_the_state_dict_of_a_mesh(tmp_path):
    for refusal, losses, repeated in run_ranks(
        _through_dcp, 2, tmp_path, timeout_s=120
    ):
        assert "let it step once before" in refusal
        assert losses == repeated


def test_a_program_without_a_mesh_gives_its_own_objects():
    accelerated = program({})
    state = accelerated.state()
    assert state["model"] is accelerated.module
    assert state["optimizer"] is accelerated.optimizer


def laid(model):
    return ModelEntry(ParallelizedModel([model], whole_model(model)))


def test_model_with_a_state_of_its_own_is_refused_over_a_mesh():
    model = nn.Linear(2, 2)
    model.register_state_dict_post_hook(lambda *_: None)
    with pytest.raises(TypeError, match="by hooks or overrides of state_dict"):
        pack_state({"model": laid(model)})


def test_chunks_are_read_and_written_by_their_offset():
    one, two = torch.zeros(2, 3), torch.ones(1, 3)
    tensor = ChunkedTensor(
        (3, 3), [Chunk(offset=(0, 0), tensor=one), Chunk(offset=(2, 0), tensor=two)]
    )
    assert [offset for offset, _ in tensor.local_chunks()] == [(0, 0), (2, 0)]
    items = tensor.__create_write_items__("w", tensor)
    assert [tuple(item.index.offset) for item in items] == [(0, 0), (2, 0)]
    assert tensor.__get_tensor_shard__(items[1].index).data_ptr() == two.data_ptr()
    with pytest.raises(ValueError, match="holds no block of 'w'"):
        tensor.__get_tensor_shard__(replace(items[1].index, offset=torch.Size((1, 0))))
    with pytest.raises(TypeError, match="no values of its own"):
        torch.add(tensor, 1)
    copied = copy.deepcopy(tensor)
    copied.chunks[0].tensor.fill_(7.0)
    assert one.sum() == 0


def test_what_another_rank_saves_is_read_and_not_written():
    chunk = Chunk(offset=(0,), tensor=torch.ones(2), writes=False)
    tensor = ChunkedTensor((2,), [chunk])
    assert tensor.written() == []
    assert len(tensor.__create_chunk_list__()) == 1


def test_entries_with_other_values_are_not_merged():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    entry = OptimizerEntry(optimizer, laid(model), [["weight", "bias"]])
    state = {"model": entry._model, "optimizer": entry}
    one, _ = entry.pack("optimizer", state)
    optimizer.param_groups[0]["lr"] = 0.2
    other, _ = entry.pack("optimizer", state)
    assert merge_entries("optimizer", [one, one])["plain"] == one["plain"]
    with pytest.raises(
        ValueError, match=r"rank 1 .* different values of 'param_groups"
    ):
        merge_entries("optimizer", [one, other])


def test_an_optimizer_with_other_groups_is_refused():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    entry = OptimizerEntry(optimizer, laid(model), [["weight"], ["bias"]])
    with pytest.raises(NamesError, match=r"group 0 .* 'bias', which was not"):
        entry.state()


def test_an_optimizer_whose_state_has_no_names_is_refused():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.LBFGS(model.parameters())
    loss_of = functools.partial(model, torch.ones(1, 2))

    def closure():
        optimizer.zero_grad()
        found = loss_of().square().sum()
        found.backward()
        return found

    optimizer.step(closure)
    entry = OptimizerEntry(optimizer, laid(model), [["weight", "bias"]])
    with pytest.raises(NamesError, match="LBFGS keeps state"):
        entry.state()
