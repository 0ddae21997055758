"""Decisions on nodes that may be taken away, in worlds that hypothesis makes up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_cloud.spot import (
    AfterMaxWait,
    Cancel,
    Capacity,
    GiveUp,
    JobPhase,
    Leave,
    Market,
    Node,
    NodePhase,
    Notice,
    Pause,
    Recovery,
    Release,
    Request,
    Resume,
    Save,
    SpotConfig,
    Suspend,
    Train,
    decide,
)
from drivetrain_core import ProgramError


def node(name, phase=NodePhase.TRAINING, since_s=0.0, market=Market.SPOT, notice=None):
    return Node(name=name, market=market, phase=phase, since_s=since_s, notice=notice)


def training(*nodes, **fields):
    return Capacity(nodes=nodes, phase=JobPhase.TRAINING, **fields)


def actions(now_s, capacity, config, kind=None):
    found = decide(now_s, capacity, config).actions
    return found if kind is None else [one for one in found if isinstance(one, kind)]


class Job:
    """Carries decisions out, as the runtime would, at once."""

    def __init__(self, config):
        self.config, self.now_s, self.count = config, 0.0, 0
        self.capacity = Capacity(step_s=1.0, save_s=4.0)
        self.log = []

    def put(self, **fields):
        self.capacity = replace(self.capacity, **fields)

    def change(self, name, **fields):
        nodes = [
            replace(n, **fields) if n.name == name else n for n in self.capacity.nodes
        ]
        self.put(nodes=tuple(nodes))

    def drop(self, name):
        self.put(nodes=tuple(n for n in self.capacity.nodes if n.name != name))

    def decide(self):
        for _ in range(20):
            found = decide(self.now_s, self.capacity, self.config)
            if not found.actions:
                return found
            for action in found.actions:
                self.log.append((self.now_s, action))
                self.do(action)
        message = f"decisions do not come to rest: {found.actions}"
        raise AssertionError(message)

    def do(self, action):
        now_s = self.now_s
        match action:
            case Request(market=market, count=count):
                assert count > 0
                for _ in range(count):
                    self.count += 1
                    new = node(f"n{self.count}", NodePhase.REQUESTED, now_s, market)
                    self.put(nodes=(*self.capacity.nodes, new))
            case Cancel(node=name) | Release(node=name):
                self.drop(name)
            case Leave(node=name):
                self.drop(name)
                self.put(changed_s=now_s)
            case Save():
                assert not self.capacity.is_saving
                self.put(is_saving=True)
                self.begun_s = now_s
            case Train(nodes=names):
                for one in self.capacity.nodes:
                    if one.name in names and one.phase != NodePhase.TRAINING:
                        self.change(one.name, phase=NodePhase.TRAINING, since_s=now_s)
                    elif one.phase == NodePhase.TRAINING and one.name not in names:
                        self.change(one.name, phase=NodePhase.READY, since_s=now_s)
                self.phase(JobPhase.TRAINING)
                self.put(changed_s=now_s)
            case Pause():
                for one in self.capacity.those(NodePhase.TRAINING):
                    self.change(one.name, phase=NodePhase.READY, since_s=now_s)
                self.phase(JobPhase.WAITING)
            case Suspend():
                self.put(nodes=())
                self.phase(JobPhase.SUSPENDED)
            case Resume():
                self.phase(JobPhase.WAITING)
            case GiveUp():
                self.phase(JobPhase.ENDED)

    def phase(self, phase):
        if phase != self.capacity.phase:
            self.put(phase=phase, phase_since_s=self.now_s)

    def check(self):
        config, capacity = self.config, self.capacity
        at_work = [n for n in capacity.those(NodePhase.TRAINING) if n.is_able]
        if capacity.phase == JobPhase.TRAINING and not capacity.is_saving:
            assert len(capacity.those(NodePhase.TRAINING)) >= config.least
        assert len(at_work) <= config.most
        pending = capacity.those(NodePhase.REQUESTED)
        assert len([n for n in pending if n.market == Market.SPOT]) <= config.most
        for one in capacity.those(NodePhase.TRAINING):
            late = one.notice is not None and self.now_s >= one.notice.deadline_s
            assert not late or capacity.is_saving


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["come", "go", "notice", "withdraw", "saved", "wait", "offer"]),
        st.integers(0, 7),
        st.sampled_from([0.5, 3.0, 40.0, 700.0]),
    ),
    max_size=25,
)
CONFIGS = st.builds(
    SpotConfig,
    nodes=st.sampled_from([2, 4]),
    min_nodes=st.just(2),
    max_nodes=st.sampled_from([None, 6]),
    unit=st.sampled_from([1, 2]),
    recovery=st.sampled_from(Recovery),
    tolerate=st.sampled_from([0, 1]),
    after_max_wait=st.sampled_from(AfterMaxWait),
    resume_after_s=st.sampled_from([60.0, float("inf")]),
)


@settings(max_examples=300, deadline=None)
@given(CONFIGS, EVENTS)
def test_decisions_come_to_rest_and_keep_their_promises(config, events):
    job = Job(config)
    job.decide()
    for what, which, seconds in events:
        nodes = job.capacity.nodes
        one = nodes[which % len(nodes)] if nodes else None
        job.now_s += seconds
        if what == "come" and one is not None and one.phase == NodePhase.REQUESTED:
            job.change(one.name, phase=NodePhase.READY, since_s=job.now_s)
        elif what == "go" and one is not None and one.phase != NodePhase.REQUESTED:
            job.drop(one.name)
        elif what == "notice" and one is not None and one.market == Market.SPOT:
            if one.phase != NodePhase.REQUESTED and one.notice is None:
                notice = Notice(heard_s=job.now_s, deadline_s=job.now_s + 30 * seconds)
                job.change(one.name, notice=notice)
        elif what == "withdraw" and one is not None:
            job.change(one.name, notice=None)
        elif what == "offer":
            job.put(offered=which)
        if what == "saved" and job.capacity.is_saving:
            job.put(is_saving=False, saved_s=job.begun_s)
        for late in [n for n in job.capacity.nodes if n.notice is not None]:
            if job.now_s >= late.notice.deadline_s:
                job.put(is_saving=False)
                job.drop(late.name)
        job.decide()
        job.check()


def test_a_job_begins_with_what_is_there_when_no_more_comes():
    config = SpotConfig(nodes=4, min_nodes=2, settle_s=5.0)
    nodes = (node("a", NodePhase.READY, 1.0), node("b", NodePhase.READY, 3.0))
    early = decide(7.0, Capacity(nodes=nodes), config)
    assert [type(action) for action in early.actions] == [Request]
    assert early.look_again_s == 8.0
    (train,) = actions(8.0, Capacity(nodes=nodes), config, Train)
    assert train.nodes == ("a", "b")


def test_a_job_with_all_its_nodes_begins_at_once():
    nodes = (node("a", NodePhase.READY, 3.0), node("b", NodePhase.READY, 3.0))
    (train,) = actions(3.0, Capacity(nodes=nodes), SpotConfig(nodes=2))
    assert train.nodes == ("a", "b")


def test_a_notice_is_answered_with_a_checkpoint_and_then_with_leaving():
    config = SpotConfig(nodes=3, min_nodes=1)
    going = node("a", notice=Notice(heard_s=10.0, deadline_s=40.0))
    capacity = training(going, node("b"), node("c"), save_s=5.0)
    found = actions(10.0, capacity, config)
    assert [type(action) for action in found] == [Save, Request]
    assert found[0].deadline_s == 40.0
    assert found[1].count == 1
    saving = replace(capacity, is_saving=True)
    assert actions(12.0, saving, config, Leave | Save) == []
    saved = replace(capacity, saved_s=10.0)
    found = decide(16.0, saved, config)
    assert (found.actions[:-1], found.look_again_s) == ((), 37.0)
    (leave,) = actions(37.0, saved, config, Leave)
    assert (leave.node, leave.deadline_s) == ("a", 40.0)
    assert "a checkpoint is durable" in leave.reason


def test_a_checkpoint_from_before_a_notice_does_not_answer_it():
    going = node("a", notice=Notice(heard_s=10.0, deadline_s=40.0))
    capacity = training(going, node("b"), saved_s=9.9)
    assert actions(11.0, capacity, SpotConfig(nodes=2), Save)


def test_a_checkpoint_that_takes_too_long_does_not_keep_a_node():
    going = node("a", notice=Notice(heard_s=0.0, deadline_s=30.0))
    capacity = training(going, node("b"), is_saving=True, step_s=3.0)
    config = SpotConfig(nodes=2, margin_s=2.0)
    waiting = decide(20.0, capacity, config)
    assert waiting.look_again_s == 25.0
    (leave,) = actions(25.0, capacity, config, Leave)
    assert "no time" in leave.reason


def test_a_notice_that_is_too_short_for_a_checkpoint_is_for_leaving():
    going = node("a", notice=Notice(heard_s=0.0, deadline_s=5.0))
    capacity = training(going, node("b"), save_s=20.0)
    found = actions(0.0, capacity, SpotConfig(nodes=2), Save | Leave)
    assert [type(action) for action in found] == [Leave]


def test_when_all_go_a_checkpoint_is_tried_however_short_the_time_is():
    notice = Notice(heard_s=0.0, deadline_s=2.0)
    capacity = training(node("a", notice=notice), node("b", notice=notice), save_s=20.0)
    config = SpotConfig(nodes=2)
    assert [type(a) for a in actions(0.0, capacity, config)] == [Save, Request]
    saved = replace(capacity, saved_s=0.0)
    assert [type(a) for a in actions(1.0, saved, config)] == [Pause, Request]


def test_waiting_for_the_full_world_pauses_where_resizing_goes_on():
    capacity = training(node("a"), node("b"), node("c"))
    full = SpotConfig(nodes=4, recovery=Recovery.WAIT_FULL)
    assert [type(a) for a in actions(0.0, capacity, full)] == [Pause, Request]
    resize = SpotConfig(nodes=4, min_nodes=2)
    assert [type(a) for a in actions(0.0, capacity, resize)] == [Request]
    one_less = SpotConfig(nodes=4, recovery=Recovery.WAIT_FULL, tolerate=1)
    assert [type(a) for a in actions(0.0, capacity, one_less)] == [Request]


def test_a_node_that_comes_must_prove_that_it_stays():
    config = SpotConfig(nodes=3, min_nodes=1, settle_s=5.0, grow_after_s=30.0)
    new = node("c", NodePhase.READY, since_s=100.0)
    capacity = training(node("a"), node("b"), new, changed_s=90.0)
    assert decide(100.0, capacity, config).look_again_s == 120.0
    assert actions(119.0, capacity, config, Train) == []
    (train,) = actions(120.0, capacity, config, Train)
    assert train.nodes == ("a", "b", "c")


def test_idle_nodes_are_taken_and_others_given_back():
    config = SpotConfig(nodes=2, max_nodes=6, unit=2)
    capacity = training(node("a"), node("b"), offered=3)
    (request,) = actions(0.0, capacity, config, Request)
    assert request.count == 2
    many = training(*(node(name) for name in "ab"), node("c", NodePhase.READY))
    (release,) = actions(0.0, many, SpotConfig(nodes=2), Release)
    assert release.node == "c"


@pytest.mark.parametrize(
    ("after", "kind"),
    [
        (AfterMaxWait.FAIL, GiveUp),
        (AfterMaxWait.SUSPEND, Suspend),
        (AfterMaxWait.ON_DEMAND, Request),
    ],
)
def test_a_job_that_waits_for_too_long(after, kind):
    config = SpotConfig(nodes=3, min_nodes=2, max_wait_s=60.0, after_max_wait=after)
    pending = [node(name, NodePhase.REQUESTED) for name in "bc"]
    capacity = Capacity(nodes=(node("a", NodePhase.READY), *pending))
    assert decide(59.0, capacity, config).look_again_s == 60.0
    (found,) = actions(60.0, capacity, config)
    assert isinstance(found, kind)
    assert "1 of 3 nodes can train, at least 2 are needed, after 60 s" in found.reason
    if kind is Request:
        assert (found.market, found.count) == (Market.ON_DEMAND, 1)
        asked = node("d", NodePhase.REQUESTED, 60.0, Market.ON_DEMAND)
        capacity = replace(capacity, nodes=(*capacity.nodes, asked))
        assert decide(61.0, capacity, config).actions == ()
        (end,) = actions(120.0, capacity, config)
        assert isinstance(end, GiveUp)
        assert "on demand did not come either" in end.reason


def test_nodes_on_demand_go_when_spot_nodes_have_stayed():
    config = SpotConfig(
        nodes=2, min_nodes=2, return_after_s=300.0, settle_s=0.0, grow_after_s=0.0
    )
    dear = node("d", market=Market.ON_DEMAND)
    back = node("b", NodePhase.READY, since_s=1000.0)
    capacity = training(node("a"), dear, back)
    found = decide(1100.0, capacity, config)
    assert (found.actions, found.look_again_s) == ((), 1300.0)
    (train,) = actions(1300.0, capacity, config, Train)
    assert train.nodes == ("a", "b")
    rest = training(node("a"), node("b"), replace(dear, phase=NodePhase.READY))
    (release,) = actions(1301.0, rest, config)
    assert isinstance(release, Release)
    assert release.node == "d"


def test_a_suspended_job_resumes_when_it_was_told_to():
    config = SpotConfig(nodes=2, resume_after_s=100.0)
    capacity = Capacity(phase=JobPhase.SUSPENDED, phase_since_s=50.0)
    assert decide(149.0, capacity, config).look_again_s == 150.0
    assert isinstance(actions(150.0, capacity, config)[0], Resume)
    forever = replace(config, resume_after_s=float("inf"))
    assert decide(10.0**9, capacity, forever).actions == ()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"nodes": 0}, "1 <= min_nodes <= nodes"),
        ({"nodes": 2, "min_nodes": 3}, "1 <= min_nodes <= nodes"),
        ({"nodes": 4, "max_nodes": 3}, "<= max_nodes"),
        ({"nodes": 3, "unit": 2}, "multiples of the unit"),
        ({"nodes": 2, "tolerate": 2}, "tolerate must be from 0 to 1"),
        ({"nodes": 2, "max_wait_s": -1.0}, "max_wait_s must be"),
        ({"nodes": 2, "settle_s": float("nan")}, "settle_s must be"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(fields, words):
    with pytest.raises(ProgramError, match=words):
        SpotConfig(**fields)
