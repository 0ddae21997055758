"""Decoupled 1F1B computes what torch's computes, bit by bit."""

import os
import re
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, schedules

from drivetrain_core import DistributedError, MissingLibraryError
from drivetrain_parallel.overlap import DecoupledSchedule1F1B, OverlapError
from drivetrain_parallel.overlap import _schedule_1f1b as ours
from drivetrain_testing import run_ranks

CPU = torch.device("cpu")


class Two(nn.Module):
    """A stage that hands on two tensors."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x, y=None):
        y = x if y is None else y
        return self.one(x).tanh(), self.other(y).sin()


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = Two()

    def forward(self, x, y=None):
        first, second = self.inside(x, y)
        return first + second


def train(make, num_microbatches, **options):
    """Three steps and an evaluation; returns all that they leave."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    module = Last() if rank == size - 1 else Two()
    stage = PipelineStage(module, rank, size, CPU)
    schedule = make(stage, num_microbatches, loss_fn=nn.functional.mse_loss, **options)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    found = []
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(4 * num_microbatches, 6, generator=generator)
        inputs = [x] if rank == 0 else []
        losses = []
        target = {"target": x, "losses": losses} if rank == size - 1 else {}
        output = schedule.step(*inputs, **target)
        found += [p.grad.clone() for p in module.parameters()]
        found += losses + ([] if output is None else [output])
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        output = schedule.eval(*inputs, **target)
    return [*found, *module.parameters(), *([] if output is None else [output])]


def compare(cases):
    for num_microbatches, options in cases:
        expected = train(Schedule1F1B, num_microbatches)
        given = dict(options)
        if given.pop("groups", False):
            ranks = list(range(dist.get_world_size()))
            given["groups"] = (dist.new_group(ranks), dist.new_group(ranks))
        found = train(DecoupledSchedule1F1B, num_microbatches, **given)
        assert len(expected) == len(found)
        assert all(map(torch.equal, expected, found))
        # torch's schedule still works after it, in the same process.
        again = train(Schedule1F1B, num_microbatches)
        assert all(map(torch.equal, expected, again))


CASES = [
    (4, {}),
    (7, {"receives_ahead": 1}),
    (5, {"eager": True}),
    (4, {"eager": True, "receives_ahead": 9, "groups": True}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(1, marks=pytest.mark.faults),
        2,
        pytest.param(4, marks=pytest.mark.faults),
    ],
)
def test_bits_are_those_of_torchs_schedule(size):
    run_ranks(compare, size, CASES)


def order(eager):
    """The order of computations of each stage, as its module sees them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    seen = []
    module = nn.Linear(2, 2)
    module.register_forward_hook(lambda *_: seen.append("F"))
    module.register_full_backward_hook(lambda *_: seen.append("B"))
    stage = PipelineStage(module, rank, size, CPU)
    loss = nn.functional.mse_loss
    schedule = DecoupledSchedule1F1B(stage, 6, loss_fn=loss, eager=eager)
    x = torch.ones(6, 2, requires_grad=True)
    for _ in range(2):
        seen.clear()
        target = {"target": x.detach()} if rank == size - 1 else {}
        schedule.step(*([x] if rank == 0 else []), **target)
    return "".join(seen)


def test_eager_runs_forwards_ahead_and_plain_does_not():
    assert run_ranks(order, 3, False) == ["FFFBFBFBFBBB", "FFBFBFBFBFBB", "FB" * 6]
    assert run_ranks(order, 3, True) == ["FFFFFBFBBBBB", "FFFBFBFBFBBB", "FB" * 6]


def no_wait_for_sends():
    """The first stage runs five forwards while the next one is still in its first."""
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    calls = []

    class Slow(nn.Linear):
        def forward(self, x):
            calls.append(1)
            if rank == 0:
                store.set(f"forward {len(calls)}", "")
            # The first call infers shapes. Two receives are posted, so two sends of the
            # five have not been taken.
            elif rank == 1 and len(calls) == 2:
                store.wait(["forward 6"], timedelta(seconds=20))
            return super().forward(x)

    stage = PipelineStage(Slow(2, 2), rank, 3, CPU)
    loss = nn.functional.mse_loss
    schedule = DecoupledSchedule1F1B(
        stage, 6, loss_fn=loss, eager=True, receives_ahead=1
    )
    x = torch.ones(6, 2)
    inputs, target = [x] if rank == 0 else [], {"target": x} if rank == 2 else {}
    schedule.step(*inputs, **target)
    return len(calls)


def test_a_stage_does_not_wait_until_its_sends_are_taken():
    assert run_ranks(no_wait_for_sends, 3) == [7, 7, 7]


def takes_part(outcome):
    rank = int(os.environ["RANK"])
    if rank == 1 and outcome == "dies":
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return "dead"
    timeout = timedelta(seconds=30 if outcome == "dies" else 3)
    dist.init_process_group("gloo", timeout=timeout)
    store = dist.distributed_c10d._get_default_store()
    calls = []

    class Leaves(nn.Linear):
        def forward(self, x):
            calls.append(1)
            if rank == 1 and len(calls) == 4:
                if outcome == "dies":
                    os._exit(3)
                store.wait(["done"], timedelta(seconds=30))
                raise KeyboardInterrupt
            return super().forward(x)

    stage = PipelineStage(Leaves(2, 2), rank, 2, CPU)
    schedule = DecoupledSchedule1F1B(stage, 6, loss_fn=nn.functional.mse_loss)
    x = torch.ones(6, 2)
    if rank == 1:
        with pytest.raises(KeyboardInterrupt):
            schedule.step(target=x)
        return "stuck"
    with pytest.raises(DistributedError) as caught:
        schedule.step(x)
    store.set("done", "")
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("outcome", ["dies", "is stuck"])
def test_a_lost_stage_is_an_error_of_its_neighbour(outcome):
    found = run_ranks(takes_part, 2, outcome, process_group=False)
    assert found[1] in ("dead", "stuck")
    # One that is dead may be missed as soon as something is sent to it.
    sent = "(gradient|activation)" if outcome == "dies" else "gradient"
    assert re.match(f".*rank 0 could not exchange the {sent} of microbatch", found[0])


def tells_its_order():
    rank, size = dist.get_rank(), dist.get_world_size()
    orders = []
    for make, options in ((Schedule1F1B, {}), (DecoupledSchedule1F1B, {"eager": True})):
        stage = PipelineStage(Last() if rank == size - 1 else Two(), rank, size, CPU)
        schedule = make(stage, 4, loss_fn=nn.functional.mse_loss, **options)
        x = torch.ones(8, 6)
        inputs = [x] if rank == 0 else []
        schedule.step(*inputs, **({"target": x} if rank == size - 1 else {}))
        orders.append(schedule._get_pipeline_order())
    assert orders[0] == orders[1]
    assert len(orders[1]) == size


def test_eager_does_not_change_what_torch_takes_for_the_number_of_stages():
    run_ranks(tells_its_order, 2)


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_arguments_that_do_not_fit_are_errors():
    stage = PipelineStage(nn.Linear(2, 2), 0, 1, CPU)
    with pytest.raises(OverlapError, match="at least 1, got 0"):
        DecoupledSchedule1F1B(stage, 2, receives_ahead=0)
    stage.device = torch.device("cuda")
    with pytest.raises(OverlapError, match=r"on cuda.*need a group each.*groups="):
        DecoupledSchedule1F1B(stage, 2)


@pytest.mark.usefixtures("one_rank")
def test_a_torch_that_builds_schedules_otherwise_is_an_error(monkeypatch):
    stage = PipelineStage(nn.Linear(2, 2), 0, 1, CPU)
    monkeypatch.setattr(Schedule1F1B, "_step_microbatches", lambda self: self._steps())
    with pytest.raises(MissingLibraryError, match=r"no .*forward_one_chunk.*2\.13"):
        DecoupledSchedule1F1B(stage, 2)
    monkeypatch.undo()
    monkeypatch.delattr(schedules.PipelineScheduleSingle, "_initialize_stage")
    with pytest.raises(MissingLibraryError, match="_initialize_stage"):
        ours._require_seams()
