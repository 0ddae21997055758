"""Losses of a training that loses, gains and leaves ranks are those of one that does not."""

import contextlib
import gc
import math
import os
import threading
import time
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from blocking_group import BlockingGroupFactory
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from drivetrain_core import DistributedError, ProgramError
from drivetrain_core.extending import mark_data_part
from drivetrain_core.services import TorchProcessGroupFactory
from drivetrain_core.services._dcp_checkpointer import DurableSave
from drivetrain_elastic._data._schedule import Position, Schedule
from drivetrain_elastic._membership._connection import Connection
from drivetrain_elastic._membership._rank_assignment import (
    CheckpointRequest,
    RankAssignment,
)
from drivetrain_elastic._membership._world_group import RankLostError
from drivetrain_elastic._training import _loop
from drivetrain_elastic._training._loop import ElasticLoop
from drivetrain_elastic.testing import ScriptedWorlds as Worlds
from drivetrain_elastic.testing import connect_store, write_worlds
from drivetrain_testing import RankError, run_ranks

make_factory = partial(TorchProcessGroupFactory, "gloo")
NUM_STEPS, BATCH, NUM_SAMPLES = 40, 12, 100


def make_loop(made, connection, *, num_steps=3, seed=0, num_micro_batches=2):
    """Returns the loop of a rank that computes its samples in two parts."""
    return ElasticLoop(
        *made,
        schedule=Schedule(num_samples=NUM_SAMPLES, global_batch=BATCH, seed=seed),
        num_steps=num_steps,
        connection=connection,
        timeout=timedelta(seconds=30),
        num_micro_batches=num_micro_batches,
        patience_s=30,
    )


def make_model():
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    model = torch.nn.Sequential(*layers).double()
    return model, torch.optim.AdamW(model.parameters(), lr=0.02)


def clip(model):
    """Where scripts do it: after all backward passes, and with an effect here."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    assert norm > 0


def samples():
    generator = torch.Generator().manual_seed(4)
    x = torch.rand(NUM_SAMPLES, 6, generator=generator, dtype=torch.float64)
    return x, torch.sin(3 * x).sum(1, keepdim=True)


def part_loss(model, part):
    x, y = samples()
    return (model(x[part.indices]) - y[part.indices]).square().mean()


def alone():
    """The same steps in one process: the loss of each over its global batch."""
    model, optimizer = make_model()
    schedule = Schedule(num_samples=NUM_SAMPLES, global_batch=BATCH, seed=2)
    losses = []
    position = Position()
    for _ in range(NUM_STEPS):
        block = schedule.block(position, num_copies=1)
        position = schedule.after(block)
        (part,) = schedule.parts(block, num_shares=1, share=0)
        optimizer.zero_grad()
        loss = part_loss(model, part)
        loss.backward()
        clip(model)
        optimizer.step()
        losses.append(loss.item())
    return losses, [one.detach() for one in model.parameters()]


class CaughtError(Exception):
    """A step fails, and the script goes on all the same."""


def worker(script):
    """Trains; rank 0 of the processes also plays the master, and follows the script."""
    at = int(os.environ["RANK"])
    name, store = f"w{at}", connect_store()
    plan = script.get(name, {})
    if at == 0:
        threading.Thread(
            target=write_worlds,
            args=(connect_store(), script["first"], script["events"]),
            daemon=True,
        ).start()
    if "joins" in plan:
        store.wait(["midway"])
        store.set(f"ready/{name}", "1")
    worlds = Worlds(name, connect_store)
    model, optimizer = make_model()
    if "joins" in plan or at == 1:
        for one in model.parameters():
            one.data.add_(7.0)  # what it makes itself must not matter
    loop = make_loop(
        (model, optimizer),
        Connection(
            worlds,
            dist.PrefixStore("job", store),
            BlockingGroupFactory if script.get("blocks") else make_factory,
        ),
        num_steps=NUM_STEPS,
        seed=2,
    )
    losses, epochs = {}, {}
    for step in loop:
        losses[step.number] = 0.0
        epochs[step.number] = step.epoch
        with contextlib.suppress(CaughtError), contextlib.ExitStack() as stack:
            stack.enter_context(step)
            for number, part in enumerate(step.parts()):
                loss = part_loss(model, part) * part.weight
                loss.backward()
                losses[step.number] += loss.item()
                if plan.get("dies") == (step.number, number):
                    store.set(f"dead/{name}", "1")
                    # The others hear nothing of it from here.
                    stack.pop_all()
                    break
                if plan.pop("fails", None) == (step.number, number):
                    raise CaughtError
            clip(model)
            if plan.get("dies") == (step.number, "clipped"):
                store.set(f"dead/{name}", "1")
                stack.pop_all()
        if "dies" in plan and step.number == plan["dies"][0]:
            return losses, epochs, None, None
        if at == 0 and step.number == 5:
            store.set("midway", "1")
        if plan.get("leaves") == step.number:
            store.set(f"leaving/{name}", "1")
        time.sleep(0.01)
    parameters = [one.detach() for one in model.parameters()]
    return losses, epochs, parameters, loop.step


SCRIPTS = {
    "undisturbed": {"first": ["w0", "w1", "w2"], "events": []},
    "death": {
        "first": ["w0", "w1", "w2"],
        "events": [("dead", "w2")],
        "w2": {"dies": (10, 1)},
    },
    "death after clipping": {
        "first": ["w0", "w1", "w2"],
        "events": [("dead", "w1")],
        "w1": {"dies": (10, "clipped")},
    },
    "error that the script catches": {
        "first": ["w0", "w1", "w2"],
        "events": [("broken", "w2")],
        "w2": {"fails": (10, 0)},
    },
    "two deaths": {
        "first": ["w0", "w1", "w2"],
        "events": [("dead", "w1"), ("dead", "w2")],
        "w1": {"dies": (5, 0)},
        "w2": {"dies": (12, 1)},
    },
    "death in a group that blocks": {
        "first": ["w0", "w1", "w2"],
        "events": [("dead", "w2")],
        "w2": {"dies": (10, 1)},
        "blocks": True,
    },
    "leave": {
        "first": ["w0", "w1", "w2"],
        "events": [("leaving", "w1")],
        "w1": {"leaves": 7},
    },
    "death and replacement": {
        "first": ["w0", "w1"],
        "events": [("dead", "w1"), ("ready", "w2")],
        "w1": {"dies": (6, 0)},
        "w2": {"joins": True},
    },
    "growth": {
        "first": ["w0", "w1"],
        "events": [("ready", "w2")],
        "w2": {"joins": True},
    },
}


LONG = {"undisturbed", "death", "two deaths", "growth"}
EACH = [
    pytest.param(name, marks=pytest.mark.faults if name in LONG else ())
    for name in SCRIPTS
]


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_losses_are_those_of_the_undisturbed_training(name):
    script = SCRIPTS[name]
    wanted, parameters = alone()
    ranks = run_ranks(worker, 3, script, process_group=False)
    done = [rank for rank in ranks if rank[3] == NUM_STEPS]
    left = {n for what, n in script["events"] if what in {"dead", "leaving"}}
    assert len(done) == 3 - len(left)
    for _, _, mine, _ in done:
        # All alike bit by bit, and like the single process within rounding.
        assert all(map(torch.equal, mine, done[0][2]))
        for one, other in zip(mine, parameters, strict=True):
            assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)
    # A step's loss is the sum of the parts of the world in which it counted: the last one
    # that made it.
    first = next(rank for rank in done if 1 in rank[0])
    for step in range(1, NUM_STEPS + 1):
        epoch = first[1][step]
        parts = [r[0][step] for r in ranks if r[1].get(step) == epoch]
        assert sum(parts) == pytest.approx(wanted[step - 1], rel=1e-9), step


def leaves_early():
    model, optimizer = make_model()
    store = dist.HashStore()
    store.set("seats/1", "w0|")
    worlds = Worlds("w0", lambda: store)
    connection = Connection(worlds, dist.PrefixStore("job", store), make_factory)
    loop = make_loop((model, optimizer), connection)
    for step in loop:
        with step:
            for part in step.parts():
                part_loss(model, part).backward()
                break


@pytest.mark.slow
def test_step_that_is_left_before_its_end_is_an_error():
    with pytest.raises(RankError, match="step 1 was left before all of its parts"):
        run_ranks(leaves_early, 1, process_group=False)


def computes_twice():
    model, optimizer = make_model()
    for step in make_loop((model, optimizer), None):
        with step:
            for _ in range(2):
                for part in step.parts():
                    part_loss(model, part).backward()


def test_parts_of_a_step_are_computed_once():
    with pytest.raises(ProgramError, match="parts of step 1 were all computed before"):
        computes_twice()


def trains(change, *, first=list, num_micro_batches=1):
    """Trains alone with a change of the gradients, before which all parts may be made."""
    model, optimizer = make_model()
    made = (model, optimizer)
    loop = make_loop(made, None, seed=2, num_micro_batches=num_micro_batches)
    for step in loop:
        with step:
            for part in first(step.parts()):
                (part_loss(model, part) * part.weight).backward()
                if change.__name__ == "within":
                    change(model)
            if change.__name__ != "within":
                change(model)
    return [one.detach() for one in model.parameters()]


def within(model):
    model[0].weight.grad *= 0.5


def replaced(model):
    for one in model.parameters():
        one.grad = one.grad * 0.5


def in_place(model):
    for one in model.parameters():
        one.grad *= 0.5


def test_gradients_that_the_script_replaces_after_the_parts_count():
    mine, theirs = trains(replaced, first=iter), trains(in_place, first=iter)
    assert all(map(torch.equal, mine, theirs))
    assert not torch.equal(mine[0], trains(unchanged, first=iter)[0])


def test_gradients_changed_before_they_are_sums_are_refused():
    with pytest.raises(ProgramError, match="changed before they were sums over all"):
        trains(within, first=iter)


@pytest.mark.parametrize("num_micro_batches", [1, 2])
def test_passes_after_the_loop_over_the_parts_are_refused(num_micro_batches):
    with pytest.raises(ProgramError, match="after the loop over the parts of a step"):
        trains(unchanged, num_micro_batches=num_micro_batches)


def unchanged(model):
    pass


def comes_too_late():
    name, store = f"w{os.environ['RANK']}", connect_store()
    if name == "w0":
        store.set("seats/1", "w0|")
    model, optimizer = make_model()
    worlds = Worlds(name, connect_store)
    connection = Connection(worlds, dist.PrefixStore("job", store), make_factory)
    loop = make_loop((model, optimizer), connection)
    for step in loop:
        with step:
            for part in step.parts():
                part_loss(model, part).backward()
    if name == "w0":
        # As this rank was at its end, the world was changed.
        store.set("seats/2", "w0 w1|")
        store.wait(["over"])
    store.set("over", "1")
    return loop.step, loop.is_done


@pytest.mark.slow
def test_rank_that_comes_as_the_others_finish_ends_too():
    found = run_ranks(comes_too_late, 2, process_group=False)
    assert found == [(3, True), (0, False)]


def test_worlds_that_all_break_as_they_form_end_the_worker(monkeypatch):
    monkeypatch.setattr(_loop, "_LONGEST_WAIT_S", 0.0)
    store = dist.HashStore()
    for epoch in range(1, 40):
        store.set(f"seats/{epoch}", "w0|")

    def refuse(*_):
        raise RuntimeError("no route to host")

    worlds = Worlds("w0", lambda: store)
    connection = Connection(worlds, dist.PrefixStore("job", store), lambda: refuse)
    loop = make_loop(make_model(), connection)
    # One after another, as a master tells them.
    monkeypatch.setattr(worlds, "wait", one_by_one())
    with pytest.raises(
        DistributedError, match=r"31 worlds in a row .* no route to host"
    ):
        next(iter(loop))


def one_by_one():
    return lambda newer_than, _: RankAssignment(newer_than + 1, 0, ("w0",), ("node",))


def test_collector_waits_until_the_first_step_of_the_next_world():
    store = dist.HashStore()
    store.set("seats/1", "w0|")
    connection = Connection(Worlds("w0", lambda: store), store, make_factory)
    model, optimizer = make_model()
    seen = []
    for step in make_loop((model, optimizer), connection):
        with contextlib.suppress(ZeroDivisionError), step:
            seen.append((step.epoch, step.number, gc.isenabled()))
            if step.epoch == 1 and step.number == 2:
                store.set("seats/2", "w0|")
                raise ZeroDivisionError
            for part in step.parts():
                (part_loss(model, part) * part.weight).backward()
    assert seen == [(1, 1, True), (1, 2, True), (2, 2, False), (2, 3, True)]
    assert gc.isenabled()


def fails_on_one_of_a_copy(what):
    """Both ranks hold one copy; a reduction fails on the second of them alone."""
    name, store = f"w{os.environ['RANK']}", connect_store()
    if name == "w0":
        store.set("seats/1", "w0 w1|")
    worlds = CopyOfTwo(name, connect_store)
    model, optimizer = make_model()
    loop = make_loop((model, optimizer), Connection(worlds, store, make_factory))
    tell = getattr(loop, what)

    def tell_or_fail(*world):
        lost = tell(*world)
        if name == "w1" and loop.step == 1 and loop._epoch == 1:
            store.set("seats/2", "w0 w1|w1")
            return RankLostError("its line is broken")
        return lost

    setattr(loop, what, tell_or_fail)
    made, behind = [], []
    for step in loop:
        with step:
            made.append((step.epoch, step.number))
            for part in step.parts():
                (part_loss(model, part) * part.weight).backward()
            behind.append(step.number)
    return made, behind, [one.sum().item() for one in model.parameters()]


class CopyOfTwo(Worlds):
    def latest(self):
        assignment = super().latest()
        return assignment and assignment._replace(unit=2)

    def wait(self, newer_than, timeout_s):
        assignment = super().wait(newer_than, timeout_s)
        return assignment and assignment._replace(unit=2)


@pytest.mark.parametrize("what", ["_sum", "_tell_news"])
def test_step_that_fails_on_one_rank_of_a_copy_counts_on_none(what):
    (made, behind, weights), other = run_ranks(fails_on_one_of_a_copy, 2, what)
    assert made == [(1, 1), (1, 2), (2, 2), (2, 3)]
    # What the script does with sums is done once for each step that counts.
    assert behind == [1, 2, 3]
    assert other == (made, behind, weights)


def reads_with_a_copy(size):
    """Two ranks hold one copy; each returns what it reads in a step of the first epoch."""
    rank, store = int(os.environ["RANK"]), connect_store()
    if rank == 0:
        store.set("seats/1", "w0 w1|")
    model, optimizer = make_model()
    if size:
        mark_data_part(model, size, rank if size > 1 else 0)
    worlds = CopyOfTwo(f"w{rank}", connect_store)
    connection = Connection(worlds, store, make_factory)
    read = []
    for step in make_loop((model, optimizer), connection, num_steps=1):
        with step:
            for part in step.parts():
                read.append(part)
                (part_loss(model, part) * part.weight).backward()
    return read


@pytest.mark.parametrize("size", [None, 1, 2])
def test_ranks_of_a_copy_read_what_its_mesh_gives_them(size):
    first, second = run_ranks(reads_with_a_copy, 2, size)
    mine, theirs = (
        [i for part in one for i in part.indices] for one in (first, second)
    )
    if size == 2:
        assert len(mine) == len(theirs) == BATCH // 2
        assert not set(mine) & set(theirs)
    else:
        assert mine == theirs
        assert len(mine) == BATCH
    # Of gradients of different samples a copy takes the mean.
    assert sum(part.weight for part in first) == pytest.approx(1.0)


def shards_along(shape, placements):
    """Returns why a loop refuses a model over a mesh that nobody has told of."""
    ranks = math.prod(shape)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    mesh = dist.init_device_mesh("cpu", shape)
    model = torch.nn.Linear(8, 8)
    weight = DTensor.from_local(torch.zeros(8, 8), mesh, placements, run_check=False)
    model.weight = torch.nn.Parameter(weight)
    fully_shard(
        model,
        mesh=dist.init_device_mesh("cpu", (ranks,)),
        ignored_params={*model.parameters()},
    )
    try:
        make_loop((model, torch.optim.SGD(model.parameters())), None)
    except ProgramError as error:
        return str(error)
    finally:
        dist.destroy_process_group()
    return ""


@pytest.mark.parametrize(
    ("shape", "placements", "is_refused"),
    [
        ((4,), [Shard(0)], False),
        ((2, 2), [Replicate(), Shard(0)], False),
        ((2, 2), [Shard(0), Shard(1)], True),
        ((2, 2, 2), [Replicate(), Shard(0), Shard(1)], True),
    ],
)
def test_mesh_whose_ranks_may_read_the_same_is_refused(shape, placements, is_refused):
    (why,) = run_ranks(shards_along, 1, shape, placements, process_group=False)
    assert ("which of its ranks read the same samples" in why) is is_refused


class Orders(Worlds):
    """Asks rank 0, and nobody else, for a checkpoint."""

    def __init__(self, name, connect):
        super().__init__(name, connect)
        self.request, self.saved = None, []

    def checkpoint_request(self):
        return self.request

    def report_saved(self, request, step, seconds, failure):
        self.saved.append((request.id, step, failure))


class Saver:
    """Keeps in memory which steps were saved."""

    def __init__(self):
        self.steps = []

    def save(self, step, state):
        assert state["drivetrain.progress"][0] == step
        self.steps.append(step)
        return DurableSave(step)

    def restore(self, into, step=None, *, strict=True):
        raise AssertionError

    def flush(self, deadline_s=None):
        assert deadline_s is None
        return True

    def latest(self):
        return None


def saves_on_request():
    """Trains on two ranks; the first is asked twice, and each notes when all save."""
    at, store = int(os.environ["RANK"]), connect_store()
    store.set("seats/1", "w0 w1 |")
    membership, saver = Orders(f"w{at}", connect_store), Saver()
    loop = ElasticLoop(
        *make_model(),
        schedule=Schedule(num_samples=NUM_SAMPLES, global_batch=BATCH),
        num_steps=10,
        save_every=5,
        checkpointer=saver,
        connection=Connection(membership, dist.PrefixStore("job", store), make_factory),
        timeout=timedelta(seconds=30),
    )
    agreed = []
    for step in loop:
        if at == 0 and step.number in {3, 7}:
            request = CheckpointRequest(
                f"before {step.number}", math.inf, "a node goes"
            )
            membership.request = request
        with step:
            for part in step.parts():
                (part_loss(loop._training._own["model"], part) * part.weight).backward()
        if loop._checkpoints.requested.is_agreed:
            agreed.append(loop.step)
    return agreed, saver.steps, membership.saved


def test_checkpoint_that_one_rank_is_asked_for_is_saved_after_the_same_step_on_all():
    (agreed, steps, saved), (others_agreed, others_steps, others_saved) = run_ranks(
        saves_on_request, 2, process_group=False, timeout_s=60
    )
    assert agreed == others_agreed == [3, 7]
    assert (steps, others_steps) == ([3, 5, 7, 10], [])
    assert saved == [("before 3", 3, ""), ("before 7", 7, "")]
    assert others_saved == []
