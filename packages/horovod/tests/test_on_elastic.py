"""Scripts of elastic Horovod go on with the state that all ranks had."""

import contextlib
import json
import os
import signal
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_core import DistributedError, ProgramError
from drivetrain_core.services import TorchProcessGroupFactory
from drivetrain_elastic._data._epoch_order import epoch_order, part_of_rank
from drivetrain_elastic._membership._connection import Connection
from drivetrain_elastic._membership._rank_assignment import RankAssignment
from drivetrain_elastic.testing import LocalJob, connect_store, members_of, write_worlds
from drivetrain_elastic.testing import ScriptedWorlds as Worlds
from drivetrain_horovod import on_elastic as hvd
from drivetrain_horovod.on_elastic import _runtime
from drivetrain_horovod.on_elastic._names import put_names
from drivetrain_horovod.on_elastic._place import Claim, agree_on_place
from drivetrain_horovod.on_elastic.elastic import (
    ElasticSampler,
    HostUpdateResult,
    ObjectState,
    State,
    TorchState,
    run,
)
from drivetrain_testing import run_ranks

make_factory = partial(TorchProcessGroupFactory, "gloo")


def load_story():
    """Returns the script; it imports Horovod by its own name."""
    put_names()
    import horovod_story

    return horovod_story


@pytest.fixture
def alone():
    hvd.init()
    yield
    hvd.shutdown()
    _runtime.options.reset_limit = None


def expected(steps):
    """Makes the steps again in one process; returns the parameters."""
    story = load_story()
    model, optimizer, x = story.make_model()
    for epoch, begin, at, size, count in steps:
        order = epoch_order(story.NUM_SAMPLES, epoch=epoch, seed=5, shuffle=True)
        optimizer.zero_grad()
        for rank in range(size):
            part = part_of_rank(order, begin, world_size=size, rank=rank, tail="pad")
            batch = part[at * story.BATCH :][:count].tolist()
            loss = story.part_loss(model, x, batch)
            (loss / size).backward()
        optimizer.step()
    flat = torch.cat([one.detach().reshape(-1) for one in model.parameters()])
    return flat.tolist()


def check_steps(steps, num_epochs):
    """Checks that each sample of each epoch was read once, but for the last few."""
    story = load_story()
    for epoch in range(num_epochs):
        done = 0
        for of, begin, at, size, count in steps:
            if of == epoch:
                assert begin + at * story.BATCH * size == done
                done = min(done + size * count, story.NUM_SAMPLES)
        assert done == story.NUM_SAMPLES


def sizes_of(steps):
    """Returns the sizes of the worlds that made them, one after the other."""
    sizes = [size for _, _, _, size, _ in steps]
    return [one for at, one in enumerate(sizes) if at == 0 or one != sizes[at - 1]]


# ---- worlds of several processes ----


def worker(script):
    """Plays a worker of a script; rank 0 of the processes plays the master, too."""
    story = load_story()
    number = int(os.environ["RANK"])
    name, store = f"w{number}", connect_store()
    plan = script.get(name, {})
    if number == 0:
        threading.Thread(
            target=write_worlds,
            args=(connect_store(), script["first"], script["events"]),
            daemon=True,
        ).start()
    if "joins" in plan:
        store.wait(["midway"])
        store.set(f"ready/{name}", "1")
    worlds = Worlds(name, connect_store)
    _runtime.begin(Connection(worlds, dist.PrefixStore("job", store), make_factory))

    class GoneError(Exception): ...

    def after(state):
        num = len(state.steps)
        if number == 0 and num == 4:
            store.set("midway", "1")
            if "ready" in dict(script["events"]):  # not done before it comes
                assert worlds.wait(len(script["events"]), 60)
        if num == plan.get("dies"):
            store.set(f"dead/{name}", "1")
            raise GoneError
        if num == plan.get("leaves"):
            store.set(f"leaving/{name}", "1")

    try:
        state = story.train(
            2, commit_every=script.get("commit", 1), pause_s=0.01, after=after
        )
    except (GoneError, SystemExit):
        return None
    finally:
        hvd.shutdown()
    assert isinstance(state.optimizer, torch.optim.AdamW)
    return state.steps, story.parameters_of(state), state.sizes


SCRIPTS = {
    "two, one, two": {
        "first": ["w0", "w1"],
        "events": [("dead", "w1"), ("ready", "w2")],
        "w1": {"dies": 3},
        "w2": {"joins": True},
    },
    "death between two commits": {
        "first": ["w0", "w1", "w2"],
        "events": [("dead", "w1")],
        "commit": 3,
        "w1": {"dies": 5},
    },
    "one leaves and one comes": {
        "first": ["w0", "w1"],
        "events": [("leaving", "w1"), ("ready", "w2")],
        "w1": {"leaves": 2},
        "w2": {"joins": True},
    },
}


@pytest.mark.parametrize(
    "name",
    [
        "two, one, two",
        pytest.param("death between two commits", marks=pytest.mark.faults),
        pytest.param("one leaves and one comes", marks=pytest.mark.faults),
    ],
)
def test_training_is_that_of_its_committed_steps(name):
    script = SCRIPTS[name]
    results = run_ranks(worker, 3, script, process_group=False, timeout_s=90)
    one, other = (result for result in results if result is not None)
    steps, parameters, _ = one
    assert other[:2] == one[:2]
    check_steps(steps, 2)
    assert parameters == pytest.approx(expected(steps), rel=1e-9)
    assert len(sizes_of(steps)) > 1


@pytest.mark.faults
def test_script_of_horovod_runs_as_it_is_while_its_processes_are_killed(tmp_path):
    path = Path(__file__).with_name("horovod_story.py")
    out = tmp_path / "steps.json"
    arguments = ["--out", str(out), "--epochs", "8", "--pause-s", "0.1"]
    with LocalJob(
        tmp_path,
        options=["--nproc-per-node", "2", "--standbys", "0", "--min-workers", "1"],
        program=["-m", "drivetrain_horovod.on_elastic", str(path)],
        arguments=arguments,
    ) as job:
        job.start_node()
        at = 5
        for rank in (1, 0):
            status = job.wait_for_step(at, num_workers=2)
            victim = members_of(status)[rank]
            os.kill(victim.pid, signal.SIGKILL)
            # One goes on alone, then there are two again, and both know of all steps.
            status = job.wait_for(
                lambda s, gone=victim.name: (
                    len(members_of(s)) == 2
                    and gone not in {one.name for one in members_of(s)}
                )
            )
            at = max(one.step for one in members_of(status)) + 5
        assert job.wait(90.0) == {"node0": 0}, job.text()
    told = json.loads(out.read_text())
    check_steps(told["steps"], 8)
    changes = sizes_of(told["steps"])
    assert changes[0] == changes[-1] == 2
    assert 1 in changes
    assert told["parameters"] == pytest.approx(expected(told["steps"]), rel=1e-9)


# ---- who has the state ----


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 3), st.booleans(), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.integers(0, 2), min_size=6, max_size=6),
)
def test_all_ranks_agree_on_their_numbers_and_on_who_sends(rows, epochs):
    claims = [Claim(*row, epoch) for row, epoch in zip(rows, epochs, strict=False)]
    nodes = tuple(f"n{at // 2}" for at in range(len(claims)))
    places = [
        agree_on_place(RankAssignment(4, at, nodes, nodes), claims)
        for at in range(len(claims))
    ]
    assert sorted(one.rank for one in places) == list(range(len(claims)))
    assert len({one.order for one in places}) == 1
    # Whoever skips while another one waits would leave it waiting for ever.
    assert len({one.skips_sync for one in places}) == 1
    first = claims[places[0].order[0]]
    assert first.has_state == any(one.has_state for one in claims)
    with_state = [one for one in claims if one.has_state == first.has_state]
    assert first.num_commits == max(one.num_commits for one in with_state)
    if places[0].skips_sync:
        assert all(one.has_state and one.is_live and one.may_skip for one in claims)
        assert len({one.epoch for one in claims}) == 1
    assert sum(one.local[0] == 0 for one in places) == len(set(nodes))
    assert all(one.cross[0] < one.cross[1] for one in places)


# ---- one process ----


class NextWorlds:
    """Tells of a newer world of one as often as a test says so."""

    def __init__(self):
        self.epoch, self.broken, self.ended, self.steps = 1, [], None, 0
        self.members = ("this",)
        self._listeners = []

    def assignment(self):
        return RankAssignment(self.epoch, 0, self.members[:1], ("here",))

    latest = assignment

    def wait(self, newer_than, timeout_s):
        self.epoch = max(self.epoch, newer_than + 1)
        return self.assignment()

    def tell(self):
        self.epoch += 1
        for heard in list(self._listeners):
            heard(self.assignment())

    def subscribe(self, heard):
        self._listeners.append(heard)
        return lambda: self._listeners.remove(heard)

    def is_leaving(self):
        return False

    def checkpoint_request(self, *_):
        return None

    report_ready = report_phase = checkpoint_request

    def report_step(self, step, seconds):
        self.steps = step

    def report_broken(self, epoch, reason):
        self.broken.append(epoch)

    def report_end(self, *, is_finished):
        self.ended = is_finished


@pytest.fixture
def worlds():
    membership = NextWorlds()
    _runtime.begin(Connection(membership, dist.HashStore(), make_factory))
    yield membership
    hvd.shutdown()
    _runtime.options.reset_limit = None


def test_error_goes_back_to_the_commit_and_an_interrupt_does_not(worlds):
    state = ObjectState(epoch=0, seen=[])
    called = []
    state.register_reset_callbacks([lambda: called.append(state.epoch)])

    @run
    def train(state):
        if state.epoch == 0:
            state.epoch = 1
            state.commit()
            state.epoch = 2
            raise hvd.HorovodInternalError
        if state.epoch == 1 and not called[1:]:
            state.epoch = 5
            worlds.tell()
            state.check_host_updates()
        return state.epoch

    assert train(state) == 5
    assert called == [1, 5]
    assert worlds.broken == [1]
    assert worlds.ended is True
    assert worlds.steps == 1


def test_interrupt_says_whether_anybody_comes(worlds):
    state = ObjectState(epoch=0)
    worlds.tell()
    with pytest.raises(hvd.HostsUpdatedInterrupt) as caught:
        state.commit()
    assert caught.value.skip_sync is True
    other = ObjectState(epoch=0)
    other.on_hosts_updated(99, HostUpdateResult.mixed)
    with pytest.raises(hvd.HostsUpdatedInterrupt) as caught:
        other.check_host_updates()
    assert caught.value.skip_sync is False


def test_state_of_ones_own_is_synced_only_where_it_must_be(worlds):
    calls = []

    class Own(State):
        def save(self):
            calls.append("save")

        def restore(self):
            calls.append("restore")

        def sync(self):
            calls.append("sync")

        def reset(self):
            calls.append("reset")

    @run
    def train(state):
        calls.append("train")
        if calls.count("train") == 1:
            worlds.tell()
            state.commit()
        if calls.count("train") == 2:
            raise hvd.HorovodInternalError

    train(Own())
    # Nobody came with the second world: all had the state. The third one is after a loss.
    assert calls == [
        *("sync", "train", "save", "reset", "train"),
        *("restore", "reset", "sync", "train"),
    ]


def test_errors_of_the_script_are_its_own(alone):
    @run
    def train(state):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(ObjectState(epoch=0))


def test_changes_beyond_the_limit_end_the_training(worlds):
    _runtime.options.reset_limit = 2

    @run
    def train(state):
        raise hvd.HorovodInternalError

    with pytest.raises(DistributedError, match="changed 3 times, and the limit is 2"):
        train(ObjectState(epoch=0))


def test_torch_state_restores_all_of_its_parts(alone):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    sampler = ElasticSampler(range(10), shuffle=False)
    state = TorchState(model, optimizer, schedule=schedule, sampler=sampler, batch=0)
    before = model.weight.tolist()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    schedule.step()
    sampler.record_batch(0, 4)
    state.batch = 3
    state.restore()
    assert model.weight.tolist() == before
    assert optimizer.state_dict()["state"] == {}
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert (sampler.processed_num, state.batch) == (0, 0)
    other = torch.nn.Linear(2, 1)
    state.model = other
    with torch.no_grad():
        other.weight.zero_()
    state.restore()
    assert state.model is other
    assert other.weight.abs().sum() > 0
    state.sync()


def test_state_of_what_is_no_plain_data_is_refused():
    with pytest.raises(TypeError):
        ObjectState(thing=object())
    with pytest.raises(TypeError):
        TorchState(model=torch.nn.Linear(1, 1), thing=object())


# ---- the sampler ----


@pytest.mark.slow
@given(
    num=st.integers(1, 40),
    batch=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=30),
)
def test_sampler_reads_everything_once_whatever_the_worlds(num, batch, sizes):
    read, position, at = [], 0, 0
    order = epoch_order(num, epoch=0, seed=0, shuffle=True)
    with contextlib.ExitStack() as stack:
        hvd.init()
        stack.callback(hvd.shutdown)
        sampler = ElasticSampler(range(num))
        while sampler.processed_num < num:
            size = sizes[at % len(sizes)]
            at += 1
            position = sampler.processed_num
            parts = []
            for rank in range(size):
                place = _runtime.runtime().place
                _runtime.runtime().place = place._replace(
                    order=tuple(range(size)), rank=rank, nodes=("n",) * size
                )
                sampler.reset()
                parts.append(sampler.get_indices(0, batch))
            assert len({len(part) for part in parts}) == 1
            sampler.record_batch(0, len(parts[0]))
            new = [one for part in parts for one in part]
            num_new = sampler.processed_num - position
            assert set(new) == set(order[position:][:num_new].tolist())
            read += order[position:][:num_new].tolist()
    assert sorted(read) == list(range(num))


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"epoch": 0, "processed_num": 11},
        {"epoch": 0, "processed_num": -1},
        {"epoch": "one", "processed_num": 1},
    ],
)
def test_sampler_refuses_what_is_not_its_state(alone, state):
    sampler = ElasticSampler(range(10))
    with pytest.raises(ProgramError, match="cannot go on"):
        sampler.load_state_dict(state)
    assert (sampler.epoch, sampler.processed_num) == (0, 0)


def test_sampler_of_nothing_is_refused(alone):
    with pytest.raises(ProgramError, match="must have samples"):
        ElasticSampler([])


# ---- operations ----


def test_operations_before_init_say_so():
    with pytest.raises(hvd.NotInitializedError, match="call init"):
        hvd.rank()
    with pytest.raises(hvd.NotInitializedError, match="call init"):
        hvd.allreduce(torch.ones(1))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: hvd.init(comm=[0]), "comm and process_sets"),
        (lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum), "not both"),
        (lambda: hvd.allreduce(torch.ones(1), op="sum"), "op must be"),
        (lambda: hvd.allreduce(torch.ones(1, dtype=torch.int64)), "use op=Sum"),
        (lambda: hvd.broadcast(torch.ones(1), 1), "no rank 1 among 1"),
        (lambda: hvd.broadcast_object(3, -1), "no rank -1"),
        # As errors of the group they would let training begin anew for ever.
        (lambda: hvd.allgather(torch.ones(1, dtype=torch.int16)), "dense tensors of"),
        (lambda: hvd.allreduce(torch.eye(2).to_sparse()), "torch.sparse_coo"),
        (lambda: hvd.broadcast(torch.ones(1, dtype=torch.uint16), 0), "torch.uint16"),
        (lambda: hvd.allreduce(torch.ones(1) > 0, op=hvd.Sum), "no truth value"),
    ],
)
def test_wrong_arguments_are_refused(alone, call, says):
    with pytest.raises(ProgramError, match=says):
        call()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backward_passes_per_step": 0}, "must be 1 or more"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "goes with op=Average"),
    ],
)
def test_wrong_options_of_an_optimizer_are_refused(alone, options, says):
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(ProgramError, match=says):
        hvd.DistributedOptimizer(sgd, **options)
    with pytest.raises(ProgramError, match="already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd))


def use_operations():
    """Calls every operation on ranks that the test has numbered anew."""
    number = int(os.environ["RANK"])
    store = connect_store()
    if number == 0:
        store.set("seats/1", "w0 w1 w2|")
    worlds = Worlds(f"w{number}", connect_store)
    _runtime.begin(Connection(worlds, dist.PrefixStore("job", store), make_factory))
    # As if the last one had the state.
    place = _runtime.runtime().place
    rank = {0: 1, 1: 2, 2: 0}[place.rank]
    _runtime.runtime().place = place._replace(order=(2, 0, 1), rank=rank)
    mine = torch.tensor([float(rank), 1.0])
    found = {
        "rank": hvd.rank(),
        "average": hvd.allreduce(mine).tolist(),
        "sum": hvd.allreduce(mine, op=hvd.Sum, prescale_factor=2.0).tolist(),
        "min": hvd.allreduce(mine, op=hvd.Min).tolist(),
        "half": hvd.allreduce(mine, compression=hvd.Compression.bf16).tolist(),
        "gather": hvd.allgather(torch.full((rank, 2), rank)).tolist(),
        "objects": hvd.allgather_object({"rank": rank, 3: (rank,)}),
        "broadcast": hvd.broadcast(torch.tensor(rank), 1).tolist(),
        "object": hvd.broadcast_object({"r": [rank], "t": mine}, 2)["r"],
    }
    columns = torch.arange(6.0).reshape(2, 3).t()
    found["strided"] = hvd.broadcast_(columns * rank, 1).tolist()
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.fill_(rank)
    hvd.broadcast_parameters(model.state_dict(), root_rank=2)
    found["weight"] = model.weight.tolist()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + rank, momentum=0.5)
    hvd.broadcast_optimizer_state(optimizer, 1)
    found["lr"] = optimizer.param_groups[0]["lr"]
    one = torch.nn.Parameter(torch.zeros(2))
    unused = torch.nn.Parameter(torch.zeros(2))
    sgd = hvd.DistributedOptimizer(
        torch.optim.SGD([one, unused], lr=1.0), gradient_predivide_factor=2.0
    )
    (one * mine).sum().backward()
    sgd.synchronize()
    with sgd.skip_synchronize():
        sgd.step()
    found["stepped"] = [one.tolist(), unused.tolist()]
    hvd.barrier()
    hvd.shutdown()
    return found


def test_operations_of_several_ranks():
    results = run_ranks(use_operations, 3, process_group=False, timeout_s=60)
    assert [one.pop("rank") for one in results] == [1, 2, 0]
    assert results[0] == results[1] == results[2]
    assert results[0] == {
        "average": [1.0, 1.0],
        "sum": [6.0, 6.0],
        "min": [0.0, 1.0],
        "half": [1.0, 1.0],
        "gather": [[1, 1], [2, 2], [2, 2]],
        "objects": [{"rank": n, 3: (n,)} for n in range(3)],
        "broadcast": 1,
        "object": [2],
        "strided": [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]],
        "weight": [[2.0, 2.0]],
        "lr": 1.1,
        "stepped": [[-1.0, -1.0], [0.0, 0.0]],
    }
