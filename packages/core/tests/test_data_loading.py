"""Workers that a plan adds read what the program reads, in its order, or are refused."""

from __future__ import annotations

import functools
import io
import socket
import sqlite3
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from drivetrain_core import PlanError, accelerate
from drivetrain_core._data.open_handles import open_handle

WORKERS = [("data_loading", {"workers": 1})]

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Rows(Dataset):
    def __init__(self, **fields):
        self.scale = 1.0
        self.fields = fields

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.tensor([index * self.scale])


def train(loader, strategy):
    return accelerate(
        nn.Linear(1, 1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        loader,
        lambda output, batch: output.mean(),
        strategy=strategy,
        progress=False,
    )


def passes(loader, number=3):
    return [torch.cat(list(loader)).flatten().tolist() for _ in range(number)]


def test_order_of_each_pass_is_that_of_the_loader_with_a_generator():
    def loader():
        generator = torch.Generator().manual_seed(3)
        return DataLoader(Rows(), 4, shuffle=True, generator=generator)

    expected = passes(loader())
    assert passes(train(loader(), WORKERS).loader) == expected
    assert expected[1] != expected[2]


def test_workers_see_what_the_loop_changes_between_passes():
    data = Rows()
    loader = train(DataLoader(data, 4), WORKERS).loader
    for scale in (1.0, 2.0, 3.0):
        data.scale = scale
        assert max(passes(loader, 1)[0]) == 11 * scale


def test_data_set_with_an_open_file_gets_no_workers(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(b"rows")
    with path.open("rb") as file:
        loader = DataLoader(Subset(Rows(parts=[file]), range(12)), 4)
        with pytest.raises(PlanError, match="holds an open BufferedReader") as caught:
            train(loader, WORKERS)
        assert "__getitem__" in caught.value.fix
        train(loader, [("data_loading", {"workers": 0})])
        # Whoever has workers already knows of them.
        train(DataLoader(loader.dataset, 4, num_workers=1), WORKERS)
    train(loader, WORKERS)


def reading(file):
    return lambda: file.read()


def test_open_handles_are_found_where_they_lie(tmp_path):
    with (tmp_path / "rows").open("wb") as file, socket.socket() as line:
        held = [
            (Rows(a={"b": [file]}), "BufferedWriter"),
            (Rows(a=reading(file)), "BufferedWriter"),
            (Rows(a=functools.partial(print, file=file).keywords), "BufferedWriter"),
            (Subset(Rows(a=line), [0]), "socket"),
        ]
        for data, name in held:
            assert open_handle(data) == name
    # Closed, nothing is shared any more.
    assert [open_handle(data) for data, _ in held[:3]] == [""] * 3
    database = sqlite3.connect(":memory:")
    assert open_handle(Rows(a=database)) == "Connection"
    database.close()


def test_what_forked_workers_may_share_is_no_handle():
    data = Rows(
        lock=threading.Lock(),
        memory=io.BytesIO(b"rows"),
        tensor=torch.ones(2),
        numbers=list(range(100_000)),
        transform=nn.Linear(1, 1),
        draw=torch.Generator(),
    )
    data.fields["itself"] = data
    assert open_handle(data) == ""
