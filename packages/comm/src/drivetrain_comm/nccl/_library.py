"""The plug-in that NCCL loads, and a communicator as NCCL would drive one."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from drivetrain_comm.nccl._rule import ALGORITHMS, COLLECTIVES, PROTOCOLS
from drivetrain_core import MissingLibraryError
from drivetrain_core.native_library import find_library

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

_FILE = "libnccl-tuner-drivetrain.so"

VERSIONS = (4, 5, 6)
"""The versions of NCCL's tuner interface that the plug-in has."""

IGNORED = -1.0
"""What NCCL's cost tables hold where it cannot do something."""

_LEVELS = {2: "warn", 3: "info"}

# NCCL's log function takes a format and anything after it. The plug-in always gives
# "%s" and one text, for which the conventions of calls are those of plain arguments.
_Log = ctypes.CFUNCTYPE(
    None,
    ctypes.c_int,
    ctypes.c_ulong,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_char_p,
)
_InitV4 = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_size_t,
    ctypes.c_size_t,
    _Log,
    ctypes.POINTER(ctypes.c_void_p),
)
_Init = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_uint64,
    ctypes.c_size_t,
    ctypes.c_size_t,
    _Log,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
_GetCollInfo = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_int),
)
_Finalize = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


def _fields(init: Any, *more: tuple[str, Any]) -> list[tuple[str, Any]]:
    return [
        ("name", ctypes.c_char_p),
        ("init", init),
        ("get_coll_info", _GetCollInfo),
        ("finalize", _Finalize),
        *more,
    ]


class _TunerV4(ctypes.Structure):
    _fields_ = _fields(_InitV4)


class _TunerV5(ctypes.Structure):
    _fields_ = _fields(_Init)


class _TunerV6(ctypes.Structure):
    _fields_ = _fields(_Init, ("get_chunk_size", ctypes.c_void_p))


_STRUCTS: dict[int, Any] = {4: _TunerV4, 5: _TunerV5, 6: _TunerV6}


def tuner_library() -> Path:
    """Returns the file of the plug-in, for NCCL_TUNER_PLUGIN.

    Raises:
        MissingLibraryError: The package was installed without it.

    Example:
        >>> tuner_library().name
        'libnccl-tuner-drivetrain.so'
    """
    file = find_library("drivetrain_comm", _FILE)
    if file is None:
        message = (
            f"there is no {_FILE}: the package was installed without a C++ compiler. "
            "Install one, then pip install --force-reinstall --no-binary "
            "drivetrain-comm drivetrain-comm"
        )
        raise MissingLibraryError(message)
    return file


@dataclass(frozen=True, slots=True)
class Message:
    """What the plug-in said through NCCL's log.

    Args:
        level: `warn` or `info`.
        text: The message.
    """

    level: str
    text: str


class HostedTuner:
    """A communicator's tuner, driven as NCCL drives it, without NCCL.

    Args:
        version: Of the tuner interface; one of `VERSIONS`.
        ranks: Of the communicator.
        nodes: Of the communicator.
        library: The plug-in; by default the one of this package.

    Attributes:
        messages: What it said when it started.
        is_tuned: Whether it took a table.

    Raises:
        OSError: The library does not load.
        AttributeError: It does not have that version of the interface.

    Example:
        >>> with HostedTuner(ranks=8, nodes=1) as tuner:
        ...     tuner.is_tuned, tuner.messages[0].level
        (False, 'warn')
    """

    def __init__(
        self,
        *,
        version: int = 5,
        ranks: int,
        nodes: int,
        library: str | os.PathLike[str] | None = None,
    ) -> None:
        """Starts it, which reads the table that the environment names."""
        self.messages: list[Message] = []
        self._library = ctypes.CDLL(str(library or tuner_library()))
        self.tuner = _STRUCTS[version].in_dll(
            self._library, f"ncclTunerPlugin_v{version}"
        )
        self._log = _Log(self._take)
        self._context = ctypes.c_void_p()
        at = ctypes.byref(self._context)
        if version == 4:
            status = self.tuner.init(ranks, nodes, self._log, at)
        else:
            status = self.tuner.init(at, 1, ranks, nodes, self._log, None, None)
        assert status == 0, "a tuner must not fail"

    @property
    def is_tuned(self) -> bool:
        """Whether it took a table."""
        return bool(self._context)

    def choose(
        self,
        collective: str,
        size_bytes: int,
        costs: Sequence[Sequence[float]],
        *,
        num_pipe_ops: int = 1,
        reg_buff: bool = False,
        channels: int = 0,
    ) -> tuple[list[list[float]], int]:
        """Asks about one collective.

        Args:
            collective: One of `COLLECTIVES`.
            size_bytes: Of the whole.
            costs: What NCCL predicts, in microseconds: a row for each algorithm, in it
                a number for each protocol, `IGNORED` for what it cannot do.
            num_pipe_ops: How many collectives are merged into this one.
            reg_buff: Whether the buffers are registered.
            channels: What NCCL hands over, always 0.

        Returns:
            The costs and the channels afterwards.
        """
        num_rows, num_columns = len(costs), len(costs[0])
        flat = (ctypes.c_float * (num_rows * num_columns))()
        flat[:] = [cost for row in costs for cost in row]
        found = ctypes.c_int(channels)
        status = self.tuner.get_coll_info(
            self._context,
            COLLECTIVES.index(collective),
            size_bytes,
            num_pipe_ops,
            ctypes.addressof(flat),
            num_rows,
            num_columns,
            int(reg_buff),
            ctypes.byref(found),
        )
        assert status == 0, "a tuner must not fail"
        starts = range(0, len(flat), num_columns)
        rows = [list(flat[at : at + num_columns]) for at in starts]
        return rows, found.value

    def chosen(
        self, collective: str, size_bytes: int, **call: Any
    ) -> tuple[str, str] | None:
        """Returns the algorithm and the protocol, or None where NCCL decides.

        Args:
            collective: One of `COLLECTIVES`.
            size_bytes: Of the whole.
            **call: More arguments of `choose`.
        """
        costs = [[5.0] * len(PROTOCOLS) for _ in ALGORITHMS]
        rows, _ = self.choose(collective, size_bytes, costs, **call)
        forced = [
            (algorithm, protocol)
            for algorithm, row in zip(ALGORITHMS, rows, strict=True)
            for protocol, cost in zip(PROTOCOLS, row, strict=True)
            if cost == 0
        ]
        assert len(forced) <= 1, "a tuner must force one choice at most"
        return forced[0] if forced else None

    def close(self) -> None:
        """Ends it; it may be called again."""
        if self.is_tuned:
            self.tuner.finalize(self._context)
            self._context = ctypes.c_void_p()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it."""
        self.close()

    def _take(
        self,
        level: int,
        _parts: int,
        _file: bytes,
        _line: int,
        _form: bytes,
        text: bytes,
    ) -> None:
        self.messages.append(
            Message(_LEVELS[level], text.decode(errors="surrogateescape"))
        )
