"""What libraries, launchers and kernels print is known by its class; what healthy jobs print is no failure."""

import json
from pathlib import Path

import pytest

from drivetrain_health.failures import Evidence, FailureClass, diagnose, respond

WORDINGS = json.loads(
    (Path(__file__).parent / "data" / "wordings.json").read_text(encoding="utf-8")
)
STEPS = "step 81 loss 2.1\nstep 82 loss 2.0\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "/job/train.py", line 81, in main\n    x()\n'
OF_THE_JOB = {"program", "data"}
# What damaged data on a store means is in the group of data.
STOPS = {"program", "data", "checkpoint-damaged"}


def found(output, *, exit_code=1, kernel=()):
    return diagnose(
        Evidence(
            worker="a", node="n", exit_code=exit_code, output=output, kernel=kernel
        )
    )


def stops(diagnosis):
    return respond(1_000.0, diagnosis, ()).action == "stop-job"


@pytest.mark.parametrize("group", WORDINGS["failures"])
def test_wordings_of_a_group_have_its_classes(group):
    rows = WORDINGS["failures"][group]
    wrong = []
    for head, lines in (("", rows["written"]), (TRACEBACK, rows["raised"])):
        for line in lines:
            one = found(f"{STEPS}{head}{line}\n")
            if one.failure_class.value not in rows["classes"]:
                wrong.append((line, one.failure_class.value, one.cause))
            elif stops(one) != (group == "program") and group != "data":
                wrong.append((line, one.cause, "stops" if stops(one) else "goes on"))
    assert wrong == []


@pytest.mark.parametrize("group", sorted(set(WORDINGS["failures"]) - OF_THE_JOB))
def test_no_exception_with_the_words_of_infrastructure_stops_a_job(group):
    rows = WORDINGS["failures"][group]
    for line in (*rows["written"], *rows["raised"]):
        one = found(f"{TRACEBACK}lib.core.FooError: {line}\n")
        assert one.failure_class not in {FailureClass.PROGRAM, FailureClass.DATA}, line
        assert one.cause not in STOPS, line


@pytest.mark.parametrize("group", WORDINGS["kernel"])
def test_wordings_of_the_kernel_explain_an_end_without_words(group):
    rows = WORDINGS["kernel"][group]
    exit_code = -9 if group == "memory" else 1
    for line in rows["lines"]:
        one = found("x", exit_code=exit_code, kernel=(line,))
        assert one.failure_class.value in rows["classes"], line


def test_lines_of_healthy_jobs_are_no_failure():
    taken = [
        (line, one.cause)
        for line in WORDINGS["harmless"]
        if (one := found(f"start\n{line}\nend\n")).cause != "exit-1"
    ]
    assert taken == []


@pytest.mark.parametrize(
    ("output", "exit_code"),
    [
        ("x", 1),
        ("RuntimeError: Connection reset by peer", 1),
        ("watchdog: no progress for 1800 s", -9),
        ("Bus error", -7),
    ],
)
def test_messages_of_a_healthy_kernel_explain_nothing(output, exit_code):
    before = found(output, exit_code=exit_code)[:2]
    for line in WORDINGS["harmless_kernel"]:
        assert found(output, exit_code=exit_code, kernel=(line,))[:2] == before, line


def test_lines_of_healthy_jobs_before_a_failure_do_not_hide_it():
    healthy = "\n".join(WORDINGS["harmless"]) + "\n"
    for line, cause in (
        ("OSError: [Errno 28] No space left on device", "disk-full"),
        ("KeyError: 'lr'", "key-error"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "out-of-memory-cuda"),
    ):
        assert found(f"{healthy}{TRACEBACK}{line}\n").cause == cause
