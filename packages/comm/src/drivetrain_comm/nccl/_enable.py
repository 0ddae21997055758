"""Makes NCCL use a table, after all ranks have agreed on it."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import platform
import sys
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from drivetrain_comm.nccl._agreement import Answer, agree
from drivetrain_comm.nccl._errors import NcclTableError
from drivetrain_comm.nccl._library import HostedTuner, tuner_library
from drivetrain_comm.nccl._table import Table
from drivetrain_comm.nccl._text import format_table, load_table
from drivetrain_core import DistributedError, DrivetrainError, MissingLibraryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed.distributed_c10d import Store

logger = logging.getLogger(__name__)

_PLUGIN = "NCCL_TUNER_PLUGIN"
_TABLE = "DRIVETRAIN_COMM_NCCL_TABLE"
_HASH = "DRIVETRAIN_COMM_NCCL_TABLE_HASH"


@dataclass(slots=True)
class _Enabled:
    """What this process has changed.

    Args:
        before: The variables as they were.
        fd: The agreed table, in memory; -1 for none.
        calls: Numbers the calls, alike on all ranks.
    """

    before: dict[str, str | None] = field(default_factory=dict)
    fd: int = -1
    calls: Iterator[int] = field(default_factory=itertools.count)


_enabled = _Enabled()
_lock = threading.Lock()


def environment_of(table: str | os.PathLike[str]) -> dict[str, str]:
    """Returns the variables for a launcher that starts processes with a table.

    Nothing compares the tables of the ranks then: see `enable_tuner`, which does.

    Args:
        table: The file of the table.

    Raises:
        NcclTableError: It cannot be read, or is not a valid table.
        MissingLibraryError: The package was installed without the plug-in.
    """
    found = load_table(table)
    return {
        _PLUGIN: str(tuner_library()),
        _TABLE: os.path.abspath(table),  # noqa: PTH100 - a link is to stay one
        _HASH: found.hash,
    }


def enable_tuner(
    table: str | os.PathLike[str] | Table,
    *,
    store: Store | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    timeout: timedelta = timedelta(minutes=5),
) -> Table:
    """Makes NCCL follow a table, on all ranks or on none.

    Call it on all ranks, before the first NCCL communicator of the process: NCCL looks
    for tuners once. Ranks compare their rules and whether the plug-in takes them; what
    was agreed on is kept in memory, so that a file that changes later changes nothing.

    When it raises, end the process: a rank that was still waiting when others had agreed
    must not go on beside them, since NCCL would wait for ever.

    Args:
        table: A table, or its file.
        store: Where ranks meet. By default the one of the process group that exists; a
            job of several ranks without either is refused.
        rank: This one; by default the process group's, or RANK.
        world_size: The number of ranks; likewise, or WORLD_SIZE.
        timeout: How long to wait for the other ranks.

    Returns:
        The table.

    Raises:
        DistributedError: Tables differ between ranks, or a rank cannot use its own, or
            has not come in time; the message names the ranks.
        NcclTableError: The table of the only rank is not valid.
        MissingLibraryError: The package of the only rank lacks the plug-in.

    Example:
        >>> from drivetrain_comm.nccl import Rule
        >>> rule = Rule(collective="all_reduce", algorithm="ring", protocol="ll",
        ...     end_bytes=32768)
        >>> len(enable_tuner(Table(rules=(rule,))).rules)
        1
        >>> disable_tuner()
    """
    with _lock:
        store, rank, world_size = _meeting_place(store, rank, world_size)
        call = next(_enabled.calls)
        found, refusal = None, None
        try:
            try:
                found = _prepare(table)
            except (DrivetrainError, OSError) as error:
                if store is None:
                    raise
                refusal = str(error)
            if store is not None:
                from torch.distributed.distributed_c10d import PrefixStore

                hash_ = found.hash if found else ""
                mine = Answer(host=platform.node(), hash=hash_, refusal=refusal)
                place = PrefixStore(f"drivetrain-comm/nccl-tuner/{call}", store)
                agree(place, rank, world_size, mine, timeout)
            assert found is not None, "a rank without a table must have been refused"
        except BaseException:
            _restore()
            raise
    logger.info(
        "NCCL follows a table of %d rules, hash %s, on %d ranks",
        len(found.rules),
        found.hash,
        world_size,
    )
    return found


def disable_tuner() -> None:
    """Undoes `enable_tuner`, for communicators of a process that has none yet."""
    with _lock:
        _restore()


def _meeting_place(
    store: Store | None, rank: int | None, world_size: int | None
) -> tuple[Store | None, int, int]:
    """Returns where ranks meet, None for a rank alone, and which rank this is."""
    dist = sys.modules.get("torch.distributed")
    if store is None and dist is not None and dist.is_initialized():
        from torch.distributed.distributed_c10d import _get_default_store

        store = _get_default_store()
        rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank is None:
        rank = int(os.environ.get("RANK", "0"))
    if world_size is None:
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if not 0 <= rank < world_size:
        message = (
            f"rank must be 0 to {world_size - 1}, one less than the world, got {rank}"
        )
        raise DistributedError(message)
    if store is None and world_size > 1:
        message = (
            f"{world_size} ranks must compare their tables: give a store, or call "
            "enable_tuner after init_process_group and before the first collective"
        )
        raise DistributedError(message)
    return store, rank, world_size


def _prepare(table: str | os.PathLike[str] | Table) -> Table:
    """Sets the variables, and sees whether the plug-in takes the table."""
    found = table if isinstance(table, Table) else load_table(table)
    plugin = str(tuner_library())
    other = os.environ.get(_PLUGIN, "")
    if other not in {"", plugin}:
        message = f"{_PLUGIN} is set to {other}, another tuner: unset it"
        raise DistributedError(message)
    if _has_communicators():
        message = (
            "NCCL communicators exist already, and NCCL looks for tuners once: call "
            "enable_tuner before the first collective on a GPU"
        )
        raise DistributedError(message)
    fd = _seal(format_table(found))
    # The number of the process lets its children find it, too.
    path = f"/proc/{os.getpid()}/fd/{fd}"
    wanted = {_PLUGIN: plugin, _TABLE: path, _HASH: found.hash}
    _restore()
    _enabled.before = {name: os.environ.get(name) for name in wanted}
    _enabled.fd = fd
    os.environ.update(wanted)
    with HostedTuner(ranks=1, nodes=1, library=plugin) as tuner:
        if not tuner.is_tuned:
            message = "; ".join(one.text for one in tuner.messages)
            raise NcclTableError(message)
    return found


def _seal(text: str) -> int:
    """Returns a file in memory that nothing can change."""
    if not hasattr(os, "memfd_create"):
        message = f"NCCL and its tuners need Linux, this is {platform.system()}"
        raise MissingLibraryError(message)
    fd = os.memfd_create("drivetrain-nccl-table", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(fd, "wb", closefd=False) as file:
        file.write(text.encode())
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_WRITE)
    return fd


def _restore() -> None:
    for name, value in _enabled.before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _enabled.before = {}
    if _enabled.fd >= 0:
        os.close(_enabled.fd)
        _enabled.fd = -1


def _has_communicators() -> bool:
    """Whether a process group of torch has made an NCCL communicator."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_initialized():
        return False
    import torch
    from torch.distributed.distributed_c10d import _world

    for group in _world.pg_map:
        try:
            backend = group._get_backend(torch.device("cuda"))
        except RuntimeError:
            continue  # it has no backend for GPUs
        if getattr(backend, "_is_initialized", bool)():
            return True
    return False
