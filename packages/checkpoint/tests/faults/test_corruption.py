"""Whatever is damaged, cut, missing or swapped is found and named, and never restored."""

import json
import logging
import os
import random
import shutil

import pytest

from drivetrain_checkpoint import Checkpointer, verify
from drivetrain_core import CheckpointError
from faults.stage import Stage
from faults.state import blank, listed, restored, state_of

SIZES = (5_000, 300, 7, 1, 40_000, 11, 2_000, 3, 600, 5, 1, 900)
"""So many tensors that several lie in one checksummed block."""
FORMS = [
    pytest.param("short"),
    pytest.param("long", marks=pytest.mark.faults),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory, library):
    """Two checkpoints of two ranks; nobody is running any more."""
    with Stage(tmp_path_factory.mktemp("made") / "stage", library) as stage:
        trainers = stage.start(2, sizes=SIZES, spoiled=False)
        for step in (1, 2):
            trainers.ask("save", step)
            assert trainers.ask("wait", step, 30.0) == [("durable", step)] * 2
    return stage.folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def problems_of(folder, file, tensor=""):
    """Returns what goes unnoticed, when a file of the newest checkpoint is damaged."""
    path = file.parent
    found = [f"{p.file}: {p.because}" for p in verify(path)]
    missed = [] if found else ["verify finds nothing"]
    if found and not any(file.name in text and tensor in text for text in found):
        missed.append(f"verify names neither {file.name} nor {tensor}: {found}")
    try:
        Checkpointer(folder, job="faults").restore(blank(SIZES), 2)
        missed.append("restore(2) brings something back")
    except CheckpointError as error:
        if file.name not in str(error) or tensor not in str(error):
            missed.append(f"restore(2) names not {file.name}, {tensor}: {error}")
    heard = []
    listener = logging.Handler()
    listener.emit = lambda record: heard.append(record.getMessage())
    logger = logging.getLogger("drivetrain_checkpoint")
    logger.addHandler(listener)
    if (found := restored(folder, sizes=SIZES)) != (1, []):
        missed.append(f"restore(None) brings back {found}")
    logger.removeHandler(listener)
    if not any(file.name in text and tensor in text for text in heard):
        missed.append(f"restore(None) names not {file.name}, {tensor}: {heard}")
    return [f"{file.name}: {text}" for text in missed]


def tensor_at(file, at):
    """Returns the name of the tensor of which a byte of a file is a part, or ''."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        entries = json.loads(stream.read(length))
    for name, entry in entries.items():
        start, end = entry["data_offsets"]
        if start <= at - 8 - length < end:
            return name
    return ""


def flip(file, at, bit):
    fd = os.open(file, os.O_RDWR)
    byte = os.pread(fd, 1, at)[0]
    os.pwrite(fd, bytes([byte ^ 1 << bit]), at)
    os.close(fd)


def files_of(folder, suffix):
    return sorted(listed(folder)[2].glob(f"*{suffix}"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "every"),
    [
        pytest.param(0, 13, id="short"),
        *(
            pytest.param(i, 6, id=f"long{i}", marks=pytest.mark.faults)
            for i in range(6)
        ),
    ],
)
def test_flipped_bit_of_a_manifest_is_found(folder, tally, first, every):
    missed, moment = [], random.Random(1)
    for file in files_of(folder, ".json"):
        size = file.stat().st_size
        for at in range(first, size, every):
            for bit in range(8) if every == 6 else [moment.randrange(8)]:
                flip(file, at, bit)
                problems = problems_of(folder, file)
                flip(file, at, bit)
                tally.add("bit flip in a manifest", problems)
                missed += [(at, bit, problem) for problem in problems]
    assert missed == []


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_flipped_bit_of_tensors_is_found_and_named(folder, tally, form):
    missed, moment = [], random.Random(2)
    for file in files_of(folder, ".safetensors"):
        size = file.stat().st_size
        for start in range(0, size, 512 if form == "long" else 16_384):
            at = min(size - 1, start + moment.randrange(512))
            bit = moment.randrange(8)
            tensor = tensor_at(file, at)
            flip(file, at, bit)
            problems = problems_of(folder, file, tensor)
            flip(file, at, bit)
            tally.add("bit flip in tensors", problems)
            missed += [(at, bit, problem) for problem in problems]
    assert missed == []


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_file_that_is_cut_or_longer_is_found(folder, tally, form):
    missed, moment = [], random.Random(3)
    for file in files_of(folder, ""):
        whole = file.read_bytes()
        num_random = 200 if form == "long" else 8
        lengths = [0, 1, 7, 8, 4095, 4096, 4097, len(whole) - 1, len(whole) + 1]
        lengths += [moment.randrange(len(whole)) for _ in range(num_random)]
        for length in {length for length in lengths if length != len(whole)}:
            if length > len(whole) + 1:
                continue
            os.truncate(file, length)
            problems = problems_of(folder, file)
            file.write_bytes(whole)
            tally.add("truncation", problems)
            missed += [(length, problem) for problem in problems]
    assert missed == []


def test_file_that_is_missing_is_found(folder, tally):
    for file in files_of(folder, ""):
        if file.name == "manifest.json":
            continue  # without it there is no checkpoint
        whole = file.read_bytes()
        file.unlink()
        problems = problems_of(folder, file)
        file.write_bytes(whole)
        tally.add("missing file", problems)
        assert problems == []


def test_checkpoint_without_its_root_manifest_does_not_exist(folder):
    (listed(folder)[2] / "manifest.json").unlink()
    assert list(listed(folder)) == [1]
    assert restored(folder, sizes=SIZES) == (1, [])


def test_stale_file_is_found(folder, tally):
    old, new = (listed(folder)[step] for step in (1, 2))
    names = sorted(file.name for file in new.iterdir())
    pairs = [(new / name, old / name) for name in names]
    ranks = ["rank-00000", "rank-00001"]
    pairs += [
        (new / f"{a}{suffix}", new / f"{b}{suffix}")
        for a, b in (ranks, ranks[::-1])
        for suffix in (".json", ".safetensors")
    ]
    for file, stale in pairs:
        whole = file.read_bytes()
        file.write_bytes(stale.read_bytes())
        problems = problems_of(folder, file)
        file.write_bytes(whole)
        tally.add("stale file", problems)
        assert problems == []


@pytest.mark.parametrize("rank", ["rank-00000", "rank-00001"])
def test_stale_rank_is_found_though_it_agrees_with_itself(folder, tally, rank):
    old, new = (listed(folder)[step] for step in (1, 2))
    for suffix in (".json", ".safetensors"):
        shutil.copy(old / f"{rank}{suffix}", new / f"{rank}{suffix}")
    problems = problems_of(folder, new / f"{rank}.json")
    tally.add("stale rank", problems)
    assert problems == []


def test_damage_of_the_newest_leaves_the_others(folder):
    flip(listed(folder)[2] / "manifest.json", 20, 3)
    assert restored(folder, 1, sizes=SIZES) == (1, [])


def test_daemon_saves_on_though_an_old_checkpoint_is_damaged(tmp_path, library):
    with Stage(tmp_path / "stage", library) as stage:
        trainers = stage.start(spoiled=False, keep=1)
        trainers.ask("save", 1)
        assert trainers.ask("wait", 1, 30.0) == [("durable", 1)]
        # It says now that it is of another format.
        manifest = listed(stage.folder)[1] / "manifest.json"
        flip(manifest, manifest.read_bytes().index(b"drivetrain"), 0)
        for step in range(2, 6):
            assert trainers.ask("save", step) == [("saved", step)]
            assert trainers.ask("wait", step, 10.0) == [("durable", step)]


def test_states_of_two_steps_share_no_element():
    one, two = state_of(1, SIZES), state_of(2, SIZES)
    for name, value in one.items():
        if name.startswith("weight"):
            assert not (value == two[name]).any()
