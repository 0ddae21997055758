"""The DCP checkpointer: exact, crash-safe, and deaf to what a file wants to run."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections import Counter, OrderedDict, namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from drivetrain_core._errors import CheckpointError
from drivetrain_core.services import DcpCheckpointer, _checkpoint_folder
from drivetrain_core.services import _dcp_checkpointer as dcp_module
from drivetrain_core.services._checkpoint_folder import Folder, digest_of, read_manifest
from drivetrain_core.services.packed_state import PackedState
from drivetrain_testing import check_checkpointer, run_ranks


@pytest.mark.slow
def test_fallback_keeps_the_contract():
    check_checkpointer(DcpCheckpointer)


def trained(optimizer_type=torch.optim.Adam, **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = optimizer_type(model.parameters(), lr=0.1, **options)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


# Crashes


class Crash(BaseException):
    """The process dies here: nothing after this runs, no cleaning up either."""


def crash_at(monkeypatch, point):
    """Lets the process die at the n-th effect on the disk; returns how many there were."""
    count = 0

    def dying(function):
        def wrapped(*args, **kwargs):
            nonlocal count
            count += 1
            if count == point:
                raise Crash
            return function(*args, **kwargs)

        return wrapped

    monkeypatch.setattr(_checkpoint_folder, "sync", dying(_checkpoint_folder.sync))
    monkeypatch.setattr(dcp_module, "dcp_save", dying(dcp_module.dcp_save))
    monkeypatch.setattr(shutil, "rmtree", dying(shutil.rmtree))
    for name in ("rename", "mkdir", "write_text"):
        monkeypatch.setattr(Path, name, dying(getattr(Path, name)))
    monkeypatch.setattr(Folder, "discard", lambda self, path: None)
    return lambda: count


def test_crash_at_any_point_leaves_a_whole_checkpoint(tmp_path, monkeypatch):
    point, outcomes = 0, []
    while True:
        point += 1
        folder = tmp_path / str(point)
        for step in (1, 2):
            DcpCheckpointer(folder, keep=2).save(step, {"data": {"step": step}})
        with monkeypatch.context() as patch:
            count = crash_at(patch, point)
            try:
                DcpCheckpointer(folder, keep=2).save(3, {"data": {"step": 3}})
            # DCP tells of whatever ends it as an error of its own.
            except (Crash, CheckpointError):
                crashed = True
            else:
                crashed = False
        into = {"data": {}}
        step = DcpCheckpointer(folder).restore(into)
        outcomes.append(step)
        assert into == {"data": {"step": step}}
        # And the next save works, and clears what the crash has left.
        DcpCheckpointer(folder, keep=2).save(4, {"data": {"step": 4}})
        assert DcpCheckpointer(folder).restore(into) == 4
        assert not list(folder.glob(".*"))
        assert len(list(folder.iterdir())) == 2
        if not crashed:
            break
    assert point == count() + 1
    # Before the rename the earlier one is there, after it the new one.
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {2, 3}
    assert outcomes.count(2) >= 5


def test_failure_while_writing_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    checkpointer = DcpCheckpointer(tmp_path)
    checkpointer.save(1, {"data": 1})

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(dcp_module, "dcp_save", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            checkpointer.save(2, {"data": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["step-1.1"]
    assert checkpointer.save(2, {"data": 2}).durable


# What stays


def test_the_newest_checkpoints_stay(tmp_path):
    checkpointer = DcpCheckpointer(tmp_path, keep=2)
    for step in range(5):
        checkpointer.save(step, {"data": step})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-3.4", "step-4.5"]
    for step in range(5, 8):
        DcpCheckpointer(tmp_path, keep=None).save(step, {"data": step})
    assert len(list(tmp_path.iterdir())) == 5


def test_a_run_that_went_back_goes_on_from_there(tmp_path):
    checkpointer = DcpCheckpointer(tmp_path, keep=2)
    for step in (10, 20, 30):
        checkpointer.save(step, {"data": step})
    checkpointer.restore({"data": 0}, 20)
    checkpointer.save(21, {"data": 21})
    assert checkpointer.latest() == 21
    assert checkpointer.restore({"data": 0}) == 21


def test_foreign_files_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step-abc").mkdir()
    checkpointer = DcpCheckpointer(tmp_path, keep=1)
    assert checkpointer.latest() is None
    for step in (1, 2):
        checkpointer.save(step, {})
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "step-abc").is_dir()


@pytest.mark.parametrize("keep", [0, -1])
def test_keeping_nothing_is_refused(tmp_path, keep):
    with pytest.raises(ValueError, match="keep must be at least 1"):
        DcpCheckpointer(tmp_path, keep=keep)


@pytest.mark.parametrize("step", [-1, 1.0, True, "1"])
def test_step_is_checked(tmp_path, step):
    with pytest.raises(ValueError, match="step must be an integer"):
        DcpCheckpointer(tmp_path).save(step, {})


# What is held


@pytest.mark.parametrize(
    "value",
    [
        None,
        -0.0,
        float("inf"),
        2**80,
        1 + 2j,
        "text",
        b"\x00",
        (),
        [],
        {},
        (1, [2, (3, {"a": (4,)})]),
        {1: "a", (2): "b", None: "c", 1.5: "d", b"x": "e"},
        torch.float16,
        torch.device("cpu"),
        OrderedDict(b=1, a=2),
        Counter({3: 2}),
        {1, 2},
    ],
    ids=repr,
)
def test_plain_data_comes_back_as_it_was(tmp_path, value):
    DcpCheckpointer(tmp_path).save(0, {"data": value})
    into = {"data": object()}
    DcpCheckpointer(tmp_path).restore(into)
    assert into["data"] == value
    assert type(into["data"]) is type(value)
    assert repr(into["data"]) == repr(value)


@pytest.mark.parametrize(
    "value",
    [np.ones(2), object(), namedtuple("Point", "x")(1), len],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_read_safely_is_refused_with_its_place(tmp_path, value):
    with pytest.raises(TypeError, match=r"data\.here\.0 is of type"):
        DcpCheckpointer(tmp_path).save(0, {"data": {"here": [value]}})
    assert DcpCheckpointer(tmp_path).latest() is None


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(0),
        torch.tensor(3),
        torch.ones(2, 3).t(),
        torch.tensor([float("nan"), -0.0]),
        torch.ones(3, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.arange(6)[::2],
        torch.ones(2, dtype=torch.complex64),
    ],
    ids=range(8),
)
def test_tensors_of_any_kind_come_back(tmp_path, tensor):
    DcpCheckpointer(tmp_path).save(0, {"one": tensor, "inside": {"x": [tensor]}})
    into = {"one": torch.zeros_like(tensor), "inside": None}
    DcpCheckpointer(tmp_path).restore(into)
    for found in (into["one"], into["inside"]["x"][0]):
        assert found.dtype == tensor.dtype
        assert torch.equal(found.nan_to_num(), tensor.nan_to_num())


def test_tensor_is_restored_in_place_where_it_fits(tmp_path):
    DcpCheckpointer(tmp_path).save(0, {"a": torch.ones(2), "b": {"c": torch.ones(2)}})
    one, inside = torch.zeros(2), torch.zeros(2)
    into = {"a": one, "b": {"c": inside}}
    DcpCheckpointer(tmp_path).restore(into)
    assert one.tolist() == inside.tolist() == [1, 1]
    assert into["a"] is one
    assert into["b"]["c"].data_ptr() == inside.data_ptr()


def test_tensor_that_does_not_fit_is_refused(tmp_path):
    DcpCheckpointer(tmp_path).save(0, {"a": torch.ones(2)})
    for wrong in (torch.zeros(3), torch.zeros(2, dtype=torch.float64)):
        with pytest.raises(CheckpointError, match=r"'a' is \[.* in the checkpoint"):
            DcpCheckpointer(tmp_path).restore({"a": wrong})


@pytest.mark.parametrize("name", ["", "drivetrain.record"])
def test_name_that_is_taken_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="a name in the state"):
        DcpCheckpointer(tmp_path).save(0, {name: 1})


def test_two_tensors_of_one_name_are_refused(tmp_path):
    checkpointer = DcpCheckpointer(tmp_path)
    with pytest.raises(ValueError, match=r"named 'a\.b'"):
        checkpointer.save(0, {"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)})
    with pytest.raises(ValueError, match=r"named 'a\.1'"):
        checkpointer.save(0, {"a": {"1": torch.ones(1), 1: torch.ones(1)}})


# Models and optimizers


class WithExtraState(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        self.scales = {"amax": torch.ones(2), "count": 3}

    def get_extra_state(self):
        return self.scales

    def set_extra_state(self, state):
        self.scales = state


def test_extra_state_of_modules_comes_back(tmp_path):
    model = nn.DataParallel(nn.Sequential(WithExtraState()))
    model.module[0].scales = {"amax": torch.full((2,), 7.0), "count": 9}
    DcpCheckpointer(tmp_path).save(0, {"model": model})
    new = nn.Sequential(WithExtraState())
    DcpCheckpointer(tmp_path).restore({"model": new})
    assert new[0].scales["count"] == 9
    assert new[0].scales["amax"].tolist() == [7, 7]


def test_state_of_an_optimizer_that_has_stepped_is_dropped_if_it_was_not_saved(
    tmp_path,
):
    model = nn.Linear(3, 2)
    fresh = torch.optim.Adam(model.parameters(), lr=0.1)
    DcpCheckpointer(tmp_path).save(0, {"model": model, "optimizer": fresh})
    other, stepped = trained()
    DcpCheckpointer(tmp_path).restore({"model": other, "optimizer": stepped})
    assert all(not state for state in stepped.state.values())
    other.weight.grad = torch.ones(2, 3)
    stepped.step()
    assert stepped.state[other.weight]["step"] == 1


def test_optimizer_with_nested_state_goes_by_its_state_dict(tmp_path):
    def run(model, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = (model(torch.ones(4, 3)) - 1).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        return model.weight.detach().clone()

    model = nn.Linear(3, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    run(model, optimizer)
    DcpCheckpointer(tmp_path).save(0, {"model": model, "optimizer": optimizer})
    other = nn.Linear(3, 2)
    new = torch.optim.LBFGS(other.parameters(), lr=9.0, max_iter=3)
    DcpCheckpointer(tmp_path).restore({"model": other, "optimizer": new})
    assert torch.equal(run(model, optimizer), run(other, new))


def test_optimizer_without_its_model_goes_by_position(tmp_path):
    model, optimizer = trained()
    DcpCheckpointer(tmp_path).save(0, {"optimizer": optimizer})
    other = nn.Linear(3, 2)
    new = torch.optim.Adam(other.parameters())
    DcpCheckpointer(tmp_path).restore({"optimizer": new})
    assert torch.equal(
        new.state[other.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"]
    )


@pytest.mark.parametrize(
    ("into", "message"),
    [
        ({"modle": 0}, "no entry 'modle'; nearest: model"),
        ({"model": trained()[1]}, "'model' is an object here, but a model"),
        ({"optimizer": nn.Linear(3, 2)}, "is a model here, but an optimizer"),
        (
            {"model": nn.Linear(3, 2, bias=False)},
            r"'model\.bias' is in the checkpoint, but not here",
        ),
        ({"model": nn.Linear(3, 2).double()}, r"float64 here, but .*float32 in"),
    ],
    ids=range(5),
)
def test_state_that_does_not_fit_is_refused(tmp_path, into, message):
    model, optimizer = trained()
    DcpCheckpointer(tmp_path).save(0, {"model": model, "optimizer": optimizer})
    with pytest.raises(CheckpointError, match=message):
        DcpCheckpointer(tmp_path).restore(into)


def test_other_parameter_groups_are_refused(tmp_path):
    model, optimizer = trained()
    DcpCheckpointer(tmp_path).save(0, {"model": model, "optimizer": optimizer})
    groups = [{"params": [parameter]} for parameter in model.parameters()]
    with pytest.raises(CheckpointError, match="group 1 of the parameters"):
        DcpCheckpointer(tmp_path).restore(
            {"model": model, "optimizer": torch.optim.Adam(groups)}
        )


def test_what_an_object_raises_while_it_loads_is_told(tmp_path):
    class Loader:
        def state_dict(self):
            return {"position": 3}

        def load_state_dict(self, state):
            raise ValueError("no epoch")

    DcpCheckpointer(tmp_path).save(0, {"loader": Loader()})
    with pytest.raises(CheckpointError, match="ValueError: no epoch"):
        DcpCheckpointer(tmp_path).restore({"loader": Loader()})


def test_what_is_not_restored_is_logged(tmp_path, caplog):
    model, optimizer = trained()
    DcpCheckpointer(tmp_path).save(0, {"model": model, "optimizer": optimizer})
    into = {"model": nn.Linear(3, 2, bias=False), "position": 1}
    DcpCheckpointer(tmp_path).restore(into, strict=False)
    assert torch.equal(into["model"].weight, model.weight)
    (record,) = [
        r for r in caplog.records if r.name == dcp_module.__name__ if r.levelno > 20
    ]
    assert "'model.bias' is in the checkpoint, but not here" in record.getMessage()
    assert "no entry 'position'" in record.getMessage()


# Files that others have written


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def resign(folder):
    """Gives a checkpoint's files, changed by hand, a manifest that fits them."""
    (checkpoint,) = Folder(folder, None).committed()
    manifest = checkpoint.path / "manifest.json"
    names = read_manifest(checkpoint)
    manifest.unlink()
    body = {
        "drivetrain_checkpoint": 1,
        "files": {n: list(digest_of(checkpoint.path / n)) for n in sorted(names)},
    }
    body["crc32"] = _checkpoint_folder._crc(body)
    manifest.write_text(json.dumps(body))


def test_index_that_would_run_code_is_refused(tmp_path):
    folder, trap = tmp_path / "checkpoints", tmp_path / "trap"
    DcpCheckpointer(folder).save(0, {"data": 1})
    (index,) = folder.glob("*/.metadata")
    index.write_bytes(pickle.dumps(Evil(trap)))
    resign(folder)
    with pytest.raises(CheckpointError, match=r"asks for posix\.mkdir"):
        DcpCheckpointer(folder).restore({"data": 0})
    assert not trap.exists()


@pytest.mark.parametrize("content", [b"", b"junk", pickle.dumps({"a": 1})])
def test_index_that_is_none_is_refused(tmp_path, content):
    DcpCheckpointer(tmp_path).save(0, {"data": 1})
    (index,) = tmp_path.glob("*/.metadata")
    index.write_bytes(content)
    resign(tmp_path)
    with pytest.raises(CheckpointError, match="index"):
        DcpCheckpointer(tmp_path).restore({"data": 0})


def test_values_that_would_run_code_are_refused(tmp_path, monkeypatch):
    folder, trap = tmp_path / "checkpoints", tmp_path / "trap"
    evil = PackedState(
        {}, {"data": {"kind": "data", "tensors": [], "plain": Evil(trap)}}
    )
    with monkeypatch.context() as patch:
        patch.setattr(dcp_module, "pack_state", lambda state: evil)
        DcpCheckpointer(folder).save(0, {})
    with pytest.raises(CheckpointError, match=r"weights_only|Weights only"):
        DcpCheckpointer(folder).restore({"data": 0})
    assert not trap.exists()


def test_index_that_refers_elsewhere_is_refused(tmp_path):
    DcpCheckpointer(tmp_path).save(0, {"data": 1})
    (index,) = tmp_path.glob("*/.metadata")
    metadata = pickle.loads(index.read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = "../../secret"
    index.write_bytes(pickle.dumps(metadata))
    resign(tmp_path)
    with pytest.raises(CheckpointError, match="not part of it"):
        DcpCheckpointer(tmp_path).restore({"data": 0})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(drivetrain_checkpoint=2), "has format 2"),
        (lambda m: m["files"].update({"../x": [1, 1]}), "checksum"),
        (lambda m: m.update(files={}), "checksum"),
        (lambda m: m.pop("crc32"), "cannot be read"),
    ],
    ids=range(4),
)
def test_manifest_that_was_changed_is_refused(tmp_path, change, message):
    DcpCheckpointer(tmp_path).save(0, {"data": 1})
    (manifest,) = tmp_path.glob("*/manifest.json")
    content = json.loads(manifest.read_text())
    change(content)
    manifest.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=message):
        DcpCheckpointer(tmp_path).restore({"data": 0})


def test_manifest_that_leaves_the_folder_is_refused(tmp_path):
    DcpCheckpointer(tmp_path).save(0, {"data": 1})
    (manifest,) = tmp_path.glob("*/manifest.json")
    body = {"drivetrain_checkpoint": 1, "files": {"../secret": [1, 1]}}
    manifest.write_text(json.dumps({**body, "crc32": _checkpoint_folder._crc(body)}))
    with pytest.raises(CheckpointError, match="another folder"):
        DcpCheckpointer(tmp_path).restore({"data": 0})


def test_damage_names_the_file_and_the_step(tmp_path):
    DcpCheckpointer(tmp_path).save(7, {"data": torch.ones(100)})
    (data,) = tmp_path.glob("*/*.distcp")
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"step 7 is damaged: __0_0\.distcp has"):
        DcpCheckpointer(tmp_path).restore({"data": None})


def cut_short(folder, step):
    data = min(folder.glob(f"step-{step}.*/*.distcp"))
    data.write_bytes(data.read_bytes()[:-1])
    return data


@pytest.mark.parametrize("part", ["data", "manifest"])
def test_where_the_newest_is_damaged_the_one_before_is_restored(tmp_path, caplog, part):
    for step in (1, 2, 3):
        DcpCheckpointer(tmp_path).save(step, {"data": torch.full((100,), float(step))})
    if part == "data":
        cut_short(tmp_path, 3)
    else:
        next(tmp_path.glob("step-3.*/manifest.json")).unlink()
    into = {"data": torch.zeros(100)}
    assert DcpCheckpointer(tmp_path).restore(into) == 2
    assert into["data"][0] == 2
    name = "__0_0.distcp has" if part == "data" else "manifest.json is missing"
    assert f"step 3 is damaged: {name}" in caplog.text
    with pytest.raises(CheckpointError, match="step 3 is damaged"):
        DcpCheckpointer(tmp_path).restore(into, 3)


def test_damage_does_not_lead_to_what_a_training_left_behind(tmp_path):
    for step in (40, 100, 60):  # it went back from 100 to 40
        DcpCheckpointer(tmp_path).save(step, {"data": step})
    cut_short(tmp_path, 60)
    into = {"data": 0}
    assert DcpCheckpointer(tmp_path).restore(into) == 40
    cut_short(tmp_path, 40)
    with pytest.raises(CheckpointError, match="step 40 is damaged"):
        DcpCheckpointer(tmp_path).restore(into)
    assert into == {"data": 40}


def test_state_that_does_not_fit_the_newest_is_no_damage(tmp_path):
    DcpCheckpointer(tmp_path).save(1, {"data": torch.ones(2)})
    DcpCheckpointer(tmp_path).save(2, {"data": torch.ones(3)})
    with pytest.raises(CheckpointError, match=r"\[2\] .* here, but \[3\]"):
        DcpCheckpointer(tmp_path).restore({"data": torch.ones(2)})


# Several ranks


def save_with_a_failing_rank(folder):
    checkpointer = DcpCheckpointer(folder)
    checkpointer.save(1, {"data": 1})
    messages = []
    unfit = {"data": object() if dist.get_rank() == 1 else 1}
    try:
        checkpointer.save(2, unfit)
    except (CheckpointError, TypeError) as error:
        messages.append(f"{type(error).__name__}: {error}")
    if dist.get_rank() == 1:
        dcp_module.digest_of = None  # what it has written cannot be read again
    try:
        checkpointer.save(3, {"data": 1})
    except CheckpointError as error:
        messages.append(str(error))
    with pytest.raises(ValueError, match=r"different values in seed\. Save what"):
        checkpointer.save(4, {"seed": torch.tensor(dist.get_rank())})
    into = {"data": 0}
    return messages, checkpointer.restore(into), into


def restore_beside_damage(folder):
    checkpointer = DcpCheckpointer(folder)
    for step in (1, 2):
        checkpointer.save(step, {"data": step})
    if dist.get_rank() == 0:
        cut_short(folder, 2)
    dist.barrier()
    into = {"data": 0}
    return checkpointer.restore(into), into


@pytest.mark.slow
def test_damage_that_one_rank_finds_leads_all_to_the_one_before(tmp_path):
    assert run_ranks(restore_beside_damage, 2, tmp_path) == [(1, {"data": 1})] * 2


@pytest.mark.slow
def test_failure_on_one_rank_is_an_error_on_all(tmp_path):
    first, second = run_ranks(save_with_a_failing_rank, 2, tmp_path)
    assert first[0][0].startswith("CheckpointError: rank 1 failed: TypeError: data")
    assert second[0][0].startswith("TypeError: data")
    assert "failed: TypeError" in first[0][1]
    assert "TypeError" in second[0][1]
    assert first[1:] == second[1:] == (1, {"data": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["step-1.1"]
