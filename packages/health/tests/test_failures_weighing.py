"""Which of several things that an output and a kernel tell counts."""

import pytest

from drivetrain_health.failures import Evidence, diagnose
from drivetrain_health.failures._clue import SIGNS_VARIABLE

HEAD = (
    'Traceback (most recent call last):\n  File "/job/fit.py", line 3, in f\n    x()\n'
)
LOST = (
    "libceph: mon0 (1)10.0.0.2:6789 session lost, hunting for new mon",
    "ceph: mds0 rejected session",
)
ECHO = "Connection closed by peer [10.0.0.3]:1124"
COLLECTIVE = (
    "[rank3]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)\n"
)


def found(output, *, exit_code=1, kernel=()):
    one = diagnose(
        Evidence(
            worker="a", node="n", exit_code=exit_code, output=output, kernel=kernel
        )
    )
    return one.failure_class.value, one.cause


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("PermissionError: [Errno 13] Permission denied: '/data/a/1.tar'", "filesystem-lost"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/a'", "filesystem-lost"),
        ("PermissionError: [Errno 13] Permission denied: '/tmp/a'", "permission-error"),
        ("KeyError: 'lr'", "key-error"),
    ],
)  # fmt: skip
def test_lost_store_explains_errors_of_its_files_only(error, expected):
    assert found(f"{HEAD}{error}\n", kernel=LOST)[1] == expected
    assert found(f"{HEAD}{error}\n")[0] == "program"


def test_abort_of_a_library_whose_collective_failed_is_the_collectives():
    aborted = "Fatal Python error: Aborted\n"
    assert found(COLLECTIVE + aborted, exit_code=-6)[0] == "interconnect"
    assert found(aborted, exit_code=-6) == ("crash", "abort")
    stack = "Thread 0x00007f (most recent call first):\n"
    assert found(aborted + stack, exit_code=-6) == ("crash", "abort")


@pytest.mark.parametrize(
    "chain", ["The above exception was the direct cause of", "During handling of"]
)
def test_chain_of_exceptions_that_is_cut_off_is_not_lost(chain):
    last = f"{HEAD.replace('fit', 'other')}RuntimeError: {ECHO}\n"
    text = f"{HEAD}OSError: [Errno 28] No space left on device\n\n{chain}"
    if chain.startswith("During"):
        text += " the above exception, another exception occurred:\n\n"
    else:
        text += " the following exception:\n\n"
    for end in ("", "lib.Odd: not written\n", "lib.OddError: not written\n"):
        text_of_ranks = text + end + "".join(f"[1]: {x}\n" for x in last.splitlines())
        assert found(text_of_ranks) == ("storage", "disk-full")


def test_last_error_of_a_chain_without_its_heading_counts_with_its_cause():
    text = f"{HEAD}KeyError: 'a'\n\nDuring handling of the above exception, another "
    text += "exception occurred:\n\nbotocore.exceptions.EndpointConnectionError: no\n"
    assert found(text)[0] == "service"


def test_last_words_of_launchers_are_no_part_of_an_exception():
    said = (
        "-" * 70 + "\nmpirun detected that one or more processes exited with non-zero "
    )
    said += "status, thus causing the job to be terminated.\n"
    assert found(f"{HEAD}KeyError: 'lr'\n{said}") == ("program", "key-error")
    info = "[0] NCCL INFO P2P is disabled between GPUs 1 and 0\n"
    assert found(f"{HEAD}KeyError: 'lr'\nn3:8:8 {info}") == ("program", "key-error")


def test_lines_that_end_as_on_other_systems_are_the_same_lines():
    text = f"{HEAD}RuntimeError: odd\nNo space left on device\n"
    assert found(text.replace("\n", "\r\n")) == found(text) == ("storage", "disk-full")


def test_number_of_a_job_step_or_of_a_step_that_failed_is_no_progress():
    error = f"{HEAD}OSError: [Errno 28] No space left on device\n"
    for after in (
        "checkpoint at step 90 not written\n*** STEP 91.0 ON n0 CANCELLED AT 2026 ***\n",
        "step 9 failed\nstep 10 failed\n",
        "step 10\nstep 9\n",
    ):
        assert found(f"step 8\n{error}{after}")[1] == "disk-full"
    assert found(f"{error}step 9 loss 2\nstep 10 loss 1\n")[1] == "exit-1"


def test_launcher_that_ends_the_others_is_not_their_cause():
    text = "Sending process 81 closing signal SIGTERM\n"
    assert found(text) == ("unknown", "exit-1")
    text = "srun: error: n1: task 7000: Exited with exit code 1\n"
    text += (
        "srun: Terminating StepId=7.0\nslurmstepd: error: *** STEP 7.0 ON n0 CANCELLED "
    )
    assert found(f"{text}AT 2026-10-02T22:10:01 ***\n")[0] == "unknown"


def test_fields_of_records_are_read_and_code_is_not():
    assert found("    Reason:       OOMKilled\n")[1] == "out-of-memory-host"
    assert (
        found('    "message": "RendezvousConnectionError: lost"\n')[0] == "rendezvous"
    )
    assert found("    raise MemoryError('out of memory')\n")[1] == "exit-1"
    evicted = "Reason:  Evicted\nMessage: The node was low on resource: memory.\n"
    assert found(evicted)[1] == "out-of-memory-host"
    assert found("  Warning  Evicted  9s  kubelet  x\n") == ("scheduler", "evicted")


def test_exception_without_a_heading_counts_before_the_echo_of_another_rank():
    echo = "".join(f"[1]: {x}\n" for x in f"{HEAD}RuntimeError: {ECHO}".splitlines())
    assert found(f"(pid=2) ValueError: twice the same name\n{echo}")[0] == "program"
    assert found(echo)[0] == "interconnect"


def test_vague_words_do_not_outweigh_an_echo_in_the_same_message():
    text = "RuntimeError: Connection reset by peer, please set MASTER_PORT\n"
    assert found(f"{HEAD}{text}")[0] == "interconnect"


def test_unless_of_a_file_of_ones_own_keeps_lines_out(tmp_path, monkeypatch):
    file = tmp_path / "signs.toml"
    file.write_text(
        "[[sign]]\nclass = 'service'\ncause = 'licence'\nunless = 'returned'\n"
        "[sign.patterns]\n'seat \\d+' = 'seat 17 is taken'\n"
    )
    monkeypatch.setenv(SIGNS_VARIABLE, str(file))
    assert found("Seat 4 is taken\n")[1] == "licence"
    assert found("Seat 4 was returned\n")[1] == "exit-1"


def test_line_about_data_does_not_hide_what_stands_still():
    harmless = "libjpeg: premature end of data segment\n"
    assert found(harmless + COLLECTIVE) == ("interconnect", "nccl-timeout")
    assert found(harmless + COLLECTIVE, exit_code=-6)[0] == "interconnect"


def test_what_a_tool_says_of_a_file_counts_where_nothing_else_does():
    said = "gzip: day_3.gz: unexpected end of file\n"
    assert found(said, exit_code=2) == ("data", "data-reported")
    assert found(f"{said}{ECHO}\n")[0] == "interconnect"
    assert found(said, exit_code=-9) == ("killed", "sigkill")


def test_interrupt_of_one_rank_does_not_explain_an_abort():
    interrupted = f"{HEAD}KeyboardInterrupt\n"
    assert found(COLLECTIVE + interrupted, exit_code=-6)[0] == "interconnect"
    assert found(interrupted, exit_code=-6) == ("crash", "abort")
    assert found(interrupted, exit_code=1) == ("killed", "interrupted")


def test_watchdog_that_tells_of_a_hang_counts_before_the_signal_it_sends():
    said = "supervisor: no log output for 1800 s, job considered hung\nTerminated\n"
    assert found(said, exit_code=143) == ("hang", "stalled")
    assert found("Terminated\n") == ("killed", "sigterm")


@pytest.mark.parametrize("exit_code", [-9, -15, 143])
def test_task_that_is_blocked_in_the_kernel_explains_that_it_was_killed(exit_code):
    blocked = ("INFO: task python:81 blocked for more than 120 seconds.",)
    assert found("x", exit_code=exit_code, kernel=blocked) == ("hang", "task-blocked")


@pytest.mark.parametrize("name", ["SIGABRT", "SIGSEGV", "SIGFPE"])
def test_signal_of_a_crash_is_no_work_of_a_scheduler(name):
    said = f"fish: Job 1, 'python fit.py' terminated by signal {name} (x)\n"
    assert found(said)[0] == "crash"


def test_watchdog_that_kills_what_stands_still_counts_before_its_signal():
    silent = "monitor: no progress for 1800 s, ending the job\n"
    killed = "failed (exitcode: -9) local_rank: 5 (pid: 81) of binary: python\n"
    assert found(killed) == ("killed", "sigkill")
    assert found(silent + killed) == ("hang", "stalled")
    assert found(f"[WARNING] {silent}{killed}") == ("hang", "stalled")
    assert found(f"{silent}Killed\n", exit_code=137) == ("hang", "stalled")
    segfault = killed.replace("-9", "-11")
    assert found(silent + segfault)[0] == "crash"


def test_error_above_counts_before_what_points_to_it():
    above = "RuntimeError: Engine core initialization failed. See root cause above.\n"
    assert found(above)[0] == "killed"
    assert found(f"ValueError: 6 heads must be divisible by 4\n{above}")[0] == "program"


@pytest.mark.parametrize("error", ["ProcessExited(3)", "IOError: connect: refused"])
def test_error_that_julia_wraps_is_no_proof_of_the_program(error):
    assert found(f"ERROR: LoadError: {error}\n")[0] != "program"
    assert found("ERROR: LoadError: BoundsError: attempt\n")[0] == "program"
