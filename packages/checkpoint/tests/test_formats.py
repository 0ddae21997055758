"""Checkpoints of other formats are told apart, and loaded by name."""

import json
import pickle
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from drivetrain_checkpoint import (
    Checkpointer,
    CorruptCheckpointError,
    ForeignCheckpointError,
    detect,
    load,
    read_dcp,
    read_safetensors,
    torch_save,
)
from drivetrain_checkpoint._formats import safetensors_source as module
from drivetrain_checkpoint._layout.safetensors_layout import plan_safetensors
from drivetrain_checkpoint._restore.read_blocks import read_blocks
from drivetrain_checkpoint._restore.read_plan import Wanted
from drivetrain_core import CheckpointError
from drivetrain_testing import run_ranks

CODES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64"}


class Trap:
    """An object whose pickle runs code."""

    def __reduce__(self):
        return print, ("it ran",)


def write_safetensors(path, tensors):
    described = [(n, CODES[t.dtype], tuple(t.shape)) for n, t in tensors.items()]
    image = plan_safetensors(described)
    content = bytearray(image.header.ljust(image.size_bytes, b"\0"))
    for slot in image.slots:
        raw = tensors[slot.name].contiguous().view(-1).view(torch.uint8)
        content[slot.start : slot.start + slot.size_bytes] = bytes(raw.tolist())
    path.write_bytes(content)


def sharded(folder, tensors):
    """Writes each tensor to a file of its own, with an index."""
    folder.mkdir()
    weight_map = {}
    for number, (name, tensor) in enumerate(tensors.items()):
        weight_map[name] = f"model-{number}.safetensors"
        write_safetensors(folder / weight_map[name], {name: tensor})
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def written(kind, folder, tensors):
    """Writes tensors in one of the formats, and returns where."""
    if kind == "drivetrain":
        checkpointer = Checkpointer(folder, job="foreign")
        checkpointer.save(1, dict(tensors)).wait(60)
        checkpointer.stop_daemon()
        return folder
    if kind == "dcp":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch_dcp.save({**tensors, "epoch": 3}, checkpoint_id=folder)
        return folder
    if kind == "safetensors":
        return sharded(folder, tensors)
    torch_save({**tensors, "epoch": 3}, folder)
    return folder


@pytest.mark.parametrize("kind", ["drivetrain", "dcp", "safetensors", "torch"])
def test_every_format_is_told_and_loaded(tmp_path, kind):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[1].to(torch.bfloat16)
    place = written(kind, tmp_path / "saved", model.state_dict())
    assert detect(place) == kind
    again = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    again[1].to(torch.bfloat16)
    assert load(place, again) == []
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    state = {"0": {"weight": torch.zeros(4, 3)}, "1.bias": torch.zeros(2)}
    assert len(load(place, state, strict=False, cast=True)) == 2
    assert torch.equal(state["0"]["weight"], model[0].weight)
    assert torch.equal(state["1.bias"], model[1].bias.float())
    with pytest.raises(CheckpointError) as found:
        load(place, {"0.weight": torch.zeros(4, 4), "2.weight": torch.zeros(1)})
    assert found.value.mismatches[:3] == (
        "'0.weight' is [4, 4] torch.float32 here, but [4, 3] torch.float32 in the checkpoint",
        "'2.weight' is here, but not in the checkpoint",
        "'0.bias' is in the checkpoint, but not here",
    )


def test_tied_weights_are_found_under_either_name(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    for name in ("0.weight", "1.weight"):
        write_safetensors(tmp_path / "model.safetensors", {name: torch.ones(2, 2)})
        with torch.no_grad():
            model[0].weight.zero_()
        assert load(tmp_path, model) == []
        assert model[1].weight.sum() == 4


def test_key_chooses_part_of_a_checkpoint(tmp_path):
    model, optimizer = nn.Linear(2, 1), {"state": {}, "groups": [1]}
    torch_save({"model": model.state_dict(), "optimizer": optimizer}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="is key= one of model"):
        load(tmp_path / "a.pt", nn.Linear(2, 1))
    again = nn.Linear(2, 1)
    load(tmp_path / "a.pt", again, key="model")
    assert torch.equal(again.weight, model.weight)
    with pytest.raises(TypeError, match=r"epoch is a int"):
        load(tmp_path / "a.pt", {"epoch": 3})
    with pytest.raises(CheckpointError, match="no steps"):
        load(tmp_path / "a.pt", again, step=3)


def test_only_the_rows_that_are_needed_are_read(tmp_path, monkeypatch):
    write_safetensors(tmp_path / "a.safetensors", {"a": torch.rand(1000, 100)})
    source = read_safetensors(tmp_path / "a.safetensors")
    found = []
    read = module._File.read
    monkeypatch.setattr(module._File, "read", lambda *a: found.append(a[2]) or read(*a))
    target = torch.zeros(10, 50)
    block = (((500, 10),), ((0, 50),))
    tensor = source._layout.tensors[0]
    read_blocks(
        source._layout, source._files.__getitem__, [Wanted(tensor, block, target)]
    )
    assert found == [10 * 100 * 4]
    whole = torch.zeros(1000, 100)
    source.fill({"a": whole})
    assert torch.equal(whole[500:510, :50], target)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_block_of_a_tensor_is_read(tmp_path_factory, data):
    shape = data.draw(st.lists(st.integers(0, 7), max_size=3), label="shape")
    saved = torch.arange(float(torch.Size(shape).numel())).view(shape)
    file = tmp_path_factory.mktemp("blocks") / "a.safetensors"
    write_safetensors(file, {"a": saved, "other": torch.ones(3)})
    source = read_safetensors(file)
    slices = []
    for size in shape:
        start = data.draw(st.integers(0, size))
        slices.append(slice(start, data.draw(st.integers(start, size))))
    expected = saved[tuple(slices)]
    target = torch.full(expected.shape, -1.0)
    block = tuple(((part.start, part.stop - part.start),) for part in slices)
    tensor = next(t for t in source._layout.tensors if t.name == "a")
    wanted = [Wanted(tensor, block, target)]
    read_blocks(source._layout, source._files.__getitem__, wanted)
    assert torch.equal(target, expected)


def _load_sharded(place):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found = {}
    for kind in ("dcp", "safetensors", "torch"):
        targets = {
            "a": distribute_tensor(torch.zeros(7, 3), mesh, [Shard(0)]),
            "b": distribute_tensor(torch.zeros(7, 3), mesh, [Shard(1)]),
        }
        load(f"{place}/{kind}", targets)
        found[kind] = {name: t.full_tensor() for name, t in targets.items()}
    return found


@pytest.mark.faults
@pytest.mark.slow
def test_ranks_load_their_own_shards(tmp_path):
    tensors = {"a": torch.rand(7, 3), "b": torch.rand(7, 3)}
    for kind in ("dcp", "safetensors", "torch"):
        written(kind, tmp_path / kind, tensors)
    for found in run_ranks(_load_sharded, 2, str(tmp_path)):
        for kind in ("dcp", "safetensors", "torch"):
            for name, tensor in tensors.items():
                assert torch.equal(found[kind][name], tensor), (kind, name)


def test_damaged_safetensors_are_named(tmp_path):
    folder = sharded(tmp_path / "a", {"x": torch.ones(3), "y": torch.ones(3)})
    file = folder / "model-1.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(CorruptCheckpointError, match=r"model-1\.safetensors is cut"):
        read_safetensors(folder)
    file.write_bytes(content[:100])
    with pytest.raises(CorruptCheckpointError, match="is cut"):
        read_safetensors(folder)
    file.write_bytes(b"\x00" * 100)
    with pytest.raises(ForeignCheckpointError, match="is no safetensors file"):
        read_safetensors(folder)
    write_safetensors(file, {"z": torch.ones(3)})
    with pytest.raises(CorruptCheckpointError, match="lacks y, which the index says"):
        read_safetensors(folder)
    file.unlink()
    with pytest.raises(CorruptCheckpointError, match=r"lacks model-1\.safetensors"):
        read_safetensors(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "../../x.safetensors"}}))
    with pytest.raises(ForeignCheckpointError, match="not a file beside it"):
        read_safetensors(folder)
    index.unlink()
    write_safetensors(folder / "b.safetensors", {})
    with pytest.raises(ForeignCheckpointError, match="2 safetensors files"):
        read_safetensors(folder)


def test_dcp_that_is_damaged_or_not_safe_is_refused(tmp_path):
    place = written("dcp", tmp_path / "a", {"x": torch.ones(1000)})
    assert read_dcp(place).values() == {"epoch": 3}
    (data,) = place.glob("*.distcp")
    data.write_bytes(data.read_bytes()[:200])
    with pytest.raises(CorruptCheckpointError, match="cannot be read"):
        load(place, {"x": torch.zeros(1000)})
    (place / ".metadata").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ForeignCheckpointError, match="not safe to read"):
        load(place, {"x": torch.zeros(1000)})


def test_what_is_no_checkpoint_is_told(tmp_path):
    with pytest.raises(CheckpointError, match="is not there"):
        detect(tmp_path / "none")
    with pytest.raises(ForeignCheckpointError, match="it has nothing"):
        detect(tmp_path)
    (tmp_path / "note.txt").write_text("hello, this is text")
    with pytest.raises(ForeignCheckpointError, match=r"it has note\.txt"):
        detect(tmp_path)
    with pytest.raises(ForeignCheckpointError, match="begins with b'hello"):
        detect(tmp_path / "note.txt")
    (tmp_path / "__0_.metadata").write_bytes(b"")
    with pytest.raises(ForeignCheckpointError, match="use_collectives=False"):
        detect(tmp_path)
    torch.save(Trap(), tmp_path / "trap.pt")
    with pytest.raises(ForeignCheckpointError, match="is not loaded"):
        load(tmp_path / "trap.pt", {"x": torch.ones(1)})
