"""States that cannot be held or filled are refused with the place of what is wrong."""

from enum import IntEnum

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.testing._internal.two_tensor import TwoTensor

from drivetrain_checkpoint import Checkpointer, load
from drivetrain_checkpoint.adapters._objects import hold, release
from drivetrain_checkpoint.dcp import Reader, Writer
from drivetrain_core import CheckpointError

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*nested tensors is in prototype", "ignore:torch.distributed is disabled"
)


class Level(IntEnum):
    HIGH = 3


def state_of(value):
    return {"x": torch.full((3,), float(value))}


def looped():
    inner = [1]
    inner.append(inner)
    return inner


def nested(**options):
    return torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], **options)


def freed():
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.fixture
def checkpointer(tmp_path):
    found = Checkpointer(tmp_path / "run", job="states")
    yield found
    found.stop_daemon()


@pytest.mark.parametrize("name", ["x", "new"])
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: torch.ones(3, device="meta"), TypeError, "{} is on the meta device"),
        (nested, TypeError, "{} is a nested tensor"),
        (lambda: nested(layout=torch.jagged), TypeError, "{} is a nested tensor"),
        (lambda: TwoTensor(torch.ones(3), torch.ones(3)), TypeError, "{}, a TwoTensor"),
        (freed, TypeError, "{}, a Tensor, has no memory: it was freed"),
        (lambda: {"a": looped()}, ValueError, r"{}\.a contains itself, as {}\.a\.1"),
        (lambda: [Level.HIGH], TypeError, r"{}\.0 is of type Level.*save its value"),
    ],
    ids=["meta", "nested", "jagged", "wrapper", "freed", "cycle", "enum"],
)
def test_state_without_a_form_is_refused_by_name(
    checkpointer, name, make, error, message
):
    # Under a name that was saved before, the tensor meets the plan of that save.
    assert checkpointer.save(1, state_of(1)).wait(60)
    with pytest.raises(error, match=message.format(name, name)):
        checkpointer.save(2, state_of(2) | {name: make()})
    into = state_of(0)
    assert checkpointer.restore(into) == 1
    assert into["x"].tolist() == [1, 1, 1]
    assert checkpointer.save(3, state_of(3)).wait(60)


def test_model_without_memory_is_refused_by_name(checkpointer):
    with pytest.raises(TypeError, match=r"model\.weight is on the meta device"):
        checkpointer.save(1, {"model": nn.Linear(2, 2, device="meta")})


def moved(tensor):
    tensor.resize_(1_000_000).fill_(2)
    tensor.resize_(3)


def replaced(tensor):
    tensor.untyped_storage().resize_(0)
    tensor.untyped_storage().resize_(4_000_000)
    tensor.fill_(2)


@pytest.mark.parametrize("change", [moved, replaced, torch.Tensor.share_memory_])
def test_tensor_whose_memory_moved_is_saved_from_where_it_lies(checkpointer, change):
    state = {"x": torch.ones(3), "y": torch.ones(3)}
    assert checkpointer.save(1, state).wait(60)
    change(state["x"])
    state["x"].fill_(2)
    assert checkpointer.save(2, state).wait(60)
    into = {"x": torch.zeros(3), "y": torch.zeros(3)}
    assert checkpointer.restore(into) == 2
    assert (into["x"].tolist(), into["y"].tolist()) == ([2] * 3, [1] * 3)


def test_tensor_that_is_freed_between_saves_is_named(checkpointer):
    state = {"x": torch.ones(3), "y": torch.ones(3)}
    assert checkpointer.save(1, state).wait(60)
    state["y"].untyped_storage().resize_(0)
    with pytest.raises(TypeError, match=r"y, a Tensor .*it was freed"):
        checkpointer.save(2, state)
    into = {"x": torch.zeros(3)}
    assert checkpointer.restore(into) == 1


def unwritable():
    with torch.inference_mode():
        inference = torch.zeros(3)
    return {
        "expanded": torch.zeros(1).expand(3),
        "freed": freed(),
        "inference": inference,
        "meta": torch.zeros(3, device="meta"),
    }


@pytest.mark.parametrize("where", ["memory", "storage"])
def test_tensors_that_cannot_be_written_are_told_before_any_is(checkpointer, where):
    state = {name: torch.ones(3) for name in (*unwritable(), "fine")}
    assert checkpointer.save(1, state | {"data": dict(state)}).wait(60)
    if where == "storage":
        checkpointer.stop_daemon()
    into = {"fine": torch.zeros(3), **unwritable()}
    with pytest.raises(CheckpointError) as caught:
        checkpointer.restore(into)
    told = [one.split(",")[0] for one in caught.value.mismatches]
    assert told == [
        "'expanded' is a view whose elements share memory: give a clone() of it",
        "'freed' has no memory: it was freed",
        "'inference' is an inference tensor: give a clone() of it",
        "'meta' is on the meta device",
    ]
    assert into["fine"].tolist() == [0, 0, 0]
    # What lies within plain data is put in its place, whatever was there.
    data = {"data": unwritable()}
    checkpointer.restore(data)
    assert all(tensor.tolist() == [1, 1, 1] for tensor in data["data"].values())


def test_load_tells_of_tensors_that_cannot_be_written(checkpointer, tmp_path):
    state = {name: torch.ones(3) for name in (*unwritable(), "fine")}
    assert checkpointer.save(1, state).wait(60)
    into = {"fine": torch.zeros(3), **unwritable()}
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path / "run", into)
    assert len(caught.value.mismatches) == 4
    assert into["fine"].tolist() == [0, 0, 0]
    into["fine"] = torch.zeros(1).expand(3)
    with pytest.raises(CheckpointException, match="'fine' is a view whose elements"):
        dcp.load({"fine": into["fine"]}, storage_reader=Reader(tmp_path / "run"))


NUMBERS = [np.float64(0.1), np.float32("inf"), np.int64(-3), np.str_("a"), np.bool_(1)]
VALUES = [*NUMBERS, torch.Size([2, 3]), [np.float16(-0.0), {"a": torch.Size([])}]]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_keep_their_class(checkpointer, value):
    assert checkpointer.save(1, {"value": value}).wait(60)
    checkpointer.stop_daemon()
    into = {"value": None}
    checkpointer.restore(into)
    assert repr(into["value"]) == repr(value)
    assert type(into["value"]) is type(value)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_keep_their_class_in_dcp(tmp_path, value):
    writer = Writer(tmp_path, job="states")
    dcp.save({"value": value}, storage_writer=writer)
    writer.close()
    into = {"value": value if isinstance(value, list) else None}
    dcp.load(into, storage_reader=Reader(tmp_path))
    assert repr(into["value"]) == repr(value)


def test_other_formats_are_given_plain_numbers(checkpointer, tmp_path):
    from drivetrain_checkpoint._formats.convert import convert

    assert checkpointer.save(1, {"rate": np.float64(0.5)}).wait(60)
    convert(tmp_path / "run", tmp_path / "out.pt", "torch")
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert repr(found) == "{'rate': 0.5}"


def test_adapters_hold_an_enum_as_an_object():
    with pytest.raises(
        TypeError, match=r"it\.level is of type Level.*objects='pickle'"
    ):
        hold({"level": Level.HIGH}, "it", "refuse")
    held = hold({"level": Level.HIGH, "size": torch.Size([1])}, "it", "pickle")
    assert not isinstance(held["level"], int)
    found = release(held, "it", trusted=True)
    assert found["level"] is Level.HIGH
    assert isinstance(found["size"], torch.Size)


class Tied(nn.Module):
    def __init__(self, *, tied):
        super().__init__()
        self.embed, self.out = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
        if tied:
            self.out.weight = self.embed.weight


def test_tied_weights_are_loaded_under_each_name(tmp_path, checkpointer):
    saved = Tied(tied=True)
    checkpointer.save(1, {"model": saved}).wait()
    for into in (Tied(tied=False), Tied(tied=True)):
        assert load(tmp_path / "run", into, key="model") == []
        assert torch.equal(into.out.weight, saved.embed.weight)
        assert torch.equal(into.embed.weight, saved.embed.weight)
    alone = {"out": {"weight": torch.zeros(4, 3)}}
    assert load(tmp_path / "run", alone, key="model") == []
    assert torch.equal(alone["out"]["weight"], saved.embed.weight)
    wrong = {"out": {"weight": torch.zeros(5, 3)}}
    with pytest.raises(CheckpointError, match=r"'out\.weight' is \[5, 3\]"):
        load(tmp_path / "run", wrong, key="model")
