"""Plain data comes back as what it was, or is refused with its place."""

from collections import defaultdict
from enum import IntEnum

import numpy as np
import pytest
import torch
from torch import nn

from drivetrain_core.services import DcpCheckpointer


class Level(IntEnum):
    HIGH = 3


class Step(int):
    pass


class Config(dict):
    pass


@pytest.mark.parametrize(
    "value",
    [
        np.float64(0.5),
        np.float32(0.1),
        np.float16(-0.0),
        np.int64(-3),
        np.uint8(255),
        np.bool_(True),
        np.complex64(1 + 2j),
        np.str_("a"),
        np.bytes_(b"\x00a"),
        torch.Size([1, 2]),
        torch.Size([]),
        defaultdict(list, a=[1]),
        defaultdict(None, {3: 1}),
    ],
    ids=repr,
)
def test_what_is_derived_from_plain_data_comes_back_as_itself(tmp_path, value):
    DcpCheckpointer(tmp_path).save(0, {"data": [value, {"x": value}]})
    into = {"data": None}
    DcpCheckpointer(tmp_path).restore(into)
    for found in (into["data"][0], into["data"][1]["x"]):
        assert type(found) is type(value)
        assert repr(found) == repr(value)
        assert getattr(found, "default_factory", 0) is getattr(
            value, "default_factory", 0
        )


def test_tensor_in_a_defaultdict_comes_back(tmp_path):
    DcpCheckpointer(tmp_path).save(0, {"data": defaultdict(dict, a=torch.ones(2))})
    into = {"data": None}
    DcpCheckpointer(tmp_path).restore(into)
    assert into["data"]["a"].tolist() == [1, 1]
    assert into["data"]["b"] == {}


def test_numbers_of_numpy_in_an_optimizer_come_back(tmp_path):
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=np.float64(0.1), momentum=np.float32(0.9))
    DcpCheckpointer(tmp_path).save(0, {"optimizer": optimizer})
    again = torch.optim.SGD([weight], lr=1.0)
    DcpCheckpointer(tmp_path).restore({"optimizer": again})
    (group,) = again.param_groups
    assert [repr(group[k]) for k in ("lr", "momentum")] == [
        repr(np.float64(0.1)),
        repr(np.float32(0.9)),
    ]


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (Level.HIGH, "of type Level.* save its value or its name"),
        (Step(3), "of type Step.* come back as int"),
        (Config(a=1), "of type Config.* come back as dict"),
        (defaultdict(lambda: 3), "a defaultdict of <function.* save dict"),
        (np.longdouble(1), "of type longdouble"),
        ({Level.HIGH: 1}, "^a key of data.here.0 is of type Level"),
        (np.datetime64("2020-01-01"), "of type datetime64"),
    ],
    ids=["enum", "int", "dict", "defaultdict", "longdouble", "key", "datetime64"],
)
def test_class_that_would_be_lost_is_refused_with_its_place(tmp_path, value, hint):
    with pytest.raises(TypeError, match=hint) as caught:
        DcpCheckpointer(tmp_path).save(0, {"data": {"here": [value]}})
    assert "data.here.0" in str(caught.value)


def test_state_that_contains_itself_is_refused_with_its_place(tmp_path):
    inner = {}
    inner["up"] = [inner]
    message = r"^data\.a contains itself, as data\.a\.up\.0: break the cycle"
    with pytest.raises(ValueError, match=message):
        DcpCheckpointer(tmp_path).save(0, {"data": {"a": inner}})


def test_state_may_be_deep_but_not_without_end(tmp_path):
    value = []
    for _ in range(63):
        value = [value]
    DcpCheckpointer(tmp_path).save(0, {"data": value})
    into = {"data": None}
    DcpCheckpointer(tmp_path).restore(into)
    assert into["data"] == value
    with pytest.raises(ValueError, match="data is nested more than 64 levels deep"):
        DcpCheckpointer(tmp_path).save(1, {"data": [value]})
