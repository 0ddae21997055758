"""A whole state, from one rank to another."""

import pytest
import torch
import torch.distributed as dist

from drivetrain_core import DistributedError
from drivetrain_elastic import ElasticDistributedSampler, ElasticLoop, Schedule
from drivetrain_elastic._membership._world_group import RankLostError
from drivetrain_elastic._training import _state_transfer
from drivetrain_testing import RankError, run_ranks


def parts(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 + seed)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3 + seed)
    sampler = ElasticDistributedSampler(range(50), 2, 0)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "sampler": sampler,
        "rng": torch.get_rng_state(),
        "notes": {"step": seed, "best": float("inf"), "empty": torch.zeros(0, 3)},
    }


def train(state, num_steps):
    for _ in range(num_steps):
        state["optimizer"].zero_grad()
        state["model"](torch.rand(4, 7, dtype=torch.float64)).square().sum().backward()
        state["optimizer"].step()
        state["scheduler"].step()
    state["sampler"].advance(num_steps)


def moves(parcel_bytes):
    _state_transfer._PARCEL_BYTES = parcel_bytes
    dist.init_process_group("gloo")
    group, rank = dist.group.WORLD, dist.get_rank()
    state = parts(rank)
    if rank == 0:
        train(state, 4)
        num = _state_transfer.give_state(group, 1, state)
    else:
        num = _state_transfer.take_state(group, 0, state)
    # Both go on alike: not only the values, but all that steers them has moved.
    torch.manual_seed(9)
    train(state, 3)
    values = [one.detach() for one in state["model"].state_dict().values()]
    found = num, values, state["sampler"].position, state["notes"]["best"]
    rate = state["optimizer"].param_groups[0]["lr"]
    dist.barrier()
    dist.destroy_process_group()
    return found, rate


@pytest.mark.parametrize("parcel_bytes", [24, 100, 1000, 1 << 20])
def test_state_arrives_whole_and_both_go_on_alike(parcel_bytes):
    given, taken = run_ranks(moves, 2, parcel_bytes, process_group=False)
    (num, values, *rest), rate = given
    (num_taken, values_taken, *rest_taken), rate_taken = taken
    assert num == num_taken > 500
    assert all(map(torch.equal, values, values_taken))
    assert (rest, rate) == (rest_taken, rate_taken)
    assert rest == [7, float("inf")]


class Between:
    """A process group whose sent tensors are changed on their way, by their number."""

    def __init__(self, group, change):
        self._group, self._change, self._num = group, change, 0

    def send(self, tensors, to, tag):
        self._num += 1
        return self._group.send([self._change(self._num, *tensors)], to, tag)


def damaged():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:

        def flip(number, tensor):
            if number == 3:  # the first parcel: the description has come before it
                tensor = tensor.clone()
                tensor[141] ^= 1 << 4
            return tensor

        _state_transfer.give_state(Between(dist.group.WORLD, flip), 1, parts(0))
    else:
        _state_transfer.take_state(dist.group.WORLD, 0, parts(1))


@pytest.mark.slow
def test_bit_that_flips_on_the_way_is_found():
    with pytest.raises(
        RankError,
        match=r"'model\.0\.weight' and \d+ more from rank 0: not what was sent",
    ):
        run_ranks(damaged, 2, process_group=False)


def test_large_tensors_take_parcels_of_their_own(monkeypatch):
    monkeypatch.setattr(_state_transfer, "_PARCEL_BYTES", 10)
    assert list(_state_transfer._parcels([3, 0, 4, 25, 10, 1, 9])) == [
        [(0, 0, 3), (2, 0, 4)],
        [(3, 0, 10)],
        [(3, 10, 20)],
        [(3, 20, 25)],
        [(4, 0, 10)],
        [(5, 0, 1), (6, 0, 9)],
    ]
    assert list(_state_transfer._parcels([])) == []


def other_model():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        # The other one goes in the middle of it.
        with pytest.raises(RuntimeError):
            _state_transfer.give_state(
                dist.group.WORLD, 1, {"model": torch.nn.Linear(3, 2)}
            )
        return None
    model = torch.nn.Linear(3, 4)
    before = model.weight.detach().clone()
    try:
        _state_transfer.take_state(dist.group.WORLD, 0, {"model": model})
    except OSError as error:
        assert torch.equal(model.weight, before)
        return str(error)
    return None


def test_state_that_does_not_fit_is_refused_and_changes_nothing():
    _, told = run_ranks(other_model, 2, process_group=False)
    assert "model.weight" in told
    assert "[4, 3]" in told


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b'{"entries": 1, "tensors": [["a", "rm_rf", [1], 1]]}', b"\x80\x04."],
)
def test_description_that_nobody_knows_is_refused(text):
    with pytest.raises(RuntimeError, match="rank 5 describes its state"):
        _state_transfer._read_header(torch.tensor(list(text), dtype=torch.uint8), 5)


def test_sum_sees_each_flipped_bit():
    for dtype, num in ((torch.float64, 9), (torch.int16, 7), (torch.bool, 3)):
        data = torch.ones(num, dtype=dtype)
        raw = data.view(torch.uint8)
        before = _state_transfer._sum(raw)
        for at in range(len(raw)):
            raw[at] ^= 4
            assert _state_transfer._sum(raw) != before
            raw[at] ^= 4
        assert _state_transfer._sum(raw) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor[torch.arange(99, -1, -1)],
        lambda tensor: tensor.nextafter(torch.tensor(9e9)),
        lambda tensor: tensor.reshape(10, 10),
        lambda tensor: tensor.double(),
    ],
    ids=["order", "bits", "shape", "dtype"],
)
def test_states_that_differ_have_other_digests(change):
    tensor = torch.rand(100)
    digest = _state_transfer.state_digest({"a": {"b": tensor}})
    assert digest == _state_transfer.state_digest({"a": {"b": tensor.clone()}})
    assert digest != _state_transfer.state_digest({"a": {"b": change(tensor)}})


class Stubborn:
    """Something that cannot have another one's state."""

    def state_dict(self):
        return {"n": 1}

    def load_state_dict(self, state):
        raise RuntimeError("the size does not match")


def refuses():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        _state_transfer.give_state(dist.group.WORLD, 1, {"odd": Stubborn()})
        return None
    with pytest.raises(RuntimeError, match="the size does not match") as caught:
        _state_transfer.take_state(dist.group.WORLD, 0, {"odd": Stubborn()})
    return isinstance(caught.value, RankLostError)


def test_error_of_what_takes_a_state_is_not_that_of_a_lost_rank():
    # The one would come again in each world; after the other the next world may stand.
    assert run_ranks(refuses, 2, process_group=False) == [None, False]


class Kept:
    """A checkpoint of step 2, in memory, in which all weights are 1."""

    def latest(self):
        return 2

    def restore(self, entries, step=None):
        assert step in {None, 2}
        for one in entries["model"].parameters():
            one.data.fill_(1.0)
        entries["drivetrain.progress"] = [2, 0, 8, 8]
        return 2


def half_taken(checkpointer):
    dist.init_process_group("gloo")
    group, rank = dist.group.WORLD, dist.get_rank()
    model = torch.nn.Linear(3, 2)
    loop = ElasticLoop(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        schedule=Schedule(num_samples=8, global_batch=4),
        num_steps=1,
        checkpointer=checkpointer,
    )
    training = loop._training
    loop._checkpoints.restore()
    if rank == 0:

        def die(number, tensor):
            if number == 4:
                raise KeyError
            return tensor

        with pytest.raises(KeyError):
            training.give(Between(group, die), 1)
        return None
    for one in model.parameters():
        one.data.fill_(5.0)
    with pytest.raises(RankLostError):
        training.take(group, 0)
    assert (training.has_state, training.is_torn) == (False, True)
    try:
        loop._checkpoints.begin_anew()
    except DistributedError as error:
        return str(error)
    return [one.tolist() for one in model.parameters()], training.step


def test_half_a_state_is_nobodys():
    _, told = run_ranks(half_taken, 2, None, process_group=False)
    assert "this rank has half of it, and cannot go on" in told
    # What was restored as the loop began is restored again.
    _, found = run_ranks(half_taken, 2, Kept(), process_group=False)
    assert found == ([[[1.0] * 3] * 2, [1.0] * 2], 2)
