"""Files that somebody has crafted: each ends in the package's own error, or reads right."""

import contextlib
import json
import pickle
import shutil
import struct
from pathlib import Path

import pytest
import safetensors
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.distributed.checkpoint.metadata import (
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from drivetrain_checkpoint import (
    Checkpointer,
    CorruptCheckpointError,
    ForeignCheckpointError,
    list_checkpoints,
    load,
    read_dcp,
    read_safetensors,
    torch_load,
    torch_save,
    verify,
)
from drivetrain_checkpoint._formats.convert import convert
from drivetrain_checkpoint._layout.entries import read_entries
from drivetrain_checkpoint._layout.manifest import ROOT_FILE
from drivetrain_checkpoint._layout.safetensors_layout import plan_safetensors
from drivetrain_checkpoint._layout.tensor_layout import Layout
from drivetrain_checkpoint._native import checksum
from drivetrain_core import CheckpointError

DEEP = "[" * 100_000
few = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def written(path, header, data=b"\0" * 8):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(first, last, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [first, last]}


@pytest.mark.parametrize(
    "header",
    [
        {"v": entry(0, 8), "w": entry(-8, 0)},
        {"w": entry(-8, 0)},
        {"w": entry(8, 0)},
        {"w": entry(0, 8), "v": entry(0, 8)},
        {"w": entry(0, 8), "v": entry(4, 12)},
        {"w": entry(0, 4, (1,)), "v": entry(8, 12, (1,))},
        {"w": entry(4, 12)},
        {"w": entry(0, 4, (1,))},
        {"w": entry(0, 1 << 40, (1 << 38,))},
        {"w": entry(0, 8, (1 << 62, 1 << 62, 0))},
        {"w": entry(0, 8, (-2, -1))},
        {"w": entry(0, 8, (2.0,))},
        {"w": entry(0, 8, (True, 2))},
        {"w": entry(0, 8, [1] * 100_000)},
        {"w": entry(0, 8, [1 << 60] * 10_000)},
        {"w": entry("0", "8")},
        {"w": entry(0, 8, dtype=[])},
        {"w": {"dtype": "F32", "shape": [2]}},
        {"w": []},
        [],
        {"__metadata__": {"complex128": "[[]]"}, "w": entry(0, 8)},
        {"__metadata__": {"complex128": DEEP}, "w": entry(0, 8)},
        {"__metadata__": 7, "w": entry(0, 8)},
        f'{{"w":{json.dumps(entry(0, 8))},"w":{json.dumps(entry(0, 8))}}}'.encode(),
        b'{"w":' + DEEP.encode(),
        b"\xff" * 20,
    ],
)
def test_header_that_is_crafted_is_refused(tmp_path, header):
    weights = {"w": torch.ones(2)}
    with pytest.raises((CorruptCheckpointError, ForeignCheckpointError)):
        load(written(tmp_path / "x.safetensors", header), weights, strict=False)
    assert weights["w"].tolist() == [1, 1]


@pytest.mark.parametrize("size", [0, 7, 8, 9, 100])
@pytest.mark.parametrize("announced", [0, 1, 10, 1 << 40, (1 << 64) - 1])
def test_header_of_an_announced_length_is_refused(tmp_path, size, announced):
    file = tmp_path / "x.safetensors"
    file.write_bytes((struct.pack("<Q", announced) + b"{" * 100)[:size])
    with pytest.raises((CorruptCheckpointError, ForeignCheckpointError)):
        read_safetensors(file)


numbers = st.integers(-2, 20)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "U8", "BOOL", "F64"]),
        "shape": st.lists(numbers, max_size=2),
        "data_offsets": st.lists(numbers, min_size=2, max_size=2),
    }
)


@few
@example({"a": entry(0, 8), "b": entry(8, 8, (0,))}, 8)
@example({"a": entry(0, 8)}, 9)
@example({"a": {"dtype": "F64", "shape": [], "data_offsets": [0, 8]}}, 8)
@given(st.dictionaries(st.sampled_from("abc"), entries, max_size=3), st.integers(0, 24))
def test_header_is_read_as_the_library_of_the_format_reads_it(tmp_path, header, size):
    file = written(tmp_path / "x.safetensors", header, bytes(range(size)))
    try:
        theirs = load_file(file)
    except (safetensors.SafetensorError, ValueError, TypeError):
        with pytest.raises((CorruptCheckpointError, ForeignCheckpointError)):
            read_safetensors(file)
        return
    ours = {name: torch.zeros_like(tensor) for name, tensor in theirs.items()}
    load(file, ours)
    for name, tensor in theirs.items():
        # As bytes: what is read may be NaN.
        assert ours[name].numpy().tobytes() == tensor.numpy().tobytes()
        assert ours[name].shape == tensor.shape


@pytest.mark.parametrize(
    "index",
    [
        b'{"weight_map":{"w":"../x.safetensors"}}',
        b'{"weight_map":{"w":"x.safetensors","w":"y.safetensors"}}',
        b'{"weight_map":{"w":7}}',
        b'{"weight_map":[]}',
        b"[]",
        DEEP.encode(),
    ],
)
def test_index_that_is_crafted_is_refused(tmp_path, index):
    (tmp_path / "model.safetensors.index.json").write_bytes(index)
    with pytest.raises((CorruptCheckpointError, ForeignCheckpointError)):
        read_safetensors(tmp_path)


def sealed(fields):
    """A root manifest whose checksum fits."""
    fields.pop("crc32c", None)
    text = json.dumps(fields, separators=(",", ":"))
    return f'{text[:-1]},"crc32c":{checksum(text.encode())}}}'.encode()


def state():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {
        "model": model,
        "optimizer": optimizer,
        "seen": {"n": 3, "x": torch.ones(2)},
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint, its root manifest, and the manifest of its rank."""
    folder = tmp_path_factory.mktemp("good")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))
        checkpointer = Checkpointer(folder, job="crafted")
        checkpointer.save(1, state()).wait(60)
        checkpointer.stop_daemon()
    (place,) = folder.glob("step-*")
    root = json.loads((place / ROOT_FILE).read_text())
    return place, root, json.loads((place / "rank-00000.json").read_text())


def crafted(saved, target, root=None, rank=None):
    """The folder of a checkpoint with other manifests, whose checksums fit."""
    place, good, _ = saved
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(place.parent, target)
    root = json.loads(json.dumps(good if root is None else root))
    if rank is not None:
        text = rank if isinstance(rank, bytes) else json.dumps(rank).encode()
        (target / place.name / "rank-00000.json").write_bytes(text)
        root["ranks"][0] |= {"size_bytes": len(text), "crc32c": checksum(text)}
    text = root if isinstance(root, bytes) else sealed(root)
    (target / place.name / ROOT_FILE).write_bytes(text)
    return target / place.name


def read_all(place):
    """Reads a checkpoint in every way; nothing but the package's own errors comes."""
    for info in list_checkpoints(place.parent):
        assert info.world_size >= 0
    for problem in verify(place):
        assert problem.because
    with contextlib.suppress(CheckpointError):
        load(place, {"seen.x": torch.zeros(2)}, strict=False)
    with contextlib.suppress(CheckpointError):
        Checkpointer(place.parent, job="crafted").restore(state())


def places(value, path=()):
    """The ways to every part of nested plain data."""
    yield path
    parts = value.items() if isinstance(value, dict) else ()
    for key, part in enumerate(value) if isinstance(value, list) else parts:
        yield from places(part, (*path, key))


def changed(value, path, part):
    value = json.loads(json.dumps(value))
    *way, last = path
    inner = value
    for key in way:
        inner = inner[key]
    inner[last] = part
    return value


def test_root_of_which_any_part_is_another_ends_in_our_error(saved, tmp_path):
    _, root, _ = saved
    ways = [
        way for way in places({k: v for k, v in root.items() if k != "crc32c"}) if way
    ]
    others = (
        None,
        -1,
        1 << 80,
        1.5,
        "",
        "x",
        [],
        {},
        [[]],
        {"$": "dict", "v": 1},
        True,
    )

    @settings(max_examples=300, deadline=None)
    @given(st.sampled_from(ways), st.sampled_from(others) | plain)
    def check(way, part):
        read_all(crafted(saved, tmp_path / "x", root=changed(root, way, part)))

    check()


def test_manifest_of_a_rank_of_which_any_part_is_another_ends_in_our_error(
    saved, tmp_path
):
    _, _, rank = saved

    @settings(max_examples=100, deadline=None)
    @given(st.sampled_from([way for way in places(rank) if way]), plain)
    def check(way, part):
        read_all(crafted(saved, tmp_path / "x", rank=changed(rank, way, part)))

    check()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        DEEP.encode(),
        b'{"format":"drivetrain-checkpoint","version":1,"x":' + DEEP.encode(),
        b'{"format":"drivetrain-checkpoint","version":1,"step":NaN,"crc32c":1}',
        b'{"format":"drivetrain-checkpoint","version":1,"step":1e999,"crc32c":1}',
        b'{"format":"drivetrain-checkpoint","version":1,"step":' + b"9" * 5000 + b"}",
        b'{"format":"drivetrain-checkpoint","version":[]}',
    ],
)
def test_manifest_that_is_no_manifest_is_told_as_damaged(saved, tmp_path, text):
    place = crafted(saved, tmp_path / "x")
    (place / ROOT_FILE).write_bytes(text)
    read_all(place)
    (problem,) = verify(place)
    assert problem.file == ROOT_FILE
    place = crafted(saved, tmp_path / "x", rank=text)
    read_all(place)
    (problem,) = verify(place)
    assert problem.file == "rank-00000.json"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("world_size", 10**9),
        ("world_size", 0),
        ("ranks", []),
        ("ranks", [{"file": "../../x", "size_bytes": 1, "crc32c": 1}]),
        ("saved_at_ns", 1 << 100),
        ("saved_at_ns", -1),
        ("layout", []),
        ("entries", None),
        ("what", 1),
    ],
)
def test_field_that_is_none_is_named(saved, tmp_path, field, value):
    place = crafted(saved, tmp_path / "x", root={**saved[1], field: value})
    read_all(place)
    (problem,) = verify(place)
    assert problem.file == ROOT_FILE
    assert "is not the manifest of a checkpoint" in problem.because


@pytest.mark.parametrize("rows", [1 << 40, 1 << 61])
def test_tensor_that_is_larger_than_its_files_is_not_made_room_for(
    saved, tmp_path, rows
):
    root = json.loads(json.dumps(saved[1]))
    for tensor in root["layout"]["tensors"]:
        if tensor[0] == "seen.x":
            tensor[2] = [rows]
    place = crafted(saved, tmp_path / "x", root=root)
    with pytest.raises(CorruptCheckpointError, match=r"has less than the|no layout"):
        load(place, {"seen.x": torch.zeros(2)})
    with pytest.raises(CorruptCheckpointError):
        Checkpointer(place.parent, job="crafted").restore(state())


def test_older_whole_checkpoint_is_restored_in_place_of_a_crafted_one(saved, tmp_path):
    place = crafted(saved, tmp_path / "x")
    name = f"step-0000000002-{int(saved[1]['save_id'], 16) + 1:016x}"
    root = {**saved[1], "step": 2, "save_id": name.rpartition("-")[2]}
    root |= {"saved_at_ns": root["saved_at_ns"] + 1, "layout": {"meshes": []}}
    shutil.copytree(place, place.parent / name)
    (place.parent / name / ROOT_FILE).write_bytes(sealed(root))
    assert Checkpointer(place.parent, job="crafted").restore(state()) == 1


LAYOUT = {"meshes": [[[2], [0, 1]]], "tensors": [["w", "F32", [4], 0, ["S0"], 0]]}


@pytest.mark.parametrize(
    "tensor",
    [
        ["w", "F32", [4], 1, ["S0"], 0],
        ["w", "F32", [4], 0, ["S1"], 0],
        ["w", "F32", [4], 0, ["S0/999999999"], 0],
        ["w", "F32", [4], 0, ["S0/0"], 0],
        ["w", "F32", [4], 0, ["S" + "0" * 1000], 0],
        ["w", "F32", [4], 0, ["R", "R"], 0],
        ["w", "F32", [4], 0, ["R"], 2],
        ["w", "F32", [4], 0, "S", 0],
        ["w", "F9", [4], 0, ["R"], 0],
        ["w", [], [4], 0, ["R"], 0],
        [[], "F32", [4], 0, ["R"], 0],
        ["w", "F32", [1 << 61], 0, [[]], 0],
        ["w", "F32", [1] * 65, 0, ["R"], 0],
    ],
)
def test_tensor_of_a_layout_that_is_crafted_is_refused(tensor):
    assert Layout.from_plain(LAYOUT).tensors[0].name == "w"
    with pytest.raises(CorruptCheckpointError, match="step 3 has no layout"):
        Layout.from_plain({**LAYOUT, "tensors": [tensor]}, "step 3")


@pytest.mark.parametrize(
    "mesh",
    [[[2], [0]], [[2], [0, 0]], [[0], []], [[-1, -2], [0, 1]], [[2], "01"], [2, 2], 7],
)
def test_mesh_of_a_layout_that_is_crafted_is_refused(mesh):
    with pytest.raises(CorruptCheckpointError, match="the save has no layout"):
        Layout.from_plain({"meshes": [mesh], "tensors": []})


def test_layout_with_a_tensor_twice_is_refused():
    twice = {**LAYOUT, "tensors": LAYOUT["tensors"] * 2}
    with pytest.raises(CorruptCheckpointError, match="twice"):
        Layout.from_plain(twice)


TAGS = [
    "float",
    "complex",
    "bytes",
    "dtype",
    "device",
    "size",
    "numpy",
    "tuple",
    "dict",
    "what",
]
tagged = st.recursive(
    plain,
    lambda inner: st.fixed_dictionaries(
        {
            "$": st.sampled_from(TAGS),
            "v": inner | st.lists(inner, max_size=3),
        }
    ),
    max_leaves=4,
)


@few
@example({"$": "dict", "v": [["a", {"$": "dtype", "v": "load"}]]})
@given(tagged)
def test_entries_are_some_or_refused(said):
    with contextlib.suppress(CorruptCheckpointError):
        assert read_entries(said, "it") == {}


def test_entries_nested_too_deep_are_refused():
    value = []
    for _ in range(900):
        value = [value]
    kind = {"$": "dict", "v": [["kind", "data"], ["plain", value], ["tensors", []]]}
    with pytest.raises(CorruptCheckpointError, match="it has no entries"):
        read_entries({"$": "dict", "v": [["a", kind]]}, "it")


@few
@given(st.data())
def test_torch_file_of_which_a_part_is_another_ends_in_our_error(tmp_path, data):
    good = tmp_path / "good.pt"
    if not good.exists():
        torch_save({"w": torch.ones(3), "n": 3}, good)
    content = bytearray(good.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    part = data.draw(st.binary(min_size=1, max_size=40))
    content[at : at + len(part)] = part
    bad = tmp_path / "bad.pt"
    bad.write_bytes(content)
    with contextlib.suppress(CheckpointError):
        torch_load(bad)


@few
@given(st.integers(0, 1 << 63), st.integers(0, (1 << 32) - 1), st.integers(0, 1 << 31))
def test_footer_of_a_torch_file_that_lies_is_damage(tmp_path, covered, group, num_sums):
    file = tmp_path / "x.pt"
    torch_save({"w": torch.ones(3)}, file)
    content = bytearray(file.read_bytes())
    content[-28:-12] = struct.pack("<QII", covered, group, num_sums)
    file.write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match="damaged"):
        torch_load(file)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@few
@given(st.binary(max_size=60), st.integers(0, 1 << 20))
def test_index_of_dcp_of_which_a_part_is_another_is_refused(tmp_path, part, at):
    good = tmp_path / "good"
    if not good.exists():
        good.mkdir()
        import torch.distributed.checkpoint as dcp

        dcp.save({"w": torch.ones(3)}, checkpoint_id=good)
    bad = tmp_path / "bad"
    shutil.rmtree(bad, ignore_errors=True)
    shutil.copytree(good, bad)
    content = bytearray((good / ".metadata").read_bytes())
    at %= len(content)
    content[at : at + len(part)] = part
    # A number that is announced there would be the length of a list in memory.
    if pickle.LONG_BINPUT in part:
        return
    (bad / ".metadata").write_bytes(content)
    with contextlib.suppress(CheckpointError):
        load(bad, {"w": torch.zeros(3)}, strict=False)


def test_tensor_that_no_memory_holds_is_no_tensor_of_a_dcp_folder(tmp_path):
    index = Metadata(
        state_dict_metadata={
            "w": TensorStorageMetadata(
                properties=TensorProperties(dtype=torch.float32),
                size=torch.Size([1 << 60]),
                chunks=[],
            )
        },
        storage_data={},
    )
    (tmp_path / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(CheckpointError, match="no room for w"):
        convert(tmp_path, tmp_path / "out.pt", to="torch")
    del index.state_dict_metadata["w"].properties
    (tmp_path / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(ForeignCheckpointError, match="not safe to read"):
        read_dcp(tmp_path)


def test_own_file_with_a_foreign_slot_is_not_read_as_another_tensor(saved, tmp_path):
    place = crafted(saved, tmp_path / "x")
    image = plan_safetensors([("seen.x", "F64", (2,))])
    file = place / "rank-00000.safetensors"
    content = image.header + bytes(16)
    file.write_bytes(content)
    rank = {**saved[2], "size_bytes": len(content), "header_bytes": len(image.header)}
    rank["crc32c"] = [checksum(content)]
    place = crafted(saved, tmp_path / "y", rank=rank)
    (place / file.name).write_bytes(content)
    assert verify(place) == []
    with pytest.raises(CorruptCheckpointError, match="has not saved its block of seen"):
        load(Path(place), {"seen.x": torch.zeros(2)}, strict=False)
