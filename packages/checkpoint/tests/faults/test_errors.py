"""Storage that fails, is full, is read-only, hangs or is missing under a save."""

import errno

import pytest

from drivetrain_checkpoint import StorageError
from faults.errors import Storage
from faults.shim import Action
from faults.stage import Stage
from faults.state import listed, problems_of, restored, state_of

ERRORS = [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT]
EVERY = [
    pytest.param(7, id="short"),
    pytest.param(1, id="long", marks=pytest.mark.faults),
]
"""Every how many calls one is spoiled."""


@pytest.fixture
def storage(tmp_path, library, request):
    world_size = getattr(request, "param", 1)
    with Stage(tmp_path / "stage", library) as stage:
        yield Storage(stage, tmp_path / "left", world_size)


def tried(spoil, every, first, most=1000):
    """Spoils every so many calls of a save, until there are no more."""
    wrong, places = [], range(1 + first % every, most, every)
    for num_tried, at in enumerate(places):
        problems = spoil(at)
        if problems is None:
            return wrong, num_tried
        wrong += [(at, problem) for problem in problems]
    return wrong, len(places)


@pytest.mark.slow
@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("lasts", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("storage", [1, 2], indirect=True)
def test_error_is_told_and_the_next_save_works(storage, tally, every, error, lasts):
    def spoil(at):
        problems = storage.save_spoiled(at, Action.FAIL, error=error, lasts=lasts)
        if problems is not None:
            tally.add(f"{errno.errorcode[error]} {'on' if lasts else 'once'}", problems)
        return problems

    wrong, num_tried = tried(spoil, every, ERRORS.index(error))
    assert wrong == []
    assert num_tried >= storage.num_calls // every // 2


@pytest.mark.slow
@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES], ids=errno.errorcode.get)
def test_file_that_cannot_be_read_holds_up_nothing(storage, tally, every, error):
    def spoil(at):
        problems = storage.save_spoiled(at, Action.FAIL, error=error, reads=True)
        if problems is not None:
            tally.add("cannot be opened to read", problems)
        return problems

    # What is left of saves that failed is looked at too, so that there is no last call.
    wrong, num_tried = tried(spoil, every, 3, 2 * storage.num_calls)
    assert wrong == []
    assert num_tried >= storage.num_calls // every // 2


@pytest.mark.parametrize("every", EVERY)
def test_short_write_is_continued(storage, tally, every):
    def spoil(at):
        problems = storage.save_spoiled(at, Action.SHORT)
        if problems is not None:
            tally.add("short write", problems)
        return problems

    wrong, _ = tried(spoil, every, 2)
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("storage", [1, 2], indirect=True)
def test_storage_that_hangs_is_waited_for_and_nothing_promised(storage, tally, every):
    def spoil(at):
        problems = storage.save_hung(at)
        if problems is not None:
            tally.add("hung storage", problems)
        return problems

    wrong, num_tried = tried(spoil, every, 4)
    assert wrong == []
    assert num_tried >= storage.num_calls // every // 2


@pytest.fixture
def stage(tmp_path, library):
    with Stage(tmp_path / "stage", library) as made:
        yield made


def test_storage_without_direct_writes_is_written_to(stage, tally):
    stage.control["buffered"] = 1
    trainers = stage.start()
    assert trainers.ask("save", 1) == [("saved", 1)]
    assert trainers.ask("wait", 1, 30.0) == [("durable", 1)]
    problems = problems_of(stage.folder, {1})
    tally.add("no direct writes", problems)
    assert problems == []


def test_place_that_is_no_folder_is_told_and_mended(stage, tally):
    checkpointer = stage.checkpointer()
    stage.folder.parent.mkdir(parents=True)
    stage.folder.write_text("no folder")
    handle = checkpointer.save(1, state_of(1))
    with pytest.raises(StorageError, match=r"step 1 was not saved: .*cannot make"):
        handle.wait(60)
    assert handle.done
    assert not handle.durable
    assert listed_or_none(stage.folder) is None
    stage.folder.unlink()
    assert checkpointer.save(2, state_of(2)).wait(60)
    problems = problems_of(stage.folder, {2})
    tally.add("no folder", problems)
    assert problems == []


def listed_or_none(folder):
    return listed(folder) if folder.is_dir() else None


def test_folder_that_vanishes_is_made_again(stage, tally):
    checkpointer = stage.checkpointer()
    assert checkpointer.save(1, state_of(1)).wait(60)
    stage.folder.rename(stage.root / "moved")
    assert checkpointer.save(2, state_of(2)).wait(60)
    problems = problems_of(stage.folder, {2})
    tally.add("missing folder", problems)
    assert problems == []
    assert restored(stage.root / "moved", 1) == (1, [])
