"""The first cause is found among its echoes."""

import pytest
from failure_samples import evidence_of, load
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_core import ProgramError
from drivetrain_health.failures import (
    Diagnosis,
    FailureClass,
    Finding,
    diagnose,
    root_cause,
)

RECORDED, DOCUMENTED = load("recorded"), load("documented")
ECHOES = [
    diagnose(evidence_of(sample, worker="other/0", node="other"))
    for sample in (
        RECORDED["peer-killed"],
        RECORDED["peer-silent"],
        RECORDED["nobody-came"],
        RECORDED["terminated"],
        DOCUMENTED["nccl-timeout"],
        DOCUMENTED["ib-completion"],
    )
]
CAUSES = {
    name: diagnose(evidence_of(sample, worker="bad/0", node="bad"))
    for name, sample in {**RECORDED, **DOCUMENTED}.items()
    if not diagnose(evidence_of(sample)).is_echo
}


def test_echoes_are_marked_as_such():
    assert all(one.is_echo and one.worker == "other/0" for one in ECHOES)
    assert len(CAUSES) > 80


@given(
    name=st.sampled_from(sorted(CAUSES)),
    echoes=st.lists(st.sampled_from(ECHOES), max_size=8),
    times=st.lists(st.floats(-3600.0, 3600.0), min_size=9, max_size=9),
    place=st.integers(0, 8),
)
def test_cause_is_found_whenever_it_is_told(name, echoes, times, place):
    diagnoses = [*echoes]
    diagnoses.insert(min(place, len(echoes)), CAUSES[name])
    found = root_cause([Finding(*one) for one in zip(times, diagnoses, strict=False)])
    assert found == CAUSES[name]


def diagnosis(failure_class, node, **more):
    return Diagnosis(failure_class, "x", node, "x", **more)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (FailureClass.GPU_HARDWARE, FailureClass.CRASH),
        (FailureClass.CORRUPTION, FailureClass.PROGRAM),
        (FailureClass.PROGRAM, FailureClass.KILLED),
        (FailureClass.OUT_OF_MEMORY, FailureClass.NODE_LOST),
        (FailureClass.NODE_LOST, FailureClass.INTERCONNECT),
        (FailureClass.INTERCONNECT, FailureClass.HANG),
        (FailureClass.HANG, FailureClass.UNKNOWN),
    ],
)
def test_stronger_class_is_the_cause_though_it_is_told_later(first, then):
    findings = [Finding(1.0, diagnosis(then, "b")), Finding(9.0, diagnosis(first, "a"))]
    assert root_cause(findings).node == "a"


def test_earlier_of_two_equals_is_the_cause():
    findings = [
        Finding(2.0, diagnosis(FailureClass.PROGRAM, "late")),
        Finding(1.0, diagnosis(FailureClass.CRASH, "early")),
    ]
    assert root_cause(findings).node == "early"


def test_every_class_has_its_place():
    for one in FailureClass:
        for is_echo in (False, True):
            alone = Finding(0.0, diagnosis(one, "n", is_echo=is_echo))
            assert root_cause([alone]).failure_class == one


def test_root_cause_of_nothing_is_refused():
    with pytest.raises(ProgramError, match="no findings"):
        root_cause([])
