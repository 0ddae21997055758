"""The format: images, manifests, plain data, and what is found wrong with them."""

import json
import math
import shutil
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from drivetrain_checkpoint import (
    Checkpointer,
    CorruptCheckpointError,
    ForeignCheckpointError,
    list_checkpoints,
    load,
    verify,
)
from drivetrain_checkpoint._layout.manifest import RootManifest
from drivetrain_checkpoint._layout.safetensors_layout import (
    DTYPE_BYTES,
    PAGE,
    plan_safetensors,
    read_header,
)
from drivetrain_checkpoint._save.save_plan import EntryTexts
from drivetrain_core import CheckpointError
from drivetrain_core.services import from_json

tensors = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.tuples(
        st.sampled_from(sorted(DTYPE_BYTES)), st.lists(st.integers(0, 5), max_size=3)
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(tensors)
def test_image_has_a_place_for_every_tensor_and_no_gap(wanted):
    triples = [(n, dtype, tuple(shape)) for n, (dtype, shape) in wanted.items()]
    image = plan_safetensors(triples)
    assert len(image.header) % PAGE == 0
    at = len(image.header)
    for slot in image.slots:
        assert slot.start == at
        assert slot.size_bytes == DTYPE_BYTES[slot.dtype] * math.prod(slot.shape)
        if slot.size_bytes:
            assert slot.start % DTYPE_BYTES[slot.dtype] == 0
        at += slot.size_bytes
    assert at == image.size_bytes
    length = int.from_bytes(image.header[:8], "little")
    assert length + 8 == len(image.header)
    entries = json.loads(image.header[8:])
    entries.pop("__metadata__", None)
    # The format has no complex doubles: they are pairs.
    assert {(n, e["dtype"], tuple(e["shape"])) for n, e in entries.items()} == {
        (n, "F64", (*shape, 2)) if dtype == "C128" else (n, dtype, shape)
        for n, dtype, shape in triples
    }
    assert set(read_header(image.header).values()) == set(image.slots)
    ends = [entry["data_offsets"][1] for entry in entries.values()]
    assert max(ends, default=0) + len(image.header) == image.size_bytes


@pytest.fixture
def saved(tmp_path):
    checkpointer = Checkpointer(tmp_path / "run", job="format")
    state = {
        "weights": torch.arange(300_000.0),
        "mask": torch.ones(5, dtype=torch.bool),
    }
    checkpointer.save(1, {**state, "position": 3}).wait(60)
    checkpointer.stop_daemon()
    (found,) = list_checkpoints(tmp_path / "run")
    return Path(found.url)


def test_file_is_plain_safetensors(saved):
    beginning = (saved / "rank-00000.safetensors").read_bytes()
    length = int.from_bytes(beginning[:8], "little")
    entry = json.loads(beginning[8 : 8 + length])["weights"]
    start, end = (8 + length + at for at in entry["data_offsets"])
    values = torch.frombuffer(bytearray(beginning[start:end]), dtype=torch.float32)
    assert torch.equal(values, torch.arange(300_000.0))


@pytest.mark.parametrize("at", [0, 100, 5000, 700_000, -1])
def test_flipped_bit_is_found_and_named(saved, at):
    assert verify(saved) == []
    file = saved / "rank-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[at] ^= 0x10
    file.write_bytes(content)
    (problem,) = verify(saved)
    assert problem.file == "rank-00000.safetensors"
    assert f"damaged in block {at // (1 << 20) if at >= 0 else 1}" in problem.because
    assert "weights" in problem.because
    into = {"weights": torch.zeros(300_000), "mask": torch.zeros(5, dtype=torch.bool)}
    with pytest.raises(CorruptCheckpointError, match="weights"):
        Checkpointer(saved.parent, job="format").restore(into)


@pytest.mark.parametrize("num_tensors", [6, 19, 23])
def test_damaged_block_with_many_tensors_names_them(tmp_path, num_tensors):
    checkpointer = Checkpointer(tmp_path, job="format")
    state = {f"w{i}": torch.arange(10.0) for i in range(num_tensors)}
    checkpointer.save(1, state).wait(60)
    checkpointer.stop_daemon()
    (found,) = list_checkpoints(tmp_path)
    file = Path(found.url, "rank-00000.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    (problem,) = verify(found.url)
    assert all(f"w{i}" in problem.because for i in range(min(num_tensors, 19)))
    assert ("and 4 more" in problem.because) == (num_tensors == 23)


@pytest.mark.parametrize(
    ("damage", "because"),
    [
        (lambda f: f.unlink(), "is missing"),
        (lambda f: f.write_bytes(f.read_bytes()[:-1]), "bytes instead of"),
        (lambda f: f.write_bytes(b""), "has 0 bytes instead of"),
    ],
)
def test_file_that_is_cut_or_missing_is_named(saved, damage, because):
    damage(saved / "rank-00000.safetensors")
    (problem,) = verify(saved)
    assert because in problem.because


@pytest.mark.parametrize("file", ["manifest.json", "rank-00000.json"])
def test_changed_manifest_is_found(saved, file):
    text = (saved / file).read_text()
    (saved / file).write_text(text.replace('"step":1', '"step":2'))
    (problem,) = verify(saved)
    assert "checksum" in problem.because or "committed with" in problem.because


def test_manifest_of_another_save_is_found(saved, tmp_path):
    other = Checkpointer(tmp_path / "other", job="format")
    other.save(1, {"weights": torch.zeros(3)}).wait(60)
    other.stop_daemon()
    (found,) = list_checkpoints(tmp_path / "other")
    shutil.copy(Path(found.url) / "manifest.json", saved / "manifest.json")
    (problem,) = verify(saved)
    assert "is that of step 1, save" in problem.because


def test_version_of_the_future_is_refused(saved):
    text = json.loads((saved / "manifest.json").read_text())
    text["version"] = 99
    with pytest.raises(ForeignCheckpointError, match="has version 99"):
        RootManifest.from_bytes(json.dumps(text).encode(), "it")
    with pytest.raises(ForeignCheckpointError, match="not of the format"):
        RootManifest.from_bytes(b'{"format": "other"}', "it")


def test_folder_with_other_things_has_no_checkpoint(tmp_path):
    (tmp_path / "step-0000000001-0123456789abcdef").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    checkpointer = Checkpointer(tmp_path, job="format")
    assert checkpointer.latest() is None
    with pytest.raises(CheckpointError, match=r"has no checkpoint; .* none"):
        checkpointer.restore({})


@pytest.mark.parametrize(
    ("options", "message"),
    [({"keep": 0}, "keep: last must be"), ({"job": ""}, "job must be")],
)
def test_arguments_that_are_not_allowed_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        Checkpointer(tmp_path, **options)


def test_state_that_cannot_be_held_is_refused(tmp_path):
    checkpointer = Checkpointer(tmp_path, job="format")
    with pytest.raises(TypeError, match="which a checkpoint cannot hold"):
        checkpointer.save(1, {"it": torch.eye(3).to_sparse()})
    with pytest.raises(ValueError, match="step must be"):
        checkpointer.save(-1, {})
    assert not tmp_path.joinpath("step").exists()


@pytest.mark.slow
def test_old_checkpoints_are_retired_and_a_step_saved_again_is_replaced(tmp_path):
    checkpointer = Checkpointer(tmp_path, job="format", keep=2)
    for step in (1, 2, 2, 3, 3):
        weights = torch.full((10,), float(step))
        checkpointer.save(step, {"weights": weights, "position": step}).wait(60)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) != 2:  # what is old goes after the commit
        assert time.monotonic() < deadline
        time.sleep(0.01)
    checkpointer.stop_daemon()
    assert [s.step for s in list_checkpoints(tmp_path)] == [2, 3]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_values_that_are_no_plain_memory_are_saved_as_they_read(tmp_path, dtype):
    whole = torch.randn(4, 6, dtype=dtype)
    state = {
        "turned": torch.arange(12.0).reshape(3, 4).T,
        "every other": torch.arange(20.0)[::2],
        "conjugate": whole.conj(),
        "imaginary": whole.conj().imag,
        "spread": torch.ones(1, 3).expand(5, 3),
        "number": torch.tensor(7.5),
        "one": torch.tensor(1 + 2j, dtype=dtype),
        "none": torch.empty(0, 4, dtype=dtype),
        "nothing": torch.empty(0, 4),
    }
    checkpointer = Checkpointer(tmp_path, job="format")
    checkpointer.save(1, state).wait(60)
    into = {name: torch.empty(t.shape, dtype=t.dtype) for name, t in state.items()}
    into["turned"] = torch.zeros(3, 4).T
    into["conjugate"] = torch.empty(4, 6, dtype=dtype).conj()
    for _ in ("memory", "storage"):
        for tensor in into.values():
            tensor.zero_()
        assert checkpointer.restore(into) == 1
        for name, tensor in state.items():
            assert torch.equal(into[name].resolve_conj(), tensor.resolve_conj()), name
        checkpointer.stop_daemon()


@pytest.mark.parametrize("last", [0, 15, 17, 32])
def test_tensor_of_another_size_than_its_shape_is_no_header(last):
    entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, last]}
    text = json.dumps({"weight": entry}).encode()
    with pytest.raises(ValueError, match=f"weight has {last} bytes"):
        read_header(len(text).to_bytes(8, "little") + text)


def test_texts_of_entries_are_those_of_the_entries_as_they_are_now():
    texts = EntryTexts()
    same = {"kind": "data", "plain": ["value", 1]}
    entries = {"a": same, "b": {"plain": True}}
    for fresh in (
        entries,
        entries,
        {"a": same, "b": {"plain": 1}},
        {"a": same, "b": {"plain": 1.0}},
        {"b": {"plain": 1.0}, "a": same},
        {"a": same},
        {},
    ):
        found = from_json(json.loads(texts.text(fresh)))
        assert repr(found) == repr(fresh)


def test_complex_doubles_are_pairs_to_others(tmp_path):
    values = torch.randn(3, 2, dtype=torch.complex128)
    checkpointer = Checkpointer(tmp_path, job="pairs")
    checkpointer.save(1, {"x": values, "y": torch.ones(2)}).wait(60)
    checkpointer.stop_daemon()
    (file,) = tmp_path.glob("step-*/*.safetensors")
    read = load_file(file)
    assert torch.equal(read["x"], torch.view_as_real(values))
    assert torch.equal(read["y"], torch.ones(2))
    into = {"x": torch.zeros_like(values), "y": torch.zeros(2)}
    load(tmp_path, into)
    assert torch.equal(into["x"], values)


@pytest.mark.parametrize(
    "said", ['["y"]', '["z"]', "7", '"x"', '[["x"]]', "[", '{"x": 1}', "null"]
)
def test_header_that_lies_of_its_pairs_is_refused(said):
    image = plan_safetensors([("y", "F32", (2, 3))], metadata={"complex128": said})
    with pytest.raises(ValueError, match="not the header"):
        read_header(image.header)
