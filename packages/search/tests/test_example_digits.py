"""The example program of digits: its data, its model, and what it needs."""

from __future__ import annotations

import sys
from itertools import islice

import pytest
import torch

from drivetrain_core import MissingLibraryError
from drivetrain_core._data.cycle import cycle
from drivetrain_search.examples import digits


@pytest.fixture
def digit_images():
    pytest.importorskip("sklearn")
    return digits.load_digits()


@pytest.mark.extra
def test_digits_are_split_once_and_for_all(digit_images):
    train, test = digit_images
    assert (len(train), len(test)) == (1500, 297)
    again = digits.load_digits()[1]
    assert torch.equal(again.tensors[0], test.tensors[0])
    image, label = train[0]
    assert image.shape == (1, 8, 8)
    assert 0 <= image.min() <= image.max() <= 1
    assert 0 <= int(label) < 10


@pytest.mark.extra
def test_digits_net_learns_in_sixty_steps(digit_images):
    train, test = digit_images
    torch.set_num_threads(1)
    model = digits.DigitsNet(width=8)
    untrained = digits.accuracy(model, test, torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    data = torch.utils.data.DataLoader(train, batch_size=64, shuffle=True)
    for batch in islice(cycle(data), 60):
        optimizer.zero_grad()
        digits.loss(model(batch[0]), batch).backward()
        optimizer.step()
    assert digits.accuracy(model, test, torch.device("cpu")) > untrained + 0.5


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(
        MissingLibraryError, match=r"pip install 'drivetrain-search\[ex"
    ):
        digits.load_digits()
