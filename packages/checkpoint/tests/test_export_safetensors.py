"""Checkpoints as safetensors files of Hugging Face."""

import errno
import json
import os

import pytest
import torch
from torch import nn

from drivetrain_checkpoint import (
    Checkpointer,
    StorageError,
    detect,
    export_safetensors,
    load,
    torch_save,
)
from drivetrain_checkpoint._formats import export_safetensors as module
from drivetrain_core import CheckpointError


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of a model and its optimizer, and the model."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    checkpointer = Checkpointer(tmp_path / "run", job="export")
    state = {"model": model, "optimizer": optimizer, "position": 3}
    checkpointer.save(1, state).wait(60)
    checkpointer.stop_daemon()
    return tmp_path / "run", model


@pytest.mark.parametrize(("most", "num_files"), [(10**9, 1), (600, 2), (1, 9)])
def test_exported_files_are_loaded(tmp_path, saved, most, num_files):
    run, model = saved
    out = tmp_path / "out"
    calls = []
    files = export_safetensors(
        run,
        out,
        prefix="model.",
        max_shard_bytes=most,
        progress=lambda *done: calls.append(done),
    )
    assert len(files) == num_files
    assert calls[-1][0] == calls[-1][1]
    names = {path.name for path in out.iterdir()}
    if num_files == 1:
        assert names == {"model.safetensors"}
    else:
        assert "model.safetensors.index.json" in names
        assert len(names) == num_files + 1
        index = json.loads((out / "model.safetensors.index.json").read_text())
        assert index["weight_map"].keys() == model.state_dict().keys()
        assert index["metadata"]["total_size"] == calls[-1][1]
    assert detect(out) == "safetensors"
    again = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4), nn.BatchNorm1d(4))
    load(out, again)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)


def test_floating_point_tensors_are_cast(tmp_path, saved):
    run, model = saved
    export_safetensors(run, tmp_path / "out", prefix="model.", dtype=torch.bfloat16)
    state = {"0.weight": torch.zeros(16, 8, dtype=torch.bfloat16)}
    load(tmp_path / "out", state, strict=False)
    assert torch.equal(state["0.weight"], model[0].weight.bfloat16())
    count = {"2.num_batches_tracked": torch.tensor(9)}
    load(tmp_path / "out", count, strict=False)
    assert count["2.num_batches_tracked"] == 0


@pytest.mark.extra
def test_reference_implementation_loads_it(tmp_path, saved):
    reference = pytest.importorskip("safetensors.torch")
    safe_open = pytest.importorskip("safetensors").safe_open
    run, model = saved
    (file,) = export_safetensors(run, tmp_path / "out", prefix="model.")
    found = reference.load_file(file)
    assert found.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(found[name], tensor)
    with safe_open(file, "pt") as opened:
        assert opened.metadata() == {"format": "pt"}


@pytest.mark.extra
def test_transformers_loads_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16)
    model = transformers.GPT2LMHeadModel(config)
    checkpointer = Checkpointer(tmp_path / "run", job="export")
    checkpointer.save(1, {"model": model}).wait(60)
    checkpointer.stop_daemon()
    out = tmp_path / "out"
    export_safetensors(tmp_path / "run", out, prefix="model.", max_shard_bytes=2000)
    config.save_pretrained(out)
    again = transformers.GPT2LMHeadModel.from_pretrained(out)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)


def test_memory_is_bounded_by_one_tensor(tmp_path, saved, monkeypatch):
    run, _ = saved
    asked = []
    read = module.read_tensor
    monkeypatch.setattr(
        module, "read_tensor", lambda *a: asked.append(a[1]) or read(*a)
    )
    export_safetensors(run, tmp_path / "out")
    assert len(asked) == len(set(asked)) == 9


def test_what_cannot_be_exported_is_refused(tmp_path, saved):
    run, _ = saved
    with pytest.raises(CheckpointError, match=r"no tensor net\.\*; it has model"):
        export_safetensors(run, tmp_path / "out", prefix="net.")
    with pytest.raises(CheckpointError, match="no checkpoint of step 7"):
        export_safetensors(run, tmp_path / "out", step=7)
    with pytest.raises(ValueError, match="at least 1"):
        export_safetensors(run, tmp_path / "out", max_shard_bytes=0)
    torch_save({"a": torch.ones(1, dtype=torch.complex128)}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"cannot hold a \(torch.complex128\)"):
        export_safetensors(tmp_path / "a.pt", tmp_path / "out")
    export_safetensors(run, tmp_path / "out")
    with pytest.raises(CheckpointError, match="already; take an empty folder"):
        export_safetensors(run, tmp_path / "out")


def test_full_disk_leaves_no_index(tmp_path, saved, monkeypatch):
    run, _ = saved
    calls = []
    fsync = os.fsync

    def full(fd):
        calls.append(fd)
        if len(calls) > 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        export_safetensors(run, tmp_path / "out", max_shard_bytes=1)
    names = [path.name for path in (tmp_path / "out").iterdir()]
    assert all(name.startswith("model-0000") for name in names)
