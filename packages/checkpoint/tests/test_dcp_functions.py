"""Torch's functions for distributed checkpoints do with this format what they do with theirs.

Each is run with torch's own writer and reader, and with the ones of this package. The page
`reference/checkpoint.md` has them in a table.
"""

import copy

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import state_dict as of_torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from drivetrain_checkpoint._formats.convert import convert
from drivetrain_checkpoint.dcp import Reader, Writer

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:.*is deprecated"),
    pytest.mark.filterwarnings("ignore:.*TypedStorage", "ignore:Detected an existing"),
]


@pytest.fixture(params=["torch", "here"])
def tools(request, tmp_path):
    """A writer and a reader of one folder: torch's own, and those of this package."""
    place = tmp_path / request.param
    if request.param == "torch":
        yield dcp.FileSystemWriter(place), dcp.FileSystemReader(place)
        return
    writer = Writer(place, job="functions")
    yield writer, Reader(place)
    writer.close()


class Counter:
    def __init__(self, count):
        self.count = count

    def state_dict(self):
        return {"count": self.count, "tensor": torch.tensor(self.count)}

    def load_state_dict(self, state):
        self.count = state["count"] + 100 * int(state["tensor"])


def nested(value):
    return {
        "w": torch.full((3,), float(value)),
        "inner": {"list": [torch.tensor(value), value], "text": f"at {value}"},
        "counter": Counter(value),
    }


def check(state):
    assert state["w"].tolist() == [4, 4, 4]
    assert state["inner"]["list"] == [torch.tensor(4), 4]
    assert state["inner"]["text"] == "at 4"
    assert state["counter"].count == 404


@pytest.mark.parametrize("options", [{}, {"no_dist": True}], ids=["", "no_dist"])
def test_save_and_load(tools, options):
    dcp.save(nested(4), storage_writer=tools[0], **options)
    state = nested(0)
    dcp.load(state, storage_reader=tools[1], **options)
    check(state)


def test_save_state_dict_and_load_state_dict(tools):
    state = {"w": torch.ones(2), "seen": 3}
    dcp.save_state_dict(state, tools[0], no_dist=True)
    into = {"w": torch.zeros(2), "seen": 0}
    dcp.load_state_dict(into, tools[1], no_dist=True)
    assert (into["w"].tolist(), into["seen"]) == ([1, 1], 3)


@pytest.mark.parametrize(
    "options",
    [
        {"flatten_state_dict": False},
        {"dedup_save_to_lowest_rank": True},
        {"enable_plan_caching": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_the_default_save_planner(tools, options):
    state = {"w": torch.ones(2), "inner": {"seen": 3}}
    planner = dcp.DefaultSavePlanner(**options)
    for _ in range(2):
        state["w"] += 1
        dcp.save(state, storage_writer=tools[0], planner=planner)
    into = {"w": torch.zeros(2), "inner": {"seen": 0}}
    flat = options.get("flatten_state_dict", True)
    loader = dcp.DefaultLoadPlanner(flatten_state_dict=flat)
    dcp.load(into, storage_reader=tools[1], planner=loader)
    # Torch's loader puts values back into flattened states alone.
    assert (into["w"].tolist(), into["inner"]) == ([3, 3], {"seen": 3 if flat else 0})


def test_load_planner_that_allows_a_part(tools):
    dcp.save({"w": torch.ones(2)}, storage_writer=tools[0])
    into = {"w": torch.zeros(2), "more": torch.zeros(1), "seen": 5}
    with pytest.raises((CheckpointException, RuntimeError), match="Missing key"):
        dcp.load(dict(into), storage_reader=tools[1])
    planner = dcp.DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(into, storage_reader=tools[1], planner=planner)
    assert (into["w"].tolist(), into["more"].item(), into["seen"]) == ([1, 1], 0, 5)


class Halving(dcp.DefaultLoadPlanner):
    def commit_tensor(self, read_item, tensor):
        tensor /= 2


def test_load_planner_of_ones_own(tools):
    dcp.save({"w": torch.ones(2)}, storage_writer=tools[0])
    into = {"w": torch.zeros(2)}
    dcp.load(into, storage_reader=tools[1], planner=Halving())
    assert into["w"].tolist() == [0.5, 0.5]


class Casting(dcp.DefaultSavePlanner):
    def transform_object(self, write_item, object):
        return super().transform_object(write_item, object)


def test_save_planner_of_ones_own_is_refused_by_name(tmp_path):
    writer = Writer(tmp_path, job="functions")
    message = "Casting has a transform_object of its own"
    with pytest.raises(CheckpointException, match=message):
        dcp.save({"w": torch.ones(2)}, storage_writer=writer, planner=Casting())
    writer.close()


def test_shape_that_is_another_is_refused(tools):
    dcp.save({"w": torch.ones(2)}, storage_writer=tools[0])
    with pytest.raises((CheckpointException, ValueError), match="Size mismatch"):
        dcp.load({"w": torch.zeros(3)}, storage_reader=tools[1])


def trained(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model[0].weight.requires_grad_(seed > 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 + seed)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


OPTIONS = [
    {},
    {"full_state_dict": True, "cpu_offload": True},
    {"ignore_frozen_params": True},
    {"flatten_optimizer_state_dict": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: next(iter(o), "default"))
def test_get_state_dict_and_set_state_dict(tools, options):
    chosen = of_torch.StateDictOptions(**options, strict=False)
    saved, fresh = trained(0), trained(1)
    names = ("model", "optimizer")
    state = zip(names, of_torch.get_state_dict(*saved, options=chosen), strict=True)
    state = copy.deepcopy(dict(state))
    dcp.save(state, storage_writer=tools[0])
    into = dict(
        zip(names, of_torch.get_state_dict(*fresh, options=chosen), strict=True)
    )
    dcp.load(into, storage_reader=tools[1])
    of_torch.set_state_dict(
        *fresh,
        model_state_dict=into["model"],
        optim_state_dict=into["optimizer"],
        options=chosen,
    )
    for name, value in state["model"].items():
        assert torch.equal(fresh[0].state_dict()[name], value), name
    group, expected = fresh[1].param_groups[0], saved[1].param_groups[0]
    assert group["lr"] == expected["lr"]
    ours, theirs = (one.state_dict()["state"] for one in (fresh[1], saved[1]))
    assert all(torch.equal(ours[i]["exp_avg"], theirs[i]["exp_avg"]) for i in theirs)


def test_get_model_and_get_optimizer_state_dict(tools):
    saved, fresh = trained(0), trained(1)
    parts = {
        "model": of_torch.get_model_state_dict(saved[0]),
        "optimizer": of_torch.get_optimizer_state_dict(*saved),
    }
    dcp.save(parts, storage_writer=tools[0])
    into = {
        "model": of_torch.get_model_state_dict(fresh[0]),
        "optimizer": of_torch.get_optimizer_state_dict(*fresh),
    }
    dcp.load(into, storage_reader=tools[1])
    of_torch.set_model_state_dict(fresh[0], into["model"])
    of_torch.set_optimizer_state_dict(*fresh, into["optimizer"])
    assert torch.equal(fresh[0][0].bias, saved[0][0].bias)
    assert fresh[1].param_groups[0]["lr"] == saved[1].param_groups[0]["lr"]


def test_metadata_lists_what_was_saved(tools):
    dcp.save({"w": torch.ones(2, 3), "seen": 3}, storage_writer=tools[0])
    found = tools[1].read_metadata().state_dict_metadata
    assert found.keys() == {"w", "seen"}
    assert found["w"].size == torch.Size([2, 3])
    assert isinstance(found["seen"], dcp.BytesStorageMetadata)


@pytest.mark.parametrize(
    "option", ["single_file_per_rank", "thread_count", "overwrite", "_extensions"]
)
def test_options_of_torchs_file_system_writer_are_refused_by_name(tmp_path, option):
    with pytest.raises(TypeError, match=f"Writer has no argument {option!r}"):
        Writer(tmp_path, **{option: 1})


def test_files_of_torch_save_come_from_convert(tmp_path):
    writer = Writer(tmp_path / "here", job="functions")
    dcp.save({"w": torch.ones(2)}, storage_writer=writer)
    writer.close()
    with pytest.raises((CheckpointException, FileNotFoundError), match=r"\.metadata"):
        dcp_to_torch_save(tmp_path / "here", tmp_path / "a.pt")
    convert(tmp_path / "here", tmp_path / "b.pt", "torch")
    assert torch.load(tmp_path / "b.pt")["w"].tolist() == [1, 1]
