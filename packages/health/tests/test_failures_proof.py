"""It takes proof that it is the program to stop a job; what nobody knows is unknown."""

import pytest

from drivetrain_health.failures import (
    Diagnosis,
    ErrorRecord,
    Evidence,
    FailureClass,
    Finding,
    Incident,
    diagnose,
    respond,
    root_cause,
)

KILLED = "Memory cgroup out of memory: Killed process 81 (pt_data_worker)"


def found(*error, exit_code=1, place="/job/fit.py", **known):
    """Returns what is found of a worker that has raised an error, if one is given."""
    if error:
        where = f'Traceback (most recent call last):\n  File "{place}", line 3, in f\n'
        said = ": ".join(error)
        known["output"] = f"{where}    x\n{said}\n" + known.get("output", "")
    return diagnose(Evidence(worker="a", node="n", exit_code=exit_code, **known))


def action_after(diagnosis, past=()):
    return respond(1_000.0, diagnosis, past).action.value


@pytest.mark.parametrize(
    "error",
    [
        ("lib.core.TokenRingError", "seat 7 has left the ring"),
        ("RuntimeError", "the pipe to the tokenizer is quiet"),
        ("Exception", "x"),
        ("EOFError",),
        ("SystemError", "error return without exception set"),
    ],
)
def test_exception_that_no_sign_knows_is_no_proof(error):
    one = found(*error)
    assert one.failure_class == FailureClass.UNKNOWN
    assert action_after(one) == "restart-process"


@pytest.mark.parametrize(
    "error",
    [
        ("UnboundLocalError", "local variable 'x' referenced before assignment"),
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (2x9 and 8x4)"),
        ("RuntimeError", "element 0 of tensors does not require grad"),
        ("omegaconf.errors.ConfigAttributeError", "Key 'lrr' is not in struct"),
        ("drivetrain_core._errors.ProgramError", "there is no schedule"),
    ],
)
def test_error_that_only_programs_make_is_proof(error):
    one = found(*error)
    assert one.failure_class == FailureClass.PROGRAM
    assert action_after(one) == "stop-job"


def test_unknown_error_at_one_place_on_two_nodes_is_the_programs():
    one = found("lib.Odd", "x")
    before = Incident(0.0, *one[:2], "m", "m/0", "replace-node", one.place)
    assert action_after(one, [before]) == "stop-job"
    assert action_after(one, [before._replace(place="b.py:1 in g")]) != "stop-job"


@pytest.mark.parametrize(
    "error",
    [
        ("EOFError",),
        (
            "concurrent.futures.process.BrokenProcessPool",
            "A process in the process pool",
        ),
        (
            "subprocess.CalledProcessError",
            "Command 'x' died with <Signals.SIGKILL: 9>.",
        ),
        ("torch._inductor.compile_worker.subproc_pool.SubprocException", "gone"),
        ("lib.pool.ChildGone", "the child is gone"),
    ],
)
def test_kernels_kill_explains_what_a_parent_says_of_its_child(error):
    for known in ({"kernel": (KILLED,)}, {"oom_kills": 1}):
        one = found(*error, **known)
        assert one.cause == "out-of-memory-host"
        assert action_after(one) == "restart-process"
    assert found("KeyError", "'lr'", kernel=(KILLED,)).cause == "key-error"


def test_machine_that_has_failed_before_is_the_cause_of_an_error():
    output = "Failed to initialize NVML: Driver/library version mismatch\n"
    where = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    x\n'
    text = f"{output}{where}AssertionError: 0 devices\n"
    one = diagnose(Evidence(worker="a", node="n", exit_code=1, output=text))
    assert (one.failure_class, one.place) == (FailureClass.DRIVER, "a.py:3 in f")
    text = f"{where}KeyError: 'lr'\n\n{output}"
    assert diagnose(Evidence(worker="a", node="n", exit_code=1, output=text)).cause == (
        "key-error"
    )


def test_error_in_the_client_of_a_store_is_the_services():
    place = "/v/lib/python3.11/site-packages/botocore/httpsession.py"
    for error in (("TimeoutError",), ("OSError", "odd"), ("ConnectionResetError",)):
        assert found(*error, place=place).failure_class == FailureClass.SERVICE
    assert found("TypeError", "f() got x", place=place).failure_class == "program"


@pytest.mark.parametrize(
    ("code", "line", "cause"),
    [
        (1, "[launch.py:9] ['python3', '-u', 'fit.py'] exits with return code = -9", "sigkill"),
        (1, "mpirun noticed that rank 3 on node n exited on signal 11 (Segmentation fault).",
         "segfault"),
        (1, "Process finished with exit code 137 (interrupted by signal 9: SIGKILL)", "sigkill"),
        (1, "[rank: 2] Child process with PID 7 terminated with code -11.", "segfault"),
        (1, "srun: error: n3: tasks 0-7: Out Of Memory", "out-of-memory-host"),
        (1, "srun: error: n3: tasks 4-5: Killed", "sigkill"),
        (1, "fit.sh: line 3:    81 Bus error               (core dumped) python fit.py",
         "bus-error"),
        (1, "    Exit Code:    137", "sigkill"),
        (1, "      Reason:       OOMKilled", "out-of-memory-host"),
        (137, "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.", "out-of-memory-host"),
        (143, "slurmstepd: error: *** JOB 1 ON n CANCELLED AT x DUE TO PREEMPTION ***",
         "preempted"),
        (247, "", "sigkill"),
        (1, "worker 3 ended with code 3, status 12", "exit-1"),
    ],
)  # fmt: skip
def test_what_launchers_and_schedulers_say_is_known(code, line, cause):
    text = f"step 7\n{line.removeprefix('    ')}\n"
    one = diagnose(Evidence(worker="a", node="n", exit_code=code, output=text))
    assert one.cause == cause


def test_own_refusal_is_the_programs_and_its_line_is_shown():
    text = 'nanobind: leaked 3 types!\ndrivetrain_horovod.on_elastic: there is no script "f"\n'
    one = diagnose(Evidence(worker="a", node="n", exit_code=1, output=text))
    assert (one.failure_class, one.cause) == ("program", "refused")
    assert "there is no script" in one.reason
    error = ErrorRecord("drivetrain_core._errors.DistributedError", "rank 3 is gone")
    lost = diagnose(Evidence(worker="a", node="n", exit_code=1, error=error))
    assert (lost.cause, lost.is_echo) == ("broken-world", True)


def test_peer_memory_has_a_cause_of_its_own():
    for line in (
        "NCCL WARN Call to ibv_reg_dmabuf_mr failed with error Operation not supported",
        "NET/IB : Got completion from peer 10.0.0.1<5> with error 4, vendor err 81 (Send)",
        "nvidia-peermem is not loaded, GPUDirect RDMA is off",
    ):
        one = diagnose(Evidence(worker="a", node="n", exit_code=1, output=line))
        assert (one.failure_class, one.cause) == ("interconnect", "peer-memory")
        assert action_after(one) == "restart-process"


def test_of_two_at_the_same_time_the_one_that_stops_no_job_counts():
    program = Diagnosis(FailureClass.PROGRAM, "key-error", "", "x")
    disk = Diagnosis(FailureClass.STORAGE, "disk-full", "n", "x")
    assert root_cause([Finding(0.0, program), Finding(0.0, disk)]) is disk
    assert root_cause([Finding(0.0, program), Finding(1.0, disk)]) is program


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: shapes do not match",
        "ValueError: the structure of string fields must not be refused",
        "AttributeError: 'Trainer' object has no attribute 'profiler'",
        "AssertionError: the amount of success is 3",
        "KeyError: 'broadcast_buffers'",
        "ModuleNotFoundError: No module named 'botocore'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.idx'",
        "RuntimeError: stack expects each tensor to be equal size, but got [3] and [4]",
        "RuntimeError: Trying to backward through the graph a second time",
    ],
)
def test_words_within_words_are_no_sign(line):
    assert found(*line.split(": ", 1)).failure_class == FailureClass.PROGRAM


@pytest.mark.parametrize(
    "line",
    [
        "Namespace(batch=8, patience=1800, checkpoint_errors='ignore', max_retries=3)",
        "Preparing the dataset: 0 corrupted records",
        "Loaded model-7.safetensors, checksum mismatch: 0",
        "Saving a checkpoint to /data/step-100",
        "gradient reset at start, memory limit 64 GiB, signal: none",
    ],
)
def test_line_of_a_log_that_tells_of_no_failure_is_none(line):
    one = diagnose(Evidence(worker="a", node="n", exit_code=1, output=line))
    assert (one.failure_class, one.cause) == (FailureClass.UNKNOWN, "exit-1")
