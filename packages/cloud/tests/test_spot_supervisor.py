"""A supervisor between a pool and a job that a test makes up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_cloud.spot import (
    AfterMaxWait,
    GiveUp,
    JobPhase,
    Leave,
    Market,
    NodePhase,
    Pause,
    Recovery,
    Request,
    Save,
    SpotConfig,
    Suspend,
    Train,
)
from drivetrain_cloud.spot import supervisor as supervisor_module
from drivetrain_cloud.spot.job_control import HeardNotice, JobView, SaveResult
from drivetrain_cloud.spot.pool import PoolNode
from drivetrain_cloud.spot.supervisor import Supervisor
from drivetrain_core import DistributedError


class Pool:
    """Nodes that come and go when a test says so."""

    def __init__(self):
        self.listed, self.num, self.is_away = {}, 0, False
        self.released, self.cancelled = [], []
        self.offer = 0

    def request(self, market, count):
        names = []
        for _ in range(count):
            name = f"n{self.num}"
            self.num += 1
            self.listed[name] = PoolNode(name=name, market=market, is_running=False)
            names.append(name)
        return tuple(names)

    def cancel(self, node):
        self.cancelled.append(node)
        if not self.listed[node].is_running:
            del self.listed[node]

    def release(self, node):
        self.released.append(node)
        self.listed.pop(node, None)

    def nodes(self, now_s):
        del now_s
        if self.is_away:
            message = "the pool does not answer"
            raise OSError(message)
        return tuple(self.listed.values())

    def offered(self, now_s):
        del now_s
        return self.offer

    def come(self, *names):
        for name in names:
            self.listed[name] = replace(self.listed[name], is_running=True)


class Job:
    """A job that does at once what it is asked for, on the nodes of a pool."""

    def __init__(self, pool):
        self.pool, self.now_s = pool, 0.0
        self.admitted = None
        self.notices, self.saves, self.left = {}, [], []
        self.result, self.ended, self.is_away = None, "", False
        self.exit_code = 0
        self.saves_itself = True

    def look(self):
        if self.is_away:
            message = "the master does not answer"
            raise DistributedError(message)
        here = frozenset(n.name for n in self.pool.listed.values() if n.is_running)
        return JobView(
            present=here,
            ready=here,
            training=here & (self.admitted or frozenset()),
            notices={
                name: HeardNotice(deadline_s - self.now_s, "taken")
                for name, deadline_s in self.notices.items()
                if name in here
            },
            step_s=1.0,
            saved=self.result,
            requested=self.saves[-1][0] if self.saves else "",
            admitted=self.admitted,
            ended=self.ended,
            exit_code=self.exit_code,
        )

    def admit(self, nodes, reason):
        assert reason
        self.admitted = frozenset(nodes)

    def save(self, request, within_s, reason):
        assert reason
        self.saves.append((request, within_s))
        self.result = SaveResult(request, 7, "") if self.saves_itself else None

    def leave(self, node, within_s, reason):
        assert reason
        self.left.append((node, within_s))
        self.pool.listed.pop(node, None)

    def stop(self, reason, exit_code):
        self.ended, self.exit_code = reason, exit_code


class World:
    """All of it, on a clock of its own."""

    def __init__(self, monkeypatch=None, **fields):
        fields = {"nodes": 3, "settle_s": 0.0, "grow_after_s": 0.0, **fields}
        self.config = SpotConfig(**fields)
        self.pool = Pool()
        self.job = Job(self.pool)
        self.supervisor = Supervisor(self.pool, self.job, self.config)
        self.now_s = 100.0
        if monkeypatch is not None:
            monkeypatch.setattr(supervisor_module.time, "monotonic", lambda: self.now_s)

    def step(self, seconds=1.0):
        self.now_s += seconds
        self.job.now_s = self.now_s
        before = len(self.supervisor.done)
        self.supervisor.step(self.now_s)
        return [one.action for one in self.supervisor.done][before:]

    def begin(self):
        self.step()
        self.pool.come(*self.pool.listed)
        self.step()
        assert self.supervisor.capacity.phase == JobPhase.TRAINING


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def test_no_node_trains_before_there_are_enough(world):
    (request,) = world.step()
    assert (request.market, request.count) == (Market.SPOT, 3)
    assert world.job.admitted == frozenset()
    assert world.step() == []
    world.pool.come("n0", "n1", "n2")
    (train,) = world.step()
    assert world.job.admitted == {"n0", "n1", "n2"}
    assert train.nodes == ("n0", "n1", "n2")


def test_a_notice_is_saved_waited_out_and_answered_with_leaving(world):
    world.begin()
    world.job.notices["n1"] = world.now_s + 31.0
    save, request = world.step()
    assert (type(save), type(request)) == (Save, Request)
    assert world.job.saves[0][1] == pytest.approx(30.0)
    assert world.step() == []
    assert world.supervisor.saves[0].step == 7
    assert world.step(20.0) == []
    (leave,) = world.step(6.5)
    assert (leave.node, world.job.left[0][0]) == ("n1", "n1")
    assert 0 < world.job.left[0][1] < 3.0
    assert world.step() == []
    (use,) = [one for one in world.supervisor.usage.nodes if one.node == "n1"]
    assert use.was_taken


def test_a_notice_that_is_withdrawn_changes_nothing_but_the_extra_node(world):
    world.begin()
    world.job.notices["n1"] = world.now_s + 60.0
    world.step()
    world.job.notices.clear()
    actions = world.step()
    assert [type(one).__name__ for one in actions] == ["Cancel"]
    assert world.step(100.0) == []
    assert world.job.left == []


def test_a_notice_of_an_agent_that_is_gone_still_stands(world):
    world.begin()
    world.job.notices["n1"] = world.now_s + 60.0
    world.step()
    world.pool.listed["n1"] = replace(world.pool.listed["n1"], is_running=False)
    world.step()
    (node,) = [n for n in world.supervisor.capacity.nodes if n.name == "n1"]
    assert node.notice is not None


def test_a_pool_that_knows_of_an_end_is_believed_as_well(world):
    world.begin()
    world.pool.listed["n2"] = replace(
        world.pool.listed["n2"], deadline_s=world.now_s + 40.0
    )
    assert isinstance(world.step()[0], Save)


def test_a_checkpoint_that_the_master_forgot_is_asked_for_again(world):
    world.job.saves_itself = False
    world.begin()
    world.job.notices["n0"] = world.now_s + 120.0
    world.step()
    (first,) = world.job.saves
    world.job.saves.clear()
    assert world.step() == []
    assert world.job.saves[0][0] == first[0]


def test_a_checkpoint_that_fails_is_tried_again_and_then_given_up(world):
    world.job.saves_itself = False
    world.begin()
    world.job.notices["n0"] = world.now_s + 120.0
    world.step()
    for _ in range(6):
        request = world.job.saves[-1][0]
        world.job.result = SaveResult(request, 7, "the disk is full")
        world.step()
    assert len(world.job.saves) == 3
    assert len(world.supervisor.saves) == 0
    (leave,) = world.step(120.0 - 6.0 - 3.5)
    assert isinstance(leave, Leave)
    assert "no time for a checkpoint" in leave.reason


def test_when_all_go_a_last_checkpoint_is_saved_and_training_pauses(world):
    world.begin()
    for name in ("n0", "n1", "n2"):
        world.job.notices[name] = world.now_s + 60.0
    kinds = [type(one) for one in world.step()]
    assert kinds == [Save, Request]
    assert world.step(10.0) == []
    last = world.step(42.0)
    assert [type(one) for one in last] == [Save]
    assert [type(one) for one in world.step()] == [Pause]
    assert world.job.admitted == frozenset()
    world.pool.come("n3", "n4", "n5")
    for name in ("n0", "n1", "n2"):
        del world.pool.listed[name]
    (train,) = world.step()
    assert train.nodes == ("n3", "n4", "n5")


def test_a_job_or_pool_that_does_not_answer_is_asked_again(world, monkeypatch):
    world.begin()
    world.job.is_away = True
    with pytest.raises(DistributedError):
        world.step()
    world.job.is_away, world.pool.is_away = False, True
    with pytest.raises(OSError, match="the pool"):
        world.step()
    looks = []

    def looked(supervisor):
        looks.append(supervisor.capacity.phase)
        world.pool.is_away = len(looks) < 3
        if len(looks) == 5:
            world.job.ended = "all workers have finished"

    monkeypatch.setattr(supervisor_module.time, "sleep", lambda _: None)
    assert world.supervisor.run(looked=looked) == 0
    assert looks[-1] == JobPhase.ENDED


def test_the_end_of_a_job_gives_all_nodes_back(world):
    world.begin()
    world.job.ended, world.job.exit_code = "all workers have finished", 3
    assert world.step() == []
    assert world.supervisor.exit_code == 3
    assert sorted(world.pool.released) == ["n0", "n1", "n2"]


def test_a_job_that_waits_for_too_long_is_given_up(monkeypatch):
    world = World(monkeypatch, max_wait_s=60.0)
    world.step()
    assert isinstance(world.step(61.0)[0], GiveUp)
    assert (world.supervisor.exit_code, world.pool.listed) == (1, {})
    assert "0 of 3 nodes" in world.job.ended


def test_a_job_that_waits_for_too_long_is_suspended_and_resumes(monkeypatch):
    world = World(
        monkeypatch,
        max_wait_s=60.0,
        after_max_wait=AfterMaxWait.SUSPEND,
        resume_after_s=100.0,
    )
    world.step()
    world.pool.come("n0")
    world.pool.listed.pop("n1")
    assert isinstance(world.step(61.0)[0], Train)
    del world.pool.listed["n0"]
    assert isinstance(world.step()[0], Pause)
    assert isinstance(world.step(61.0)[0], Suspend)
    assert world.pool.listed == {}
    assert world.step(50.0) == []
    world.step(51.0)
    world.step()
    assert len(world.pool.listed) == 3


def test_a_supervisor_that_is_started_again_goes_on(world):
    world.begin()
    world.supervisor = Supervisor(world.pool, world.job, world.config)
    assert world.step() == []
    assert world.supervisor.capacity.phase == JobPhase.TRAINING
    assert world.job.admitted == {"n0", "n1", "n2"}
    phases = {node.phase for node in world.supervisor.capacity.nodes}
    assert phases == {NodePhase.TRAINING}


def test_waiting_for_all_pauses_at_a_loss_and_goes_on_with_a_new_node(monkeypatch):
    world = World(monkeypatch, recovery=Recovery.WAIT_FULL)
    world.begin()
    del world.pool.listed["n1"]
    assert [type(one) for one in world.step()] == [Pause, Request]
    world.pool.come("n3")
    (train,) = world.step()
    assert train.nodes == ("n0", "n2", "n3")


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["come", "die", "notice", "withdraw", "wait", "again", "fail"]),
        st.integers(0, 9),
        st.sampled_from([0.5, 5.0, 70.0]),
    ),
    max_size=20,
)


@settings(max_examples=150, deadline=None)
@given(EVENTS, st.sampled_from(Recovery), st.sampled_from(AfterMaxWait))
def test_whatever_happens_requests_and_worlds_stay_within_bounds(
    events, recovery, after_max_wait
):
    with pytest.MonkeyPatch.context() as monkeypatch:
        world = World(
            monkeypatch,
            min_nodes=2,
            recovery=recovery,
            after_max_wait=after_max_wait,
            resume_after_s=100.0,
        )
        world.step()
        for what, which, seconds in events:
            names = list(world.pool.listed)
            name = names[which % len(names)] if names else None
            if what == "come" and name:
                world.pool.come(name)
            elif what == "die" and name:
                del world.pool.listed[name]
            elif what == "notice" and name:
                world.job.notices[name] = world.now_s + 20 * seconds
            elif what == "withdraw":
                world.job.notices.clear()
            elif what == "again":
                world.supervisor = Supervisor(world.pool, world.job, world.config)
            elif what == "fail":
                world.job.saves_itself = not world.job.saves_itself
            for late, deadline_s in list(world.job.notices.items()):
                if deadline_s < world.now_s + seconds:
                    world.pool.listed.pop(late, None)
            world.step(seconds)
            if world.supervisor.capacity.phase == JobPhase.ENDED:
                assert world.job.ended
                return
            spot = [n for n in world.pool.listed.values() if n.market == Market.SPOT]
            certain = [n for n in spot if n.name not in world.job.notices]
            assert len(certain) <= world.config.nodes
            admitted = world.job.admitted
            if world.supervisor.capacity.phase == JobPhase.TRAINING:
                assert len(admitted) >= 2
            else:
                assert admitted == frozenset()
            assert all(0 <= within_s < 1500 for _, within_s in world.job.left)
