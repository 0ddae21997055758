"""After a power cut at any moment, all that was promised is there, and nothing torn."""

import itertools

import pytest

from drivetrain_checkpoint import Checkpointer
from faults.disk import Op
from faults.oplog import Promise
from faults.power_loss import cuts, problems_after, record, restore_disk
from faults.stage import Stage
from faults.state import JOB, problems_of, state_of

FORMS = [
    pytest.param((4, 1), id="short"),
    pytest.param((6, 300), id="long", marks=pytest.mark.faults),
]
"""How many saves are recorded, and how many random mixtures are tried at each call."""


@pytest.fixture
def stage(tmp_path, library):
    with Stage(tmp_path / "stage", library) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("buffered", [False, True], ids=["direct", "buffered"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_power_cut_takes_nothing_that_was_promised(
    stage, tmp_path, tally, form, buffered, world_size
):
    num_saves, num_random = form
    stage.control["buffered"] = buffered
    log = record(stage, world_size, num_saves=num_saves)
    promised = [entry.step for entry in log if isinstance(entry, Promise)]
    assert promised == list(range(1, num_saves + 1))
    wrong = []
    for index, tree, required in cuts(log, stage.root, num_random):
        problems = problems_after(tree, required, tmp_path / "left")
        tally.add("power loss", problems)
        wrong += [(index, problem) for problem in problems]
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_folder_in_that_of_a_job_is_there_with_its_first_checkpoint(
    stage, tmp_path, tally, world_size
):
    log = record(stage, world_size, num_saves=3, under="last.ckpt")
    wrong = []
    for index, tree, required in cuts(log, stage.root, 1):
        problems = problems_after(tree, required, tmp_path / "left", "last.ckpt")
        tally.add("power loss in a folder of the job", problems)
        wrong += [(index, problem) for problem in problems]
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", [(4, 1, 40), pytest.param((5, 6, 1), marks=pytest.mark.faults)]
)
def test_power_cut_leaves_a_folder_that_can_be_saved_to(stage, tmp_path, tally, form):
    num_saves, num_random, every = form
    log = record(stage, num_saves=num_saves)
    for number, (_, tree, _) in enumerate(cuts(log, stage.root, num_random)):
        if number % every == 0:
            base = tmp_path / f"left{number}"
            restore_disk(tree, base)
            folder = base / "runs" / "one"
            checkpointer = Checkpointer(folder, job=JOB, keep=2)
            assert checkpointer.save(1000, state_of(1000)).wait(60)
            stage.kill_daemon()
            problems = problems_of(folder, [1000])
            tally.add("save after power loss", problems)
            assert problems == []


def is_sync(op, suffix):
    return op.kind == "sync" and op.path.endswith(suffix)


def without_syncs(suffix):
    """A writer that does not sync files of a name."""
    return lambda log: [
        e for e in log if isinstance(e, Promise) or not is_sync(e, suffix)
    ]


def without_folder_sync_after(kind, suffix):
    """A writer that does not sync the folder after a change of a name in it."""

    def mutate(log):
        found, armed = [], False
        for entry in log:
            if not isinstance(entry, Promise):
                changes = entry.kind == kind and entry.path.endswith(suffix)
                armed = armed or changes
                if armed and entry.kind == "sync" and "." not in entry.path[-16:]:
                    armed = False
                    continue
            found.append(entry)
        return found

    return mutate


def without_any_folder_sync(log):
    return [
        e
        for e in log
        if isinstance(e, Promise) or e.kind != "sync" or "." in e.path[-16:]
    ]


def in_place(log):
    """A writer that writes the root manifest where it will stay."""
    return [
        e
        if isinstance(e, Promise)
        else Op(e.kind, e.path.removesuffix(".tmp"), "", e.offset, e.size, e.data)
        for e in log
        if isinstance(e, Promise) or e.kind != "rename"
    ]


def promised_early(log):
    """A writer that promises at the rename, before the folder is synced."""
    found, steps = [], itertools.count(1)
    for entry in log:
        if not isinstance(entry, Promise):
            found.append(entry)
            if entry.kind == "rename":
                found.append(Promise(next(steps)))
    return found


WRONG = {
    "tensors are not synced": without_syncs(".safetensors"),
    "a rank's manifest is not synced": without_syncs("rank-00000.json.tmp"),
    "the root manifest is not synced": without_syncs("manifest.json.tmp"),
    "folders are not synced": without_any_folder_sync,
    "the folder is not synced before the commit": without_folder_sync_after(
        "rename", "rank-00000.json.tmp"
    ),
    "the folder is not synced after the commit": without_folder_sync_after(
        "rename", "manifest.json.tmp"
    ),
    "the folder above is not synced": without_folder_sync_after("mkdir", ""),
    "the folder is not synced in the middle of a deletion": without_folder_sync_after(
        "unlink", "manifest.json"
    ),
    "the root manifest is written in place": in_place,
    "it is promised before the folder is synced": promised_early,
}


@pytest.fixture(scope="module")
def right(tmp_path_factory, library):
    """A log of a run that does nothing wrong, and where it ran."""
    with Stage(tmp_path_factory.mktemp("right") / "stage", library) as stage:
        return record(stage), stage.root


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_wrong_writer_is_caught(right, tmp_path, name):
    log, root = right
    wrong = WRONG[name](log)
    assert wrong != log
    found = (
        problems_after(tree, required, tmp_path / "left")
        for _, tree, required in cuts(wrong, root, 20)
    )
    assert any(found)
