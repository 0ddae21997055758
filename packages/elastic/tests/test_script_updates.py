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
from drivetrain_elastic._training._training_state import Training
from drivetrain_elastic.testing import ScriptedWorlds
from drivetrain_testing import run_ranks

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


def gives_its_gradients(is_left_out):
    """Rank 0 has the sums of a step, some of them without a gradient; rank 1 lacks them."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.ModuleList(
        [
            torch.nn.Linear(2, 1),
            torch.nn.Linear(2, 1),
            torch.nn.Embedding(5, 2, sparse=True),
            torch.nn.Linear(1, 1, dtype=torch.cfloat),
        ]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    training = Training(model, optimizer, {"scaler": scaler}, SCHEDULE)
    training.begin(1, *[bool] * 3)
    group = dist.group.WORLD
    if dist.get_rank() == 0:
        y = model[0](model[2](torch.tensor([1, 3]))).sum()
        (y + model[3](torch.ones(1, dtype=torch.cfloat)).abs().sum()).backward()
        training.reducer.finish(dist.new_group([0], use_local_synchronization=True))
        training.reducer.show()
        training.settle(None, is_left_out=is_left_out)
        scaler.update(32.0)
        training.give_gradients(group, 1)
    else:
        training.reducer.abandon()
        training.take_gradients(group, 0)
    training.apply()
    found = [one.detach() for one in model.parameters()]
    sums = training.reducer.sums
    kinds = sums and [one if one is None else one.layout for one in sums]
    scale = scaler.get_scale()
    dist.barrier()
    dist.destroy_process_group()
    return found, kinds, scale, training.step, training.reduced


@pytest.mark.parametrize("is_left_out", [False, True])
def test_rank_that_lacks_gradients_takes_them_as_they_are(is_left_out):
    given, taken = run_ranks(gives_its_gradients, 2, is_left_out, process_group=False)
    assert all(map(torch.equal, given[0], taken[0]))
    assert given[1:] == taken[1:]
    dense, rows = torch.strided, torch.sparse_coo
    kinds = [dense, dense, None, None, rows, dense, dense]
    assert taken[1:] == (None if is_left_out else kinds, 32.0, 1, 1)


def test_update_that_changes_its_gradients_is_spent():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = Training(model, optimizer, {}, SCHEDULE)
    for is_spent in (False, True):
        if is_spent:
            optimizer.register_step_pre_hook(
                lambda *_: model.weight.grad.mul_(2.0) is None or None
            )
        training.begin(1, *[bool] * 3)
        model(torch.ones(1, 2)).sum().backward()
        training.reducer.finish(dist.ProcessGroupGloo(dist.HashStore(), 0, 1))
        training.reducer.show()
        training.settle(None, is_left_out=False)
        training.apply()
        assert training.is_spent is is_spent


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
