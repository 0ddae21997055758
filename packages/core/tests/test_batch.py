"""Batches as trees."""

from __future__ import annotations

import collections
import dataclasses
from collections import namedtuple

import pytest
import torch

from drivetrain_core import ProgramError
from drivetrain_core._data.batch import (
    batch_signature,
    batch_size,
    map_tensors,
    num_tokens,
    split_batch,
)

Pair = namedtuple("Pair", ["x", "note"])


def test_split_keeps_structure_and_what_is_not_batched():
    batch = {
        "x": torch.arange(5),
        "pair": Pair(torch.ones(5, 2), "a"),
        "k": [torch.ones(3)],
    }
    first, second = split_batch(batch, (2, 3))
    assert first["x"].tolist() == [0, 1]
    assert second["x"].tolist() == [2, 3, 4]
    assert isinstance(first["pair"], Pair)
    assert second["pair"].x.shape == (3, 2)
    assert second["pair"].note == "a"
    assert first["k"][0].shape == (3,)


def test_split_refuses_sizes_that_do_not_add_up():
    with pytest.raises(ProgramError, match="do not make up a batch of 5"):
        split_batch(torch.arange(5), (2, 2))


def images(*widths):
    return [torch.full((3, width, 2), float(width)) for width in widths]


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        ((images(4, 5, 6, 7), [{"label": torch.tensor(i)} for i in range(4)]), 4),
        ({"images": images(4, 5), "names": ["a", "b"]}, 2),
        ((images(4, 5, 6, 7), torch.arange(4)), 4),
        # As torchvision's references collate: tuple(zip(*samples)).
        (
            (
                tuple(images(4, 5)),
                ({"label": torch.zeros(1)}, {"label": torch.zeros(2)}),
            ),
            2,
        ),
        ({"ids": [torch.zeros(5), torch.zeros(7), torch.zeros(6)]}, 3),
        # Columns, however their shapes differ: maps of several scales, two languages.
        (([torch.zeros(8, 4, 4), torch.zeros(8, 2, 2)], torch.zeros(8)), 8),
        ([torch.zeros(8, 20), torch.zeros(8, 17)], 8),
        ({"pair": (torch.zeros(8, 20), torch.zeros(8, 17))}, 8),
        (
            (
                (torch.zeros(8, 2), torch.zeros(8, 3)),
                [torch.zeros(8, 1), torch.zeros(8)],
            ),
            8,
        ),
        ({"x": torch.zeros(9, 4), "edges": [torch.zeros(2, 5), torch.zeros(2, 7)]}, 9),
        (([torch.zeros(8, 3), torch.tensor(1.0)], torch.zeros(8)), 8),
        ((images(4, 4), torch.zeros(3)), 3),
    ],
)
def test_list_of_unequal_samples_is_counted_by_its_length(batch, size):
    assert batch_size(batch) == size


def test_list_of_unequal_samples_is_cut_between_them():
    # As many as an image has channels.
    batch = (images(4, 5, 6), [{"label": i} for i in range(3)])
    (one, label), (rest, labels) = split_batch(batch, (1, 2))
    assert [image.shape for image in one] == [(3, 4, 2)]
    assert [image.shape for image in rest] == [(3, 5, 2), (3, 6, 2)]
    assert (label, labels) == ([{"label": 0}], [{"label": 1}, {"label": 2}])


@pytest.mark.parametrize("batch", [None, 3, "text", {}, [], torch.tensor(1.0)])
def test_batch_without_a_batched_tensor_is_refused(batch):
    with pytest.raises(ProgramError, match="batch dimension"):
        batch_size(batch)


def test_signature_leaves_the_batch_out():
    def make(n):
        return {"ids": torch.zeros(n, 8, dtype=torch.long), "w": (torch.ones(n),)}

    assert batch_signature(make(2)) == batch_signature(make(7))
    assert batch_signature(make(2)) == "{ids: int64[*, 8], w: (float32[*])}"
    assert batch_signature(torch.tensor(1.0)) == "float32[]"


def test_tokens_are_integers_in_two_dimensions():
    assert num_tokens((torch.ones(4, 3), torch.zeros(4, 6, dtype=torch.int))) == 24
    assert num_tokens((torch.ones(4, 3), torch.zeros(4, dtype=torch.long))) is None


def test_map_keeps_special_mappings():
    class Batch(dict):
        pass

    assert type(map_tensors(lambda t: t, Batch(x=torch.ones(1)))) is Batch


class Attributes(dict):
    """Answers to any attribute, and raises what a dictionary does."""

    __getattr__ = dict.__getitem__


def test_mapping_with_attributes_is_a_batch():
    batch = Attributes(x=torch.arange(4), note="a")
    assert batch_size(batch) == 4
    assert batch_signature(batch) == "{x: int64[*], note: str}"
    first, second = split_batch(batch, (1, 3))
    assert type(first) is Attributes
    assert second.x.tolist() == [1, 2, 3]


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """What a `collate_fn` may return."""

    x: torch.Tensor
    notes: tuple[str, ...]


def test_dataclass_is_a_batch():
    batch = Record(torch.arange(6).view(3, 2), ("a", "b", "c"))
    assert batch_size(batch) == 3
    assert batch_signature(batch) == "Record{x: int64[*, 2], notes: (str, str, str)}"
    moved = map_tensors(lambda t: t + 1, batch)
    assert moved.x[0].tolist() == [1, 2]
    assert batch.x[0].tolist() == [0, 1]
    first, second = split_batch(batch, (1, 2))
    assert (first.notes, second.notes) == (("a",), ("b", "c"))
    assert second.x.tolist() == [[2, 3], [4, 5]]


def test_texts_stay_with_their_rows():
    batch = {"x": torch.arange(3), "text": ["a", "b", "c"], "shape": (4, 4)}
    parts = split_batch(batch, (2, 1))
    assert [part["text"] for part in parts] == [["a", "b"], ["c"]]
    assert [part["shape"] for part in parts] == [(4, 4), (4, 4)]


def test_map_and_split_keep_a_defaultdict():
    batch = collections.defaultdict(list, x=torch.arange(3))
    for other in (map_tensors(lambda t: t, batch), *split_batch(batch, (1, 2))):
        assert other["missing"] == []


LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_split_cuts_sparse_tensors_by_their_rows(layout):
    dense = torch.randn(5, 4) * (torch.rand(5, 4) < 0.4)
    batch = (torch.arange(5), dense.to_sparse(layout=layout))
    parts = split_batch(batch, (2, 0, 3))
    assert [part[1].layout for part in parts] == [layout] * 3
    assert torch.cat([part[1].to_dense() for part in parts]).equal(dense)
    assert split_batch(batch, (5,))[0][1] is batch[1]


def test_split_cuts_nested_tensors_by_their_samples():
    samples = [torch.randn(n, 2) for n in (3, 1, 2)]
    whole = torch.nested.nested_tensor(samples, layout=torch.jagged)
    first, last = split_batch((torch.arange(3), whole), (1, 2))
    again = [*first[1].unbind(), *last[1].unbind()]
    assert all(a.equal(b) for a, b in zip(samples, again, strict=True))
