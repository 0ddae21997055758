"""`drivetrain-health diagnose` explains files that a user has."""

import json
import os
import random
from functools import partial
from importlib import import_module

import pytest
from failure_samples import load

from drivetrain_health._commands._diagnose_options import populate_diagnose_parser
from drivetrain_testing import check_wrong_use, run_subcommand

run_one = partial(run_subcommand, "drivetrain-health")
wrong_use = partial(check_wrong_use, "drivetrain-health")


@pytest.fixture
def diagnose(capsys):
    """Runs the command; returns its status and what it printed."""

    def run(*argv):
        status = run_one("diagnose", populate_diagnose_parser, argv)
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


@pytest.fixture
def log(tmp_path):
    """Writes the output of a sample to a file."""

    def write(name, kind="recorded"):
        file = tmp_path / f"{name}.log"
        file.write_text("\n".join(load(kind)[name]["output"]))
        return file

    return write


def test_diagnose_explains_the_log_of_a_launcher(diagnose, log):
    status, out, _ = diagnose("--output", log("torchrun"), "--exit-code", 1)
    assert status == 0
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert rows["class"] == "program"
    assert rows["because"] == "ValueError: learning rate -1 is below 0"
    assert rows["follows"] == "stop-job"
    assert rows["place"] == "train.py:3 in <module>"


def test_diagnose_finds_the_first_cause_among_several_workers(diagnose, log):
    logs = [log("peer-killed"), log("xid-48", "documented"), log("peer-silent")]
    argv = [word for one in logs for word in ("--output", one)]
    status, out, _ = diagnose(*argv, "--node", "n7", "--json")
    report = json.loads(out)
    assert status == 0
    assert report["root_cause"]["failure_class"] == "gpu-hardware"
    assert report["root_cause"]["node"] == "n7"
    assert report["response"]["action"] == "replace-node"
    assert [one["is_echo"] for one in report["workers"]] == [True, False, True]


def test_diagnose_reads_messages_of_the_kernel(diagnose, tmp_path):
    kernel = tmp_path / "dmesg.txt"
    kernel.write_text(
        "[ 12.5] usb 1-1: new device\n"
        "[ 99.1] Memory cgroup out of memory: Killed process 7 (python)\n"
    )
    status, out, _ = diagnose("--kernel", kernel, "--exit-code", 137)
    assert (status, "out-of-memory-host" in out) == (0, True)


def test_diagnose_reads_the_error_file_of_torchelastic(diagnose, tmp_path):
    file = tmp_path / "error.json"
    said = {
        "message": "KeyError: 'lr'",
        "extraInfo": {"py_callstack": "", "timestamp": 1},
    }
    file.write_text(json.dumps({"message": said}))
    status, out, _ = diagnose("--error", file)
    assert (status, "key-error" in out) == (0, True)


def test_diagnose_says_when_nothing_explains_it(diagnose, tmp_path):
    empty = tmp_path / "empty.log"
    empty.touch()
    status, out, _ = diagnose("--output", empty, "--exit-code", 1)
    assert (status, "unknown" in out) == (1, True)


def test_diagnose_of_nothing_is_wrong_use(diagnose):
    wrong_use(*diagnose(), "give what is to be explained: --output, --error, --kernel")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--output", "no/such.log"), "no/such.log: a file"),
        (("--output", "."), ".: a file with text, or a pipe, is expected: Is a dir"),
        (("--error", __file__), "this is none"),
    ],
)
def test_diagnose_refuses_what_it_cannot_read_in_one_line(diagnose, argv, says):
    status, out, err = diagnose(*argv)
    assert (status, out) == (1, "")
    assert says in err
    assert err.count("\n") == 1


@pytest.fixture
def stdin():
    """Lets the command find bytes in a pipe that is the standard input."""
    kept = os.dup(0)

    def give(said):
        source, target = os.pipe()
        os.write(target, said)
        os.dup2(source, 0)
        os.close(source)
        os.close(target)

    yield give
    os.dup2(kept, 0)
    os.close(kept)


def test_diagnose_reads_pipes_and_the_standard_input(diagnose, stdin, tmp_path):
    for name in ("-", "/dev/stdin"):
        stdin(b"KeyError: 'lr'\n")
        status, out, _ = diagnose("--output", name)
        assert (status, "key-error" in out) == (0, True)
    stdin(b"[ 9.1] Memory cgroup out of memory: Killed process 7 (python)\n")
    assert "out-of-memory-host" in diagnose("--kernel", "-", "--exit-code", 137)[1]
    stdin(json.dumps({"message": {"message": "KeyError: 'lr'"}}).encode())
    assert "key-error" in diagnose("--error", "-")[1]
    wrong_use(*diagnose("--output", "-", "--kernel", "-"), "can be given once only")


@pytest.mark.parametrize("library", ["gzip", "bz2", "lzma"])
def test_diagnose_says_that_a_file_is_compressed(diagnose, tmp_path, library):
    file = tmp_path / "log.packed"
    file.write_bytes(import_module(library).compress(b"KeyError: 'lr'\n"))
    for more in ((), ("--exit-code", 1)):
        status, out, err = diagnose("--output", file, *more)
        assert (status, out) == (1, "")
        assert f"{file} is compressed or binary: `zcat` it into a pipe" in err


def test_diagnose_says_that_a_file_is_binary_and_takes_text_of_any_kind(
    diagnose, tmp_path
):
    file = tmp_path / "log"
    file.write_bytes(random.Random(1).randbytes(10_000))
    assert "compressed or binary" in diagnose("--output", file)[2]
    for line in ("\x1b[31m\x1b[1m\r\t", "Straße\0", "内存不足".encode("gbk")):
        said = line if isinstance(line, bytes) else line.encode()
        file.write_bytes(said * 20 + b"\nKeyError: 'lr'\n")
        assert "key-error" in diagnose("--output", file)[1]


@pytest.mark.parametrize("code", [300, 288, -65])
def test_diagnose_refuses_an_exit_code_that_cannot_be(diagnose, code):
    wrong_use(*diagnose("--exit-code", code), "must be from -64 to 287")
    assert diagnose("--exit-code", 271)[0] in (0, 1)


TORCHRUN = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/job/ddp.py", line 12, in <module>
[rank0]:     dist.all_reduce(x)
[rank0]: RuntimeError: Connection {how} by peer [127.0.0.1]:47258
E1123 19:56:24.330000 8372 api.py:1002] failed (exitcode: {code}) local_rank: 1 (pid: 9)
"""
ROOT_CAUSE = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-23_19:56:24
  rank      : 5 (local_rank: 1)
  exitcode  : {code} (pid: 8378)
  error_file: {file}
  traceback : {traceback}
======================================================
"""


@pytest.mark.parametrize("block", ["", ROOT_CAUSE])
@pytest.mark.parametrize(("code", "cause"), [(-11, "segfault"), (-9, "sigkill")])
def test_diagnose_believes_torchrun_about_a_worker_that_wrote_nothing(
    diagnose, tmp_path, block, code, cause
):
    log = tmp_path / "run.log"
    text = TORCHRUN + block
    log.write_text(
        text.format(how="reset", code=code, file="<N/A>", traceback="Signal received")
    )
    for more in ((), ("--exit-code", 1)):
        status, out, _ = diagnose("--output", log, *more)
        rows = dict(line.split(maxsplit=1) for line in out.splitlines())
        assert (status, rows["cause"]) == (0, cause)
        assert "ended by SIG" in rows["because"]


def test_diagnose_reads_the_exception_in_the_root_cause_of_torchrun(diagnose, tmp_path):
    log = tmp_path / "run.log"
    traceback = (
        'Traceback (most recent call last):\n    File "/job/t.py", line 3, in f\n'
    )
    traceback += "      x\n  KeyError: 'lr'\n"
    text = TORCHRUN + ROOT_CAUSE
    log.write_text(
        text.format(how="closed", code=1, file="/tmp/error.json", traceback=traceback)
    )
    _, out, _ = diagnose("--output", log)
    assert "key-error" in out
    assert "t.py:3 in f" in out


def test_diagnose_does_not_take_the_echo_of_an_abort_for_a_crash(diagnose, tmp_path):
    log = tmp_path / "run.log"
    text = TORCHRUN + ROOT_CAUSE
    log.write_text(
        text.format(how="reset", code=-6, file="<N/A>", traceback="Signal 6")
    )
    _, out, _ = diagnose("--output", log)
    assert "connection-reset" in out


def test_diagnose_says_that_nothing_known_was_found(diagnose, tmp_path):
    log = tmp_path / "run.log"
    log.write_text("hello\nworld\n")
    status, out, err = diagnose("--output", log)
    assert (status, out) == (1, "")
    assert "nothing that is known was found in 2 lines of 1 file; give" in err
    status, out, _ = diagnose("--exit-code", 0)
    assert (status, out) == (0, "it ended with exit code 0: no failure\n")
    status, out, _ = diagnose("--exit-code", 0, "--json")
    assert (status, json.loads(out)["response"]) == (0, None)


def test_diagnose_counts_who_only_lost_contact(diagnose, log):
    logs = [log("peer-killed"), log("xid-48", "documented"), log("peer-silent")]
    _, out, _ = diagnose(*[word for one in logs for word in ("--output", one)])
    assert "2 others, of which 2 only lost contact" in out


def test_exception_without_a_message_has_no_colon(diagnose, tmp_path):
    file = tmp_path / "error.json"
    file.write_text(json.dumps({"message": {"message": "MemoryError: "}}))
    _, out, _ = diagnose("--error", file)
    assert "because  MemoryError\n" in out


def test_first_of_several_files_is_decided_by_the_times_in_their_lines(
    diagnose, tmp_path
):
    said = {
        "late": "OSError: [Errno 28] No space left on device",
        "early": "RuntimeError: CUDA out of memory",
    }
    times = {"late": "2026-01-05T11:20:31.5Z", "early": "2026-01-05 11:20:31,25"}
    argv = []
    for name, line in said.items():
        file = tmp_path / f"{name}.log"
        file.write_text(f"{times[name]} step 7\n{times[name]} {line}\n")
        argv += ["--output", file]
    for order in (argv, [*argv[2:], *argv[:2]]):
        _, out, _ = diagnose(*order, "--exit-code", 1)
        assert "out-of-memory-cuda" in out


@pytest.mark.parametrize(
    ("early", "late"),
    [
        ("2026-11-30T12:00:00+09:00", "2026-11-30T04:00:00Z"),
        ("2026-11-30 12:00:00.5 +0900", "2026-11-30 03:00:01 UTC"),
        ("2026/11/30 23:59:59 -0200", "2026-12-01T02:00:00.000000001+00:00"),
        ("E1130 11:59:00.100 7 a.py:3]", "E1130 12:00:00.100 7 a.py:3]"),
        ("[rank0]:[W1130 11:59:00.123456789 c.cpp:3]", "[2026-11-30 11:59:01,5]"),
        ("2026-12-31 23:59:59", "2027-01-01_00:00:00"),
        ("2026-11-30 12:00:00", "2026-11-30 12:00:01 E9930 11:00:00"),
    ],
)
def test_times_are_compared_by_their_zones_and_as_loggers_write_them(
    diagnose, tmp_path, early, late
):
    argv = []
    for name, at, error in (("a", early, "IndexError: 1"), ("b", late, "KeyError: 2")):
        file = tmp_path / name
        head = 'Traceback (most recent call last):\n  File "b.py", line 3, in g\n'
        file.write_text(f"{at} step 7\n{head}{error}\n")
        argv += ["--output", file]
    for order in (argv, [*argv[2:], *argv[:2]]):
        _, out, err = diagnose(*order)
        assert "because  IndexError" in out
        assert err == ""


@pytest.mark.parametrize("other", ["", "2026-11-30T04:00:00Z", "2026-13-30 04:00:00"])
def test_first_failure_that_times_do_not_tell_is_called_a_guess(
    diagnose, tmp_path, other
):
    for name, at in (("a", "2026-11-30 12:00:00"), ("b", other)):
        (tmp_path / name).write_text(f"{at} x\nKeyError: '{name}'\n")
    both = ("--output", tmp_path / "a", "--output", tmp_path / "b")
    _, out, err = diagnose(*both)
    assert "because  KeyError" in out
    assert err.startswith("warning: which was the first is a guess")
    # It is none where all that the other has lost is contact.
    (tmp_path / "b").write_text("RuntimeError: Connection reset by peer\n")
    assert diagnose(*both)[2] == ""


def test_file_of_signs_that_is_none_is_one_line(diagnose, tmp_path, monkeypatch):
    monkeypatch.setenv("DRIVETRAIN_HEALTH_SIGNS", str(tmp_path))
    status, out, err = diagnose("--exit-code", 1)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "signs of failures are expected" in err
