"""How pieces of evidence are weighed, and what bad evidence does."""

import pytest
from failure_samples import evidence_of, load
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_core import ProgramError
from drivetrain_health.failures import (
    ErrorRecord,
    Evidence,
    FailureClass,
    GpuReading,
    NicReading,
    diagnose,
)

RESET = ErrorRecord("RuntimeError", "[gloo/pair.cc:1] Connection reset by peer [::1]:4")
LOST = GpuReading(index=2, is_lost=True, missing="GPU is lost")
FLAP = NicReading(name="mlx5_0/1", was_up=True, is_up=True, num_link_downs=1)
DOWN = "mlx5_core 0000:5e:00.0 ens1f0np0: Link down"
KILLED = "Out of memory: Killed process 7 (python) total-vm:1kB"


def cause_of(**known):
    found = diagnose(Evidence(worker="n1/0", node="n1", **known))
    return found.cause


def test_hardware_counts_before_what_the_program_says():
    wrong = ErrorRecord("KeyError", "'lr'")
    assert cause_of(error=wrong, gpus=(GpuReading(), LOST)) == "gpu-lost"
    assert cause_of(error=RESET, network=(FLAP,)) == "link-flap"
    assert cause_of(error=RESET, kernel=(DOWN,), network=(FLAP,)) == "link-down"


def test_hardware_explains_only_what_such_hardware_makes():
    wrong = ErrorRecord("KeyError", "'lr'")
    assert cause_of(error=wrong, network=(FLAP,), kernel=(DOWN, KILLED)) == "key-error"
    assert cause_of(exit_code=-11, network=(FLAP,)) == "segfault"
    assert cause_of(exit_code=-9, kernel=(KILLED,)) == "out-of-memory-host"
    assert cause_of(exit_code=-15, kernel=(KILLED,), oom_kills=2) == "sigterm"
    assert cause_of(error=RESET, kernel=(KILLED,)) == "connection-reset"


def test_end_that_was_asked_for_is_nobodys_fault():
    found = diagnose(
        Evidence(worker="a", node="n", exit_code=-9, is_asked=True, network=(FLAP,))
    )
    assert (found.cause, found.node, found.is_echo) == ("asked", "", True)
    found = diagnose(
        Evidence(worker="a", node="n", exit_code=-9, why_killed="its copy is replaced")
    )
    assert (found.cause, found.node, found.is_echo) == ("by-agent", "", True)


def test_victim_of_a_closed_connection_is_an_echo():
    found = diagnose(Evidence(worker="a", node="n", exit_code=1, error=RESET))
    assert (found.node, found.is_echo) == ("", True)


def test_corrected_errors_are_no_failure():
    few = NicReading(name="eth0", was_up=True, is_up=True, num_errors=3)
    pending = GpuReading(remap_pending=True, nvlink_errors=5, temperature_c=84.0)
    known = {"network": (few,), "gpus": (pending,), "error": RESET}
    assert cause_of(**known) == "connection-reset"


def test_cause_of_a_cause_is_found_in_the_chain():
    chain = (
        "Traceback (most recent call last):\n"
        '  File "/job/data.py", line 3, in read\n'
        "OSError: [Errno 28] No space left on device\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/job/train.py", line 9, in save\n'
        "job.SaveError: step 7 was not saved\n"
    )
    found = diagnose(Evidence(worker="a", node="n", exit_code=1, output=chain))
    assert (found.cause, found.place) == ("disk-full", "train.py:9 in save")
    record = ErrorRecord("job.SaveError", "step 7 was not saved", chain)
    assert cause_of(error=record) == "disk-full"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (("torch.distributed.elastic.multiprocessing.api.SignalException",
          "Process 7 got signal: 15"), "sigterm"),
        (("ConnectionResetError", ""), "connection-lost"),
        (("requests.exceptions.ConnectionError", "Connection reset"), "remote-store"),
        (("urllib.error.URLError", "<urlopen error timed out>"), "remote-store"),
        (("torch.distributed.DistBackendError",
          "NCCL error in: x.cpp:1, invalid usage, ncclInvalidUsage: Duplicate GPU detected"),
         "nccl-invalid-usage"),
        (("torch.distributed.DistBackendError", "something new"), "nccl-error"),
        (("torch.AcceleratorError", "the device sim:0 is lost"), "accelerator-error"),
        (("torch.AcceleratorError", "CUDA error: device-side assert triggered"),
         "device-assert"),
        (("RuntimeError", "Pin memory thread exited unexpectedly"), "dataloader-worker"),
        (("job.errors.HTTPFetchError", "no"), "http-fetch-error"),
        (("", "x"), "error"),
    ],
)  # fmt: skip
def test_exception_is_known_by_its_type_or_its_message(error, cause):
    assert cause_of(exit_code=1, error=ErrorRecord(*error)) == cause


def test_words_in_lines_of_code_are_no_failure():
    text = (
        "Traceback (most recent call last):\n"
        '  File "/job/train.py", line 9, in step\n'
        '    raise Odd("x")  # not CUDA out of memory, nor EADDRINUSE\n'
        "job.Odd: x\n"
    )
    assert cause_of(exit_code=1, output=text) == "odd"


def test_first_rank_that_raised_is_found_among_many():
    lines = []
    for rank in range(3):
        said = (
            "ValueError: no such rate"
            if rank == 1
            else f"{RESET.type}: {RESET.message}"
        )
        lines += [
            f"[rank{rank}]: Traceback (most recent call last):",
            f'[rank{rank}]:   File "/job/train.py", line {rank}, in step',
            f"[rank{rank}]: {said}",
        ]
    assert cause_of(exit_code=1, output="\n".join(lines)) == "value-error"


def test_crash_says_where_the_program_was():
    sample = load("recorded")["segfault-with-stacks"]
    assert diagnose(evidence_of(sample)).place == "train.py:4 in step"


def test_readings_that_are_missing_say_nothing():
    blind = GpuReading(missing="Driver Not Loaded")
    unseen = NicReading(name="eth0", missing="carrier: Invalid argument")
    known = {"gpus": (blind,), "network": (unseen,), "exit_code": -9}
    assert cause_of(**known) == "sigkill"


@pytest.mark.parametrize(
    "wrong", [{"worker": ""}, {"silent_s": -1.0}, {"silent_s": float("nan")}]
)
def test_evidence_that_cannot_be_is_refused(wrong):
    with pytest.raises(ProgramError, match="got"):
        Evidence(**{"worker": "a", "node": "n", **wrong})


def test_lines_of_any_length_are_read_in_time():
    long = "Traceback (most recent call last):\n" * 500 + "s3" * 500_000 + "\n" * 5_000
    found = diagnose(
        Evidence(worker="a", node="n", exit_code=1, output=long, kernel=(long,))
    )
    assert found.failure_class == FailureClass.UNKNOWN


WORDS = st.sampled_from(
    [
        "Traceback (most recent call last):",
        "[rank1]: Traceback (most recent call last):",
        '  File "a.py", line 3, in f',
        "ValueError: x",
        "Original Traceback (most recent call last):",
        "The above exception was the direct cause of the following exception:",
        "NVRM: Xid (PCI:0000:1b:00): 79, x",
        "Xid (",
        "Fatal Python error: Aborted",
        "Current thread 0x1 (most recent call first):",
        "usage: a",
        "",
    ]
)
TEXT = st.lists(st.one_of(WORDS, st.text(max_size=40)), max_size=12).map("\n".join)


@settings(max_examples=150, deadline=None)
@given(
    output=TEXT,
    kernel=st.lists(TEXT, max_size=3).map(tuple),
    code=st.one_of(st.none(), st.integers(-70, 300)),
    error=st.one_of(st.none(), st.builds(ErrorRecord, TEXT, TEXT, TEXT)),
)
def test_any_text_gives_a_diagnosis(output, kernel, code, error):
    found = diagnose(
        Evidence(
            worker="a",
            node="n",
            output=output,
            kernel=kernel,
            exit_code=code,
            error=error,
        )
    )
    assert found.node in {"", "n"}
    assert found.cause
    assert found.reason.isprintable()


def test_error_of_a_device_that_nothing_explains_is_tried_again():
    error = ErrorRecord("torch.AcceleratorError", "the device sim:0 is lost")
    found = diagnose(Evidence(worker="a", node="n", exit_code=1, error=error))
    assert (found.failure_class, found.node) == ("crash", "n")
