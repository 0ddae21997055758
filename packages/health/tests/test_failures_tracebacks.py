"""Tracebacks are found behind whatever stands before their lines."""

import pytest

from drivetrain_health.failures import Evidence, diagnose
from drivetrain_health.failures._clue import clean_lines
from drivetrain_health.failures._tracebacks import find_tracebacks

LAST = "IndexError: shard 9 of 8"
LINES = [
    "Traceback (most recent call last):",
    '  File "/job/fit.py", line 31, in fit',
    "    batch = shards[at]",
    LAST,
]


def behind(*prefixes):
    """Returns a traceback of which each line stands behind the next of some prefixes."""
    numbered = enumerate(LINES)
    return "\n".join(prefixes[at % len(prefixes)] + line for at, line in numbered)


def told(output, exit_code=1, **known):
    found = diagnose(
        Evidence(worker="a", node="n", exit_code=exit_code, output=output, **known)
    )
    return found.failure_class.value, found.cause


PROGRAM = ("program", "index-error")


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank12]: ",
        "(FitActor pid=77, ip=10.9.0.1) ",
        "[1,12]<stderr>:",
        "gpu-12: ",
        "12: [rank3]: ",
        "fit-0 | ",
        "pod/fit-0 [main] ",
        "[pod/fit-0/main] ",
        "I0105 11:20:31.123 77 fit.cc:9] ",
        "ERROR 01-05 11:20:31 [executor.py:7] ",
        "\x1b[36m(Fit pid=7)\x1b[0m ",
        "2026-01-05 11:20:31.1 ERROR fit ",
        "<12> | ",
        "│ ",
    ],
)
def test_traceback_is_found_behind_a_prefix(prefix):
    assert told(behind(prefix)) == PROGRAM
    found = diagnose(Evidence(worker="a", node="n", exit_code=1, output=behind(prefix)))
    assert found.place == "fit.py:31 in fit"
    assert found.reason == LAST


def test_time_in_a_prefix_goes_on():
    clocks = [f"2026-01-05T11:20:{at:02}.5Z stderr F " for at in (58, 59, 59, 0)]
    assert told(behind(*clocks)) == PROGRAM


def test_prefix_of_the_first_line_only_is_a_bar_or_a_logger():
    assert told(" 5%|#  | 12/250 [00:01<00:20, 9it/s]" + behind("")) == PROGRAM
    assert told("2026-01-05 11:20:31,4 - fit - ERROR - " + behind("")) == PROGRAM


def test_traceback_in_a_box_is_found():
    boxed = [
        "╭─────── Traceback (most recent call last) ───────╮",
        "│ /job/fit.py:31 in fit                           │",
        "│ ❱ 31     batch = shards[at]                     │",
        "╰─────────────────────────────────────────────────╯",
        LAST,
    ]
    for prefix in ("", "[rank0]: "):
        text = "\n".join(prefix + line for line in boxed)
        found = diagnose(Evidence(worker="a", node="n", exit_code=1, output=text))
        assert (found.cause, found.place) == ("index-error", "fit.py:31 in fit")


def test_traceback_without_its_heading_is_found():
    assert told("\n".join(["lost words", *LINES[1:]])) == PROGRAM


def test_tracebacks_of_two_ranks_that_interleave_are_told_apart():
    lost = "ConnectionResetError: [Errno 104] Connection reset by peer"
    ranks = [behind("[rank0]: "), behind("[rank1]: ").replace(LAST, lost)]
    for first, second in (ranks, ranks[::-1]):
        lines = zip(first.split("\n"), second.split("\n"), strict=True)
        assert told("\n".join(line for two in lines for line in two)) == PROGRAM


def test_group_of_exceptions_is_no_cause_of_its_own():
    text = """\
  + Exception Group Traceback (most recent call last):
  |   File "/job/fit.py", line 9, in <module>
  |     fit()
  | ExceptionGroup: two (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/job/fit.py", line 31, in fit
    |     batch = shards[at]
    | IndexError: shard 9 of 8
    +------------------------------------
"""
    assert told(text) == PROGRAM


def test_chain_behind_prefixes_of_other_times_is_one():
    first = behind("11:20:31 fit: ").replace(LAST, "OSError: [Errno 28] No space left")
    second = behind("11:20:32 fit: ").replace(LAST, "fit.SaveError: not saved")
    between = (
        "11:20:31 fit: \n11:20:31 fit: The above exception was the direct cause of"
    )
    text = f"{first}\n{between} the following exception:\n11:20:31 fit: \n{second}"
    assert told(text) == ("storage", "disk-full")


FULL = behind("").replace(LAST, "OSError: [Errno 28] No space left on device")
STEPS = "\nstep 8 loss 2.1\nstep 9 loss 2.0\n"


def test_first_cause_counts_and_not_the_last_traceback():
    ended = "Exception ignored in: <function Loader.__del__ at 0x7f>\n" + behind("")
    assert told(f"{FULL}\n{ended}") == ("storage", "disk-full")
    assert told(f"{ended}\n{FULL}") == ("storage", "disk-full")
    assert told(f"{FULL}\n{behind('')}") == ("storage", "disk-full")


def test_what_training_went_on_after_is_no_cause():
    assert told(f"{behind('')}{STEPS}{FULL}") == ("storage", "disk-full")
    assert told(f"{FULL}{STEPS}{behind('')}") == PROGRAM
    assert told(f"{behind('')}{STEPS}") == ("unknown", "exit-1")
    # All ranks end the step that they are in.
    same = "\nstep 8 loss 2.1\nstep 8 loss 2.2\n"
    assert told(f"{behind('')}{same}") == PROGRAM


def test_summary_of_a_launcher_is_no_cause():
    launch = behind("").replace(
        LAST,
        "subprocess.CalledProcessError: Command '['fit']' died with <Signals.SIGKILL: 9>.",
    )
    assert told(launch) == ("killed", "sigkill")
    assert told(f"{FULL}\n{launch}") == ("storage", "disk-full")
    assert told(launch.replace("died with <Signals.SIGKILL: 9>", "failed")) == (
        "unknown",
        "exit-1",
    )


def test_lines_that_are_no_traceback_are_none():
    text = "\n".join(LINES[:3]) + "\nstep 7\nERROR fit: lost\n" + "\n".join(LINES[:3])
    assert find_tracebacks(clean_lines(text)) == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x9 and 8x4)", "program"),
        ("OSError: [Errno 28] No space left on device", "storage"),
        ("RuntimeError: the pipe is quiet", "unknown"),
    ],
)  # fmt: skip
def test_error_that_a_loaders_worker_has_raised_is_the_one_that_counts(error, expected):
    kind = error.partition(":")[0]
    lines = [*LINES[:3], f"{kind}: Caught {kind} in DataLoader worker process 3."]
    lines += ["Original Traceback (most recent call last):", *LINES[1:3], error]
    for prefix in ("", "[rank2]: "):
        text = "".join(f"{prefix}{line}\n" for line in lines)
        assert told(text)[0] == expected


def test_message_that_begins_in_the_next_line_is_read():
    text = behind("").replace(
        LAST, "RuntimeError: \n        shapes cannot be multiplied"
    )
    assert told(text)[0] == "program"


def test_check_of_a_library_that_raises_is_the_programs():
    text = behind("").replace(LAST, "RuntimeError: this went astray")
    for package, line, expected in (
        ("torch/nn/utils/x", "raise RuntimeError(", "program"),
        ("torch/nn/utils/x", "return torch._C.f(", "unknown"),
        ("torch/distributed/x", "raise RuntimeError(", "unknown"),
    ):
        frame = f'  File "/v/lib/python3.11/site-packages/{package}.py", line 8, in f\n'
        inner = text.replace("RuntimeError:", f"{frame}    {line}\nRuntimeError:")
        assert told(inner)[0] == expected


def test_unknown_error_of_what_reads_data_is_the_datas_and_is_tried_again():
    text = behind("").replace(LAST, "RuntimeError: this went astray")
    for package, error, expected in (
        ("PIL/x.py", "RuntimeError", ("data", "data-reported")),
        ("PIL/x.py", "ConnectionResetError", ("interconnect", "connection-lost")),
        ("other/x.py", "RuntimeError", ("unknown", "runtime-error")),
    ):
        frame = f'  File "/v/lib/python3.11/site-packages/{package}", line 8, in f\n'
        inner = text.replace("RuntimeError:", f"{frame}    x()\n{error}:")
        assert told(inner) == expected


def test_check_of_a_library_does_not_outweigh_an_echo():
    where = "/v/lib/python3.11/site-packages/torch/nn/x.py"
    frame = f'  File "{where}", line 8, in f\n    raise E(\n'
    for error in ("RuntimeError: Connection reset by peer", "TimeoutError: f"):
        text = behind("").replace(LAST, frame + error)
        assert told(text)[0] in {"interconnect", "hang"}


@pytest.mark.parametrize(
    "error",
    [
        "gzip.BadGzipFile: CRC check failed 0x1 != 0x2",
        "pyarrow.lib.ArrowInvalid: Parquet magic bytes not found in footer",
    ],
)
def test_exception_whose_name_does_not_say_so_is_one(error):
    frame = '[rank5]:   File "/v/lib/python3.11/x.py", line 8, in f\n[rank5]:     x()\n'
    remote = (
        "NCCL error in: x.cpp:1, remote process exited or there was a network error"
    )
    lost = f'Traceback (most recent call last):\n  File "a.py", line 1, in f\nRuntimeError: {remote}'
    for head in ("", frame):
        assert told(f"{head}[rank5]: {error}\n{lost}\n")[0] == "data"
