"""Ends of workers are said again until a world takes account of them."""

from drivetrain_elastic._agent._final_reports import FinalReports
from drivetrain_elastic.protocol import messages as pb

STATES = {
    "a": pb.WorkerReport.FINISHED,
    "b": pb.WorkerReport.FAILED,
    "c": pb.WorkerReport.LEFT,
    "d": pb.WorkerReport.FAILED,
    "e": pb.WorkerReport.READY,
}


def world(*names):
    return pb.World(epoch=1, members=[pb.Member(name=name) for name in names])


def test_final_reports_are_kept_until_a_world_is_without_the_worker():
    kept = FinalReports()
    kept.add(
        pb.WorkerReport(name=name, state=state, given_up=name == "d")
        for name, state in STATES.items()
    )
    assert [one.name for one in kept.all()] == ["a", "b", "c", "d"]
    kept.settle(world("a", "b", "c", "d"))
    assert [one.name for one in kept.all()] == ["a", "b", "c", "d"]
    kept.settle(world("b"))
    assert [one.name for one in kept.all()] == ["a", "b", "d"]
    kept.settle(world("e"))
    assert [one.name for one in kept.all()] == ["a", "d"]
