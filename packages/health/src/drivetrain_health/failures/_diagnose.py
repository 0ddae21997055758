"""Why a worker has failed: all evidence, weighed.

What the hardware and the kernel say counts before what the program wrote, and that before
how the process ended. Two rules keep the innocent out of it. What hardware says only
explains a failure that such hardware makes: a link that went down does not make a wrong
key in a dictionary. And what any rank says when another one is gone, a connection that
was closed, is marked as an echo, which no node is blamed for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_health.failures._clue import Clue, clean_lines, find_sign, shortened
from drivetrain_health.failures._counters import clues_of_gpus, clues_of_network
from drivetrain_health.failures._diagnosis import Diagnosis
from drivetrain_health.failures._exceptions import clue_of_error
from drivetrain_health.failures._exit_codes import clue_of_exit_code, signal_of
from drivetrain_health.failures._failure_class import FailureClass
from drivetrain_health.failures._health import Health
from drivetrain_health.failures._kernel_signs import CERTAIN, EXPLAINING, OUT_OF_MEMORY
from drivetrain_health.failures._launchers import clue_of_launcher
from drivetrain_health.failures._output_signs import OUTPUT_SIGNS, telling_lines
from drivetrain_health.failures._tracebacks import find_place, find_tracebacks
from drivetrain_health.failures._xids import clues_of_xid_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_health.failures._evidence import Evidence

# How failing hardware, of each class, makes workers end.
_EXPLAINS = {
    FailureClass.INTERCONNECT: {
        FailureClass.INTERCONNECT,
        FailureClass.RENDEZVOUS,
        FailureClass.HANG,
        FailureClass.UNKNOWN,
        FailureClass.NODE_LOST,
    },
    FailureClass.NODE_HARDWARE: {
        FailureClass.STORAGE,
        FailureClass.HANG,
        FailureClass.UNKNOWN,
        FailureClass.NODE_LOST,
    },
    FailureClass.STORAGE: {
        FailureClass.STORAGE,
        FailureClass.HANG,
        FailureClass.UNKNOWN,
    },
    FailureClass.CRASH: {
        FailureClass.INTERCONNECT,
        FailureClass.HANG,
        FailureClass.UNKNOWN,
    },
    FailureClass.OUT_OF_MEMORY: frozenset(),
}
# Single causes that are explained as well.
_CAUSES = {
    FailureClass.OUT_OF_MEMORY: {
        "sigkill",
        "dataloader-worker-killed",
        "dataloader-worker",
    },
    # A page that could not be read from a file.
    FailureClass.NODE_HARDWARE: {"bus-error"},
    # A kernel that reads another GPU's memory over a link that fails.
    FailureClass.INTERCONNECT: {"cuda-illegal-access", "cuda-launch-failure"},
}
_NOT_EXPLAINED = {"no-failure", "asked", "by-agent"}
# What a rank may write of before its collectives fail.
_MAKE_ECHOES = frozenset({
    FailureClass.GPU_HARDWARE, FailureClass.INTERCONNECT, FailureClass.RENDEZVOUS,
    FailureClass.CRASH, FailureClass.OUT_OF_MEMORY,
})  # fmt: skip


def diagnose(evidence: Evidence) -> Diagnosis:
    """Returns why a worker has failed, as far as what is known of it alone tells.

    Args:
        evidence: All that is known.

    Example:
        >>> from drivetrain_health.failures import Evidence
        >>> died = diagnose(Evidence(worker="n1/0", node="n1", exit_code=-9, kernel=(
        ...     "Out of memory: Killed process 71 (python) total-vm:9kB",)))
        >>> died.failure_class.value, died.cause, died.node
        ('out-of-memory', 'out-of-memory-host', 'n1')
    """
    clue = _weigh(evidence)
    return Diagnosis(
        clue.failure_class,
        clue.cause,
        evidence.node if clue.blames_node else "",
        shortened(clue.reason),
        evidence.worker,
        clue.place,
        clue.is_echo,
    )


def _weigh(evidence: Evidence) -> Clue:
    kernel = [line for text in evidence.kernel for line in clean_lines(text)]
    hardware = [*clues_of_gpus(evidence.gpus), *clues_of_xid_lines(kernel)]
    for clue in hardware:
        if clue.failure_class == FailureClass.GPU_HARDWARE:
            return clue
    if (certain := find_sign(kernel, CERTAIN)) is not None:
        return certain
    if evidence.probe:
        return Clue(FailureClass.CORRUPTION, "wrong-numbers", evidence.probe)
    shown = _shown(evidence)
    explaining = [
        *(one for one in hardware if one.failure_class == FailureClass.INTERCONNECT),
        *_found(find_sign(kernel, EXPLAINING)),
        *clues_of_network(evidence.network),
        *(one for one in hardware if one.failure_class == FailureClass.CRASH),
    ]
    if evidence.oom_kills > 0:
        reason = f"the kernel has killed {evidence.oom_kills} processes of its group"
        explaining.insert(
            0, Clue(FailureClass.OUT_OF_MEMORY, "out-of-memory-host", reason)
        )
    explaining[:0] = _found(find_sign(kernel, OUT_OF_MEMORY))
    for clue in explaining:
        if _explains(clue, shown):
            return clue._replace(place=shown.place)
    return shown


def _found(clue: Clue | None) -> list[Clue]:
    return [] if clue is None else [clue]


def _explains(clue: Clue, shown: Clue) -> bool:
    """Returns whether hardware that fails like this makes a worker end like that."""
    if shown.cause in _NOT_EXPLAINED or (clue.is_echo and not shown.is_echo):
        return False
    if shown.failure_class in _EXPLAINS[clue.failure_class]:
        return True
    is_link_of_host = clue.cause.startswith(("link-", "nic-", "retransmits"))
    causes = _CAUSES.get(clue.failure_class, set())
    return shown.cause in causes and not is_link_of_host


def _shown(evidence: Evidence) -> Clue:
    """Returns what the worker itself, and those who watch it, say."""
    if evidence.is_asked:
        reason = evidence.why_killed or "it was asked to end"
        return Clue(FailureClass.KILLED, "asked", reason, False, True)
    if evidence.is_node_lost:
        return Clue(
            FailureClass.NODE_LOST, "node-silent", "nothing is heard of its node"
        )
    if evidence.health != Health.WELL:
        reason = evidence.why_killed or (
            f"{evidence.health.value}, silent for {evidence.silent_s:.1f} s"
        )
        return Clue(
            FailureClass.HANG,
            evidence.health.value,
            f"{reason}, {evidence.phase}" if evidence.phase else reason,
            place=find_place(
                _stacks(clean_lines(evidence.output)), is_newest_first=True
            ),
        )
    if evidence.why_killed:
        return Clue(FailureClass.KILLED, "by-agent", evidence.why_killed, False, True)
    if evidence.slow and evidence.exit_code is None and evidence.error is None:
        is_throttled = any(gpu.is_throttled for gpu in evidence.gpus)
        cause = "gpu-throttled" if is_throttled else "slow"
        return Clue(FailureClass.STRAGGLER, cause, evidence.slow)
    return _ended(evidence)


def _ended(evidence: Evidence) -> Clue:
    """Returns what the exception, the output and the exit code say."""
    lines = clean_lines(evidence.output)
    if evidence.error is not None:
        return _first_cause(clue_of_error(evidence.error), lines)
    by_code = clue_of_exit_code(evidence.exit_code)
    if evidence.exit_code == 0:
        return by_code
    number = signal_of(evidence.exit_code)
    if not number and (raised := _raised(lines)) is not None:
        return _first_cause(raised, lines)
    if by_code.failure_class == FailureClass.KILLED or (
        by_code.failure_class == FailureClass.PROGRAM
    ):
        # Whoever is killed from outside had no time to write why.
        return by_code
    said = find_sign(telling_lines(lines), OUTPUT_SIGNS)
    if number:
        place = find_place(_stacks(lines), is_newest_first=True)
        is_abort = by_code.cause == "abort"
        if said is not None and (is_abort or said.failure_class == FailureClass.CRASH):
            return said._replace(place=place)
        return by_code._replace(place=place)
    if said is None or said.is_echo:
        launched = _of_launcher(lines, said)
        if launched is not None:
            return launched
    if said is None and evidence.exit_code == 2 and _is_usage(lines):
        return Clue(FailureClass.PROGRAM, "usage", lines[-1] or lines[-2], False)
    return said if said is not None else by_code


def _raised(lines: Sequence[str]) -> Clue | None:
    """Returns what the last exception says that is no echo; None without any."""
    clues = [clue_of_error(error) for error in find_tracebacks(lines)]
    if not clues:
        return None
    own = [clue for clue in clues if not clue.is_echo]
    return own[-1] if own else clues[-1]


def _first_cause(raised: Clue, lines: Sequence[str]) -> Clue:
    """Returns what was written before an exception that is only an echo of it."""
    if not raised.is_echo:
        return raised
    said = find_sign(telling_lines(lines), OUTPUT_SIGNS)
    if said is not None and not said.is_echo and said.failure_class in _MAKE_ECHOES:
        return said._replace(place=raised.place)
    return _of_launcher(lines, said) or raised


def _of_launcher(lines: Sequence[str], said: Clue | None) -> Clue | None:
    """Returns what a launcher says of another worker, if that explains what was said."""
    clue = clue_of_launcher(lines)
    if clue is None or (clue.cause == "abort" and said is not None):
        # Libraries abort a process whose collective has failed.
        return None
    stacks = _stacks(lines) if clue.failure_class == FailureClass.CRASH else ""
    return clue._replace(place=clue.place or find_place(stacks, is_newest_first=True))


def _stacks(lines: Sequence[str]) -> str:
    """Returns what `faulthandler` wrote about the thread that failed."""
    for at, line in enumerate(lines):
        if line.startswith(("Current thread", "Thread 0x")) and "most recent" in line:
            return "\n".join(lines[at : at + 100])
    return ""


def _is_usage(lines: Sequence[str]) -> bool:
    return any(line.startswith("usage: ") for line in lines) and any(
        ": error: " in line for line in lines
    )
