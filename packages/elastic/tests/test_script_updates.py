"""Steps of optimizers that a script takes itself, and what ends a loop that makes none."""

import contextlib
import operator
import warnings

import pytest
import torch
import torch.distributed as dist

from drivetrain_core import DistributedError, ProgramError
from drivetrain_core.services import TorchProcessGroupFactory
from drivetrain_elastic import ElasticLoop, Schedule
from drivetrain_elastic._membership._connection import Connection
from drivetrain_elastic.testing import ScriptedWorlds

SCHEDULE = Schedule(num_samples=8, global_batch=4, shuffle=False)


def make(num_steps=3, **options):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = ElasticLoop(
        model, optimizer, schedule=SCHEDULE, num_steps=num_steps, **options
    )
    return loop, model, optimizer


def compute(step, model):
    for part in step.parts():
        (model(torch.ones(len(part.indices), 2)).mean() * part.weight).backward()


def test_update_of_the_script_is_made_where_it_stands():
    loop, model, optimizer = make()
    own = optimizer.step
    for step in loop:
        with step:
            compute(step, model)
            before = model.weight.detach().clone()
            optimizer.step()
            assert not torch.equal(model.weight, before)
            after = model.weight.detach().clone()
        assert torch.equal(model.weight, after)
        assert optimizer.step == own
        assert "_step_supports_amp_scaling" not in vars(optimizer)
    assert loop.step == 3


def train(loop, body):
    for step in loop:
        with step:
            body(step)


def test_second_update_of_a_step_is_refused():
    loop, model, optimizer = make()

    def body(step):
        compute(step, model)
        optimizer.step()
        optimizer.step()

    with pytest.raises(ProgramError, match="called once in each step"):
        train(loop, body)


def test_update_that_only_later_steps_have_is_refused():
    loop, model, optimizer = make()

    def body(step):
        compute(step, model)
        if step.number == 2:
            optimizer.step()

    with pytest.raises(ProgramError, match="or in none"):
        train(loop, body)


def test_schedule_of_the_learning_rate_does_not_warn():
    loop, model, optimizer = make()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in loop:
            with step:
                compute(step, model)
                optimizer.step()
                schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.1 / 8


def test_step_that_always_fails_ends_with_what_it_raises():
    loop, _, _ = make()
    tries = []

    def fails(step):
        tries.append(step.number)
        raise LookupError("sample 7")

    def train_all_the_same():
        for step in loop:
            with contextlib.suppress(LookupError), step:
                fails(step)

    with pytest.raises(DistributedError, match=r"31 .* LookupError.'sample 7'"):
        train_all_the_same()
    assert tries == [1] * 31


def test_loop_that_has_ended_gives_no_more_steps():
    loop, model, _ = make()
    for _ in range(2):
        for step in loop:
            with step:
                compute(step, model)
    assert loop.step == 3


def test_loop_that_an_error_has_ended_says_so(monkeypatch):
    loop, _, _ = make()
    monkeypatch.setattr(loop._membership, "wait", lambda *_: None)
    with pytest.raises(DistributedError, match="no world after 0"):
        next(iter(loop))
    with pytest.raises(ProgramError, match="has ended with an error"):
        next(iter(loop))


class Silent:
    """A group of one rank, which has nobody to reduce with."""

    def __init__(self, *_):
        pass

    def size(self):
        return 1

    def allgather(self, outputs, inputs):
        for output, (given,) in zip(outputs, [inputs], strict=True):
            output[0].copy_(given)
        return self

    def allreduce(self, _):
        raise AssertionError

    def wait(self):
        return True


def test_rank_without_peers_sends_and_copies_nothing():
    loop, model, _ = make(factory=Silent)
    seen = []

    def body(step):
        for part in step.parts():
            (model(torch.ones(4, 2)).mean() * part.weight).backward()
            seen[:] = [one.grad for one in model.parameters()]
        assert all(map(operator.is_, seen, [one.grad for one in model.parameters()]))

    train(loop, body)
    assert loop.is_done
    assert loop._num_collectives() == 0


def test_optimizer_that_is_given_more_is_refused_where_ranks_join():
    store = dist.HashStore()
    store.set("seats/1", "w0|")

    worlds = ScriptedWorlds("w0", lambda: store)
    connection = Connection(worlds, store, lambda: TorchProcessGroupFactory("gloo"))
    loop, model, optimizer = make(connection=connection)
    extra = torch.nn.Parameter(torch.ones(1))

    def body(step):
        optimizer.add_param_group({"params": [extra]})
        compute(step, model)

    with pytest.raises(ProgramError, match="given other parameters after the loop"):
        train(loop, body)
