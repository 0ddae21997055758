"""What the master does about nodes that will be taken away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_core import ProgramError
from drivetrain_elastic._master import _reclaims
from drivetrain_elastic._master._node import Node
from drivetrain_elastic._master._reclaims import Reclaims
from drivetrain_elastic.decisions.reclaims import Reclaim, judge_reclaims
from drivetrain_elastic.protocol import messages as pb

GOING = {"a": Reclaim(heard_s=10.0, deadline_s=40.0)}


def test_a_checkpoint_is_asked_for_once_and_the_node_leaves_late():
    first = judge_reclaims(10.0, GOING, num_others=2, step_s=1.0, margin_s=2.0)
    assert (first.save_by_s, first.leave, first.wait_s) == (40.0, (), 27.0)
    later = judge_reclaims(20.0, GOING, num_others=2, asked_s=10.0)
    assert (later.save_by_s, later.leave, later.wait_s) == (None, (), 17.0)
    last = judge_reclaims(37.0, GOING, num_others=2, asked_s=10.0)
    assert last.leave == ("a",)


def test_a_second_notice_asks_for_a_checkpoint_of_its_own():
    both = {**GOING, "b": Reclaim(heard_s=15.0, deadline_s=135.0)}
    found = judge_reclaims(15.0, both, num_others=1, asked_s=10.0)
    assert found.save_by_s == 40.0


def test_when_all_go_another_checkpoint_is_saved_as_late_as_is_safe():
    def judge(now_s, asked_s):
        return judge_reclaims(
            now_s, GOING, num_others=0, asked_s=asked_s, save_s=5.0, margin_s=2.0
        )

    assert judge(11.0, 10.0).save_by_s is None
    assert judge(11.0, 10.0).wait_s == 21.0
    late = judge(32.0, 10.0)
    assert (late.save_by_s, late.leave) == (40.0, ())
    assert judge(33.0, 32.0).save_by_s is None
    assert judge(41.0, 32.0).save_by_s is None


@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.tuples(st.floats(0, 100), st.floats(0, 200)),
        min_size=1,
    ),
    st.integers(0, 3),
    st.floats(0, 300),
)
def test_whoever_is_told_to_leave_has_others_and_little_time(reclaims, others, now_s):
    known = {
        name: Reclaim(heard_s=heard_s, deadline_s=heard_s + within_s)
        for name, (heard_s, within_s) in reclaims.items()
    }
    found = judge_reclaims(now_s, known, num_others=others, step_s=1.0, margin_s=2.0)
    assert not found.leave or others > 0
    assert all(known[name].deadline_s - now_s <= 3.0 for name in found.leave)
    assert found.wait_s is None or found.wait_s > 0
    if others:
        late = {n for n, one in known.items() if one.deadline_s - 3.0 <= now_s}
        assert set(found.leave) == late


class Master:
    """What reclaims tell, and a clock."""

    def __init__(self, monkeypatch):
        self.events, self.told, self.now_s = [], [], 50.0
        monkeypatch.setattr(_reclaims.time, "monotonic", lambda: self.now_s)
        self.reclaims = Reclaims(
            lambda kind, subject, _: self.events.append((kind, subject)),
            self.told.append,
        )
        self.nodes = [self.node("a"), self.node("b")]

    @staticmethod
    def node(name):
        progress = pb.WorkerProgress(name=f"{name}/0", step_s=0.5)
        return Node(name=name, progress={progress.name: progress})

    def notice(self, node, within_s=30.0, **fields):
        fields = {"within_s": within_s, "reason": "spot", **fields}
        self.reclaims.take_notice(node, pb.CapacityNotice(**fields))

    def judge(self):
        return self.reclaims.judge(self.now_s, self.nodes)


@pytest.fixture
def master(monkeypatch):
    return Master(monkeypatch)


def test_a_notice_is_told_to_all_as_an_order_to_save(master):
    master.notice("a")
    assert master.judge().wait_s == pytest.approx(27.5)
    (order,) = master.told
    assert order.save.within_s == 30.0
    assert "a will be gone in 30 s" in order.save.reason
    assert [kind for kind, _ in master.events] == ["notice", "save"]
    master.judge()
    assert len(master.told) == 1
    master.now_s += 28.0
    assert master.judge().leave == ("a",)


def test_a_notice_that_a_supervisor_answers_is_only_kept(master):
    master.notice("a", is_only_told=True)
    assert master.judge() == (None, (), None)
    assert master.told == []
    master.now_s += 10.0
    assert master.reclaims.notice_of("a").within_s == 20.0
    assert master.reclaims.notice_of("b") is None


def test_a_notice_is_withdrawn_by_its_agent_or_by_one_that_knows_nothing(master):
    master.notice("a")
    master.notice("a", is_withdrawn=True)
    assert master.reclaims.notice_of("a") is None
    master.notice("a")
    master.reclaims.take_notice("a", None)
    master.reclaims.take_notice("a", None)
    kinds = [kind for kind, _ in master.events]
    assert kinds == ["notice", "notice-withdrawn"] * 2


def test_a_notice_that_is_repeated_is_no_news(master):
    master.notice("a")
    master.judge()
    master.now_s += 5.0
    master.notice("a", 25.0)
    master.judge()
    assert [kind for kind, _ in master.events] == ["notice", "save"]


def test_an_order_stands_until_it_is_saved_or_late(master):
    order = pb.SaveRequest(request="one", within_s=20.0, reason="somebody asks")
    master.reclaims.ask_to_save(order)
    master.reclaims.ask_to_save(order)
    assert len(master.told) == 1
    master.now_s += 5.0
    assert master.reclaims.save_message().save.within_s == 15.0
    master.reclaims.take_saved(pb.Saved(request="other", step=3))
    assert master.reclaims.save_message() is not None
    master.reclaims.take_saved(pb.Saved(request="one", step=3))
    assert master.reclaims.save_message() is None
    assert master.told[-1].save.request == ""
    status = pb.Status()
    master.reclaims.describe(status)
    assert (status.save.request, status.save.saved.step) == ("one", 3)
    master.reclaims.take_saved(pb.Saved(request="one", failure="late news"))
    assert master.events[-1] == ("saved", "one")


def test_a_checkpoint_that_failed_is_told_as_such(master):
    order = pb.SaveRequest(request="one", within_s=20.0)
    master.reclaims.ask_to_save(order)
    master.reclaims.take_saved(pb.Saved(request="one", failure="the disk is full"))
    assert master.events[-1] == ("save-failed", "one")


def test_a_request_without_a_name_is_refused(master):
    with pytest.raises(ProgramError, match="needs a name"):
        master.reclaims.ask_to_save(pb.SaveRequest(within_s=20.0))
