"""Why a worker has failed: all evidence, weighed.

What the hardware and the kernel say counts before what the program wrote, and that before
how the process ended. Two rules keep the innocent out of it. What hardware says only
explains a failure that such hardware makes: a link that went down does not make a wrong
key in a dictionary. And what any rank says when another one is gone, a connection that
was closed, is marked as an echo, which no node is blamed for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from drivetrain_health.failures import _clue
from drivetrain_health.failures._clue import Clue, clean_lines, find_sign, shortened
from drivetrain_health.failures._counters import clues_of_gpus, clues_of_network
from drivetrain_health.failures._diagnosis import Diagnosis
from drivetrain_health.failures._evidence import ErrorRecord
from drivetrain_health.failures._exceptions import clue_of_error
from drivetrain_health.failures._exit_codes import clue_of_exit_code, signal_of
from drivetrain_health.failures._failure_class import FailureClass
from drivetrain_health.failures._health import Health
from drivetrain_health.failures._launchers import clue_of_launcher
from drivetrain_health.failures._output_signs import line_of_progress, telling_lines
from drivetrain_health.failures._tracebacks import find_place, find_tracebacks
from drivetrain_health.failures._xids import clues_of_xid_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_health.failures._evidence import Evidence

_RULES = _clue.RULES
_CLASSES = _RULES["classes"]
_MOST_ERRORS = 50
_DAMAGED = {"data-damaged", "checkpoint-damaged"}
# The end of a traceback of which no more is there.
_LOOSE = re.compile(_RULES["loose"]["error"])
_LOCAL = re.compile(_RULES["local"]["paths"])
_NOT_EXPLAINED = {"no-failure", "asked", "by-agent"}


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
    if (certain := find_sign(kernel, "certain")) is not None:
        return certain
    if evidence.probe:
        return Clue(FailureClass.CORRUPTION, "wrong-numbers", evidence.probe)
    shown = _shown(evidence)
    said = f"the kernel has killed {evidence.oom_kills} processes of its group"
    by_group = Clue(FailureClass.OUT_OF_MEMORY, "out-of-memory-host", said)
    explaining = [
        find_sign(kernel, "out_of_memory"),
        by_group if evidence.oom_kills > 0 else None,
        *(one for one in hardware if one.failure_class == FailureClass.INTERCONNECT),
        find_sign(kernel, "explaining"),
        *clues_of_network(evidence.network),
        *(one for one in hardware if one.failure_class == FailureClass.CRASH),
    ]
    for clue in filter(None, explaining):
        if _explains(clue, shown):
            return clue._replace(place=shown.place)
    return shown


def _explains(clue: Clue, shown: Clue) -> bool:
    """Returns whether hardware that fails like this makes a worker end like that."""
    if shown.cause in _NOT_EXPLAINED or (clue.is_echo and not shown.is_echo):
        return False
    alike = {clue.failure_class, "unknown"}
    if shown.failure_class in _RULES["explains"].get(clue.failure_class, alike):
        return True
    is_link_of_host = clue.cause.startswith(("link-", "nic-", "retransmits"))
    table = _RULES["explains_causes"]
    causes = table.get(clue.cause, table.get(clue.failure_class, ()))
    is_local = clue.failure_class == "storage" and _LOCAL.search(shown.reason)
    return shown.cause in causes and not (is_link_of_host or is_local)


def _shown(evidence: Evidence) -> Clue:
    """Returns what the worker itself, and those who watch it, say."""
    if evidence.is_asked:
        reason = evidence.why_killed or "it was asked to end"
        return Clue(FailureClass.KILLED, "asked", reason, False, True)
    if evidence.is_node_lost:
        reason = "nothing is heard of its node"
        return Clue(FailureClass.NODE_LOST, "node-silent", reason)
    if evidence.health != Health.WELL:
        name = evidence.health.value
        reason = evidence.why_killed or f"{name}, silent for {evidence.silent_s:.1f} s"
        reason = f"{reason}, {evidence.phase}" if evidence.phase else reason
        place = _stack_place(clean_lines(evidence.output))
        return Clue(FailureClass.HANG, name, reason, place=place)
    if evidence.why_killed:
        return Clue(FailureClass.KILLED, "by-agent", evidence.why_killed, False, True)
    if evidence.slow and evidence.exit_code is None and evidence.error is None:
        is_throttled = any(gpu.is_throttled for gpu in evidence.gpus)
        cause = "gpu-throttled" if is_throttled else "slow"
        return Clue(FailureClass.STRAGGLER, cause, evidence.slow)
    return _ended(evidence)


def _ended(evidence: Evidence) -> Clue:
    """Returns what the exception, the output and the exit code say."""
    by_code = clue_of_exit_code(evidence.exit_code)
    if evidence.exit_code == 0 and evidence.error is None:
        return by_code
    lines = clean_lines(evidence.output)
    raised, said = _read(evidence, lines)
    own, told = _own(raised), _own(said)
    if evidence.error is None and signal_of(evidence.exit_code):
        return _signalled(by_code, own, said, lines)
    if own:
        return own
    # What a service refuses does not cut off ranks from each other.
    if told and not (raised and told.failure_class in _CLASSES["apart"]):
        return told._replace(place=raised.place if raised else "")
    if by_code.failure_class == FailureClass.PROGRAM:
        return by_code
    launched = _of_launcher(lines, said or raised)
    refused = [line for line in lines if ": error: " in line]
    if raised is None and refused and any("usage: " in line for line in lines):
        return Clue(FailureClass.PROGRAM, "usage", refused[-1], False)
    noted = find_sign(telling_lines(lines, warnings=True), "reported")
    return _own(launched) or raised or said or launched or noted or by_code


def _own(clue: Clue | None) -> Clue | None:
    return None if clue is None or clue.is_echo else clue


def _read(evidence: Evidence, lines: Sequence[str]) -> tuple[Clue | None, Clue | None]:
    """Returns what the first exception says that ended a rank, and what other lines say."""
    since = line_of_progress(lines)
    found = find_tracebacks(lines)
    errors = [one for one in found if one.error.type and one.at >= since][:_MOST_ERRORS]
    clues = [clue_of_error(one.error) for one in errors]
    at = errors[0].at if errors else len(lines)
    if evidence.error is not None:
        clues, at = [clue_of_error(evidence.error)], len(lines)
    raised = _first_of(clues)
    used = frozenset[int]().union(*(one.lines for one in found))
    rest = [n for n in range(since, len(lines)) if n not in used]
    said = _said([lines[n] for n in rest])
    if _own(raised) is None and _own(said) is None:
        loose = filter(
            None, map(_LOOSE.search, telling_lines([lines[n] for n in rest]))
        )
        records = [ErrorRecord(*one.groups("")) for one in loose][:_MOST_ERRORS]
        clues = list(map(clue_of_error, records))
        told = _first_of([one for one in clues if one.failure_class != "unknown"])
        return _own(told) or raised or told, said
    if _own(raised) is None or raised is None:
        return raised, said
    # What was first counts; and it takes proof to stop a job.
    before = _own(_said([lines[n] for n in rest if n < at]))
    if before and before.failure_class in _CLASSES["of_machines"]:
        return before._replace(place=raised.place), said
    if raised.failure_class == FailureClass.UNKNOWN and (told := _own(said)):
        return told._replace(place=raised.place), said
    return raised, said


def _said(lines: Sequence[str]) -> Clue | None:
    """Returns what lines say that are no exception; warnings only where nothing else does."""
    said = _told(telling_lines(lines))
    weak = None if _own(said) else _told(telling_lines(lines, warnings=True))
    if weak is None or weak.failure_class == FailureClass.PROGRAM:
        return said
    return said if weak.is_echo and weak.failure_class != FailureClass.HANG else weak


def _told(lines: Sequence[str]) -> Clue | None:
    # A line about data, without an exception, is no proof that would stop a job.
    return find_sign(lines, "sign", *_DAMAGED)


def _first_of(clues: Sequence[Clue]) -> Clue | None:
    """Returns what the first exception says that is no echo, of those that are known."""
    own = [clue for clue in clues if not clue.is_echo]
    known = [clue for clue in own if clue.failure_class != FailureClass.UNKNOWN]
    # What is not known may be what has made the error of the program after it.
    if known and (known[0] is own[0] or known[0].failure_class != FailureClass.PROGRAM):
        return known[0]
    return next(iter(own or clues), None)


def _signalled(
    by_code: Clue, own: Clue | None, said: Clue | None, lines: Sequence[str]
) -> Clue:
    """Returns why a process was ended by a signal."""
    kind = None if said is None or said.is_echo else said.failure_class
    own_kind = None if own is None else own.failure_class
    if by_code.failure_class == FailureClass.KILLED:
        # Whoever is killed had no time to write why, but others have; and a launcher
        # ends with SIGTERM those that are left when one has failed.
        is_known = by_code.is_echo and own_kind != FailureClass.UNKNOWN
        if own and (is_known or own_kind in _CLASSES["of_killers"]):
            return own
        is_hang = said is not None and said.failure_class == FailureClass.HANG
        is_ended = by_code.is_echo and kind not in {None, *_CLASSES["apart"]}
        is_told = is_hang or is_ended or kind in _CLASSES["of_killers"]
        return said if said and is_told else by_code
    is_abort = by_code.cause == "abort"
    if own and own_kind in _CLASSES["of_aborts" if is_abort else "of_crashes"]:
        return own
    is_told = is_abort or kind in _CLASSES["of_crashes"]
    return (said if said and is_told else by_code)._replace(place=_stack_place(lines))


def _of_launcher(lines: Sequence[str], said: Clue | None) -> Clue | None:
    """Returns what a launcher says of another worker, if that explains what was said."""
    clue = clue_of_launcher(lines)
    killed = "sigkill" if said and said.failure_class == FailureClass.HANG else ""
    if clue is None or (said and clue.cause in ("abort", killed)):
        # Libraries abort a process whose collective has failed; a watchdog kills it.
        return None
    return clue._replace(place=_stack_place(lines))


def _stack_place(lines: Sequence[str]) -> str:
    """Returns where `faulthandler` says that the thread was that failed."""
    for at, line in enumerate(lines):
        if line.startswith(("Current thread", "Thread 0x")) and "most recent" in line:
            return find_place("\n".join(lines[at : at + 100]), is_newest_first=True)
    return ""
