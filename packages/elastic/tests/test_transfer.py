"""A whole state, from one rank to another."""

import pytest
import torch
import torch.distributed as dist

from drivetrain_core.testing import RankError, run_ranks
from drivetrain_elastic import ElasticDistributedSampler, _transfer


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


def moves(chunk_bytes):
    _transfer._CHUNK_BYTES = chunk_bytes
    dist.init_process_group("gloo")
    group, rank = dist.group.WORLD, dist.get_rank()
    state = parts(rank)
    if rank == 0:
        train(state, 4)
        num = _transfer.give_state(group, 1, state)
    else:
        num = _transfer.take_state(group, 0, state)
    # Both go on alike: not only the values, but all that steers them has moved.
    torch.manual_seed(9)
    train(state, 3)
    values = [one.detach() for one in state["model"].state_dict().values()]
    found = num, values, state["sampler"].position, state["notes"]["best"]
    rate = state["optimizer"].param_groups[0]["lr"]
    dist.barrier()
    dist.destroy_process_group()
    return found, rate


@pytest.mark.parametrize("chunk_bytes", [8, 100, 1 << 20])
def test_state_arrives_whole_and_both_go_on_alike(chunk_bytes):
    given, taken = run_ranks(moves, 2, chunk_bytes, process_group=False)
    (num, values, *rest), rate = given
    (num_taken, values_taken, *rest_taken), rate_taken = taken
    assert num == num_taken > 500
    assert all(map(torch.equal, values, values_taken))
    assert (rest, rate) == (rest_taken, rate_taken)
    assert rest == [7, float("inf")]


def damaged():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        send = _transfer._send

        def flip(group, to, tensor):
            if tensor.dtype == torch.float64 and tensor.numel() == 35:
                tensor = tensor.clone()
                tensor.view(torch.int64)[17] ^= 1 << 40
            send(group, to, tensor)

        _transfer._send, real = flip, _transfer._sum
        _transfer.give_state(dist.group.WORLD, 1, parts(0))
        return real is not None
    _transfer.take_state(dist.group.WORLD, 0, parts(1))
    return False


def test_bit_that_flips_on_the_way_is_found():
    with pytest.raises(
        RankError, match=r"chunk 0 of 'model\.0\.weight' from rank 0 is"
    ):
        run_ranks(damaged, 2, process_group=False)


def other_model():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        # The other one goes in the middle of it.
        with pytest.raises(RuntimeError):
            _transfer.give_state(dist.group.WORLD, 1, {"model": torch.nn.Linear(3, 2)})
        return None
    model = torch.nn.Linear(3, 4)
    before = model.weight.detach().clone()
    try:
        _transfer.take_state(dist.group.WORLD, 0, {"model": model})
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
        _transfer._read_header(torch.tensor(list(text), dtype=torch.uint8), 5)


def test_sum_sees_each_flipped_bit():
    for dtype, num in ((torch.float64, 9), (torch.int16, 7), (torch.bool, 3)):
        data = torch.ones(num, dtype=dtype)
        before = _transfer._sum(data)
        raw = data.view(torch.uint8)
        for at in range(len(raw)):
            raw[at] ^= 4
            assert not torch.equal(_transfer._sum(data), before)
            raw[at] ^= 4
        assert torch.equal(_transfer._sum(data), before)
