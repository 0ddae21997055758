"""What lines that training programs write mean, the strongest first.

Texts are those of PyTorch, NCCL, Gloo, CUDA, glibc and Python. Patterns are in small
letters and are searched for in one line at a time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from drivetrain_health.failures._clue import Sign
from drivetrain_health.failures._failure_class import FailureClass

__all__ = ["OUTPUT_SIGNS", "telling_lines"]

# What a program tells of and survives; NCCL says "INFO" and "WARN" of all that it says.
_PASSING = re.compile(
    r"^.{0,60}?\b(?:\w*warning|info|debug)\b(?!=)|\bretrying\b", re.IGNORECASE
)
# Lines of code in a traceback, which may name any error.
_CODE = re.compile(r"^(?:\[[^\]]{1,60}\]:? ?)? {4}")

if TYPE_CHECKING:
    from collections.abc import Iterable

_GPU, _MEMORY = FailureClass.GPU_HARDWARE, FailureClass.OUT_OF_MEMORY
_LINK, _MEETING = FailureClass.INTERCONNECT, FailureClass.RENDEZVOUS
_STORAGE, _CRASH = FailureClass.STORAGE, FailureClass.CRASH
_PROGRAM = FailureClass.PROGRAM


def _echo(failure_class: FailureClass, cause: str, *patterns: str) -> tuple[Sign, ...]:
    """Returns signs that a failure elsewhere makes as well."""
    return tuple(Sign(p, failure_class, cause, False, True) for p in patterns)


def _at_node(
    failure_class: FailureClass, cause: str, *patterns: str
) -> tuple[Sign, ...]:
    return tuple(Sign(p, failure_class, cause) for p in patterns)


def _nobodys(
    failure_class: FailureClass, cause: str, *patterns: str
) -> tuple[Sign, ...]:
    """Returns signs of a failure that no node is to blame for."""
    return tuple(Sign(p, failure_class, cause, False) for p in patterns)


OUTPUT_SIGNS: tuple[Sign, ...] = (
    *_at_node(
        _GPU,
        "ecc-uncorrected",
        r"uncorrectable ecc error",
    ),
    *_at_node(
        _GPU,
        "gpu-lost",
        r"gpu is lost",
        r"fallen off the bus",
        r"unable to determine the device handle for gpu",
    ),
    *_at_node(_GPU, "hardware-stack", r"cuda error: hardware stack error"),
    *_at_node(
        _LINK,
        "nvlink-error",
        r"nvlink error was detected",
        r"uncorrectable nvlink error",
    ),
    *_nobodys(_PROGRAM, "device-assert", r"device-side assert triggered"),
    *_nobodys(
        _PROGRAM,
        "nccl-invalid-usage",
        r"ncclinvalid(?:usage|argument)",
        r"duplicate gpu detected",
    ),
    *_at_node(
        _MEMORY,
        "out-of-memory-cuda",
        r"(?:cuda|hip) out of memory",
        r"(?:cuda|hip) error: out of memory",
        r"cuda failure(?: \d+)? '?out of memory",
        r"outofmemoryerror",
        r"cublas_status_alloc_failed",
        r"cudnn_status_alloc_failed",
    ),
    *_at_node(
        _MEMORY,
        "shared-memory",
        r"out of shared memory",
        r"insufficient shared memory",
        r"/dev/shm.{0,200}no space left",
        r"unable to (?:write to|open|allocate) (?:file|shared memory).{0,80}/torch_",
    ),
    *_at_node(
        _MEMORY,
        "out-of-memory-host",
        r"defaultcpuallocator: can'?t allocate memory",
        r"std::bad_alloc",
        r"^memoryerror|[^\w.]memoryerror(?::|$)",
        r"cannot allocate memory",
        r"unable to allocate .{1,40} for an array",
        r"detected \d+ oom-kill event",
    ),
    *_at_node(
        _STORAGE,
        "disk-full",
        r"no space left on device",
    ),
    *_nobodys(_STORAGE, "quota-exceeded", r"disk quota exceeded"),
    *_nobodys(_STORAGE, "checkpoint-damaged", r"pytorchstreamreader failed"),
    *_at_node(
        _STORAGE,
        "stale-handle",
        r"stale (?:nfs )?file handle",
    ),
    *_at_node(_STORAGE, "read-only", r"read-only file system"),
    *_at_node(_STORAGE, "mount-lost", r"transport endpoint is not connected: ['\"]"),
    *_at_node(
        _STORAGE,
        "io-error",
        r"\[errno 5\]",
        r"input/output error",
        r"remote i/o error",
        r"inline_container.{0,200}unexpected pos",
    ),
    *_nobodys(
        _STORAGE,
        "remote-store",
        r"botocore\.exceptions",
        r"\b(?:s3|gcs|azure|hdfs|oss)\w{0,40}(?:error|exception)\b",
        r"please reduce your request rate",
        r"google\.api_core\.exceptions",
        r"\b(?:requests|urllib3?|aiohttp)\.(?:\w{0,30}exceptions|error)\b",
        r"\bhuggingface_hub\.errors\b",
    ),
    *_at_node(
        _MEETING,
        "port-in-use",
        r"eaddrinuse",
        r"address already in use",
    ),
    *_nobodys(
        _MEETING,
        "name-resolution",
        r"name or service not known",
        r"temporary failure in name resolution",
        r"no address associated with hostname",
    ),
    *_at_node(
        _CRASH,
        "cuda-illegal-access",
        r"illegal memory access",
        r"cuda error: misaligned address",
        r"cuda error: invalid (?:program counter|address space)",
    ),
    *_at_node(
        _CRASH,
        "cuda-launch-failure",
        r"unspecified launch failure",
        r"cuda error: an illegal instruction",
        r"cu(?:blas|dnn)_status_(?:execution_failed|internal_error)",
        r"the launch timed out and was terminated",
    ),
    *_at_node(
        _GPU,
        "gpu-unavailable",
        r"no cuda-capable device",
        r"cuda driver version is insufficient",
        r"no cuda gpus are available",
        r"cuda driver initialization failed",
        r"cuda unknown error",
        r"cuda error: system not yet initialized",
        r"cuda-capable device\(s\) is/are busy or unavailable",
    ),
    *_nobodys(_PROGRAM, "syntax-error", r"^(?:syntax|indentation|tab)error: "),
    *_nobodys(
        _PROGRAM,
        "collective-mismatch",
        r"detected mismatch between collectives",
        r"collective.{0,80}mismatch(?:ed)? (?:shape|dtype|op)",
        r"expected to mark a variable ready only once",
        r"expected to have finished reduction in the prior iteration",
    ),
    *_at_node(
        _LINK,
        "ib-port-error",
        r"got async (?:fatal )?event\W{1,4}(?:port error|local catastrophic|.{0,30}fatal)",
        r"net/ib.{0,80}async fatal",
    ),
    *_at_node(
        _LINK,
        "ib-driver",
        r"call to ibv_\w+ failed",
        r"ibv_(?:open_device|alloc_pd|create_cq|create_qp|reg_mr)\w* failed",
        r"nccl warn.{0,40}no active (?:ib|infiniband) port",
    ),
    *_at_node(
        _CRASH,
        "segfault",
        r"fatal python error: segmentation fault",
        r"killed by signal: segmentation fault",
        r"segfault encountered",
    ),
    *_at_node(
        _CRASH,
        "bus-error",
        r"fatal python error: bus error",
        r"killed by signal: bus error",
    ),
    *_at_node(
        _CRASH,
        "heap-corruption",
        r"double free or corruption",
        r"(?:free|malloc|realloc|munmap_chunk)\(\): (?:invalid|corrupt|unaligned|unsorted)",
        r"corrupted (?:size vs|double-linked)",
        r"stack smashing detected",
        r"malloc_consolidate\(\)",
    ),
    *_at_node(
        _CRASH,
        "illegal-instruction",
        r"fatal python error: illegal instruction",
        r"killed by signal: illegal instruction",
    ),
    *_at_node(
        FailureClass.KILLED,
        "dataloader-worker-killed",
        r"dataloader worker \(pid.{0,30}is killed by signal: killed",
    ),
    *_at_node(
        _CRASH,
        "dataloader-worker",
        r"dataloader worker \(pid.{0,60}exited unexpectedly",
        r"pin memory thread exited unexpectedly",
        r"dataloader worker \(pid.{0,30}is killed by signal",
    ),
    *_echo(
        _LINK,
        "ib-completion-error",
        r"net/ib.{0,20}got completion (?:from|with)",
    ),
    *_echo(
        _LINK,
        "nccl-timeout",
        r"watchdog caught collective operation timeout",
        r"collective operation timeout",
        r"watchdog got stuck for",
    ),
    *_echo(
        _LINK,
        "nccl-remote-error",
        r"ncclremoteerror",
        r"remote process exited or there was a network error",
        r"connection closed by remote peer",
        r"nccl watchdog thread terminated with exception",
    ),
    *_echo(
        _LINK,
        "nccl-error",
        r"ncclsystemerror",
        r"ncclinternalerror",
        r"ncclunhandledcudaerror",
        r"nccl communicator was aborted",
        r"nccl error",
    ),
    *_echo(
        _LINK,
        "gloo-timeout",
        r"timed out waiting \d+ ?ms for (?:send|recv)",
        r"application timeout caused pair closure",
        r"failed to pass monitoredbarrier",
        r"gloo.{0,200}timed? ?out",
    ),
    *_echo(
        _LINK,
        "connection-reset",
        r"connection closed by peer",
        r"connection reset by peer",
        r"broken pipe",
        r"socket closed",
        r"connection was closed",
    ),
    *_echo(
        _MEETING,
        "store-timeout",
        r"timed out after \d+ seconds waiting for clients",
        r"client socket has (?:timed out|failed to connect)",
        r"wait timeout after \d+ ?ms",
        r"rendezvous(?:timeout|connection|closed|state)error",
        r"\brendezvous\b.{0,100}(?:timed out|timeout|failed|is closed)",
        r"(?:store|socket) ?timeout",
        r"timed out (?:after \d+ ?m?s|waiting|initializing process group)",
        r"timeout waiting for key",
    ),
    *_echo(
        _MEETING,
        "connection-refused",
        r"connection refused",
        r"no route to host",
        r"network is unreachable",
        r"connection timed out",
    ),
)
"""What each line means."""


def telling_lines(lines: Iterable[str]) -> list[str]:
    """Returns the lines that may say why a process has ended.

    Args:
        lines: All that it wrote.

    Example:
        >>> telling_lines(["WARNING: Connection reset, retrying", "Bus error"])
        ['Bus error']
    """
    return [line for line in lines if not (_PASSING.search(line) or _CODE.match(line))]
