"""Settings of tuned process groups: arguments first, then environment variables."""

from __future__ import annotations

import difflib
import logging
import os
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from drivetrain_comm.selection._choice import ALGORITHMS, MOST_STREAMS, STOCK
from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

COMPRESSIONS = ("none", "fp16", "bf16", "powersgd")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What is fixed; equal on all ranks.

    Args:
        algorithm: Of all-reduces; measured by default.
        streams: Connections to each peer on another host; measured by default.
        bucket_mb: How many MiB of gradients are reduced at once; measured by default.
        compression: Of gradients between hosts and within them: `none`, `fp16`, `bf16`
            or `powersgd`. All but `none` lose precision.
        powersgd_rank: Of the matrices that stand for gradients under `powersgd`.
        powersgd_start_after: How many steps go uncompressed before.
        socket_buffer_kb: Of each socket, in KiB; by default the kernel's own choice.
        schedule: A file of `drivetrain comm compile`, whose all-reduce groups of as many
            ranks use; others choose as if there were none.
        tune: Whether to measure at all; otherwise a model of the network decides.
        cache: Whether to keep what was found for the next run on the same hosts, in
            DRIVETRAIN_COMM_CACHE or the user's cache folder.

    Raises:
        DistributedError: A value is out of range.

    Example:
        >>> Settings(bucket_mb=8).bucket_mb
        8
    """

    algorithm: str | None = None
    streams: int | None = None
    bucket_mb: float | None = None
    compression: str = "none"
    powersgd_rank: int = 4
    powersgd_start_after: int = 10
    socket_buffer_kb: int = 0
    schedule: str | None = None
    tune: bool = True
    cache: bool = True

    def __post_init__(self) -> None:
        """Checks the values."""
        for name, kinds in _KINDS.items():
            value = getattr(self, name)
            if value is not None and type(value) not in kinds:
                _refuse(name, value, _WANTED[kinds[-1]])
        algorithms, compressions = map(", ".join, (ALGORITHMS, COMPRESSIONS))
        others = (self.streams, self.bucket_mb, self.compression)
        known = self.algorithm in (None, *ALGORITHMS)
        one_alone = None in (self.schedule, self.algorithm)
        streams = (None, *range(1, MOST_STREAMS + 1))
        bucket = 1 if self.bucket_mb is None else self.bucket_mb
        for name, fits, wanted in (
            ("algorithm", known, f"one of {algorithms}"),
            (
                "algorithm",
                self.algorithm != STOCK or others == (None, None, "none"),
                "left out where streams, bucket_mb or compression are given",
            ),
            ("schedule", one_alone, "left out where algorithm is given"),
            ("compression", self.compression in COMPRESSIONS, f"one of {compressions}"),
            ("streams", self.streams in streams, f"1 to {MOST_STREAMS}"),
            ("bucket_mb", 0 < bucket <= 4096, "more than 0, at most 4096"),
            ("powersgd_rank", self.powersgd_rank >= 1, "1 or more"),
            ("powersgd_start_after", self.powersgd_start_after >= 0, "0 or more"),
            ("socket_buffer_kb", 0 <= self.socket_buffer_kb <= 1 << 20, "0 to 1048576"),
            ("tune", isinstance(self.tune, bool), "True or False"),
            ("cache", isinstance(self.cache, bool), "True or False"),
        ):
            if not fits:
                _refuse(name, getattr(self, name), wanted)

    def __str__(self) -> str:
        """What differs from the default: `bucket_mb=8`."""
        pairs = [(f.name, getattr(self, f.name), f.default) for f in fields(self)]
        return ", ".join(f"{n}={v}" for n, v, usual in pairs if v != usual) or "default"


def settings_from(
    environment: Mapping[str, str] | None = None, **given: Any
) -> Settings:
    """Returns the settings that are given, and the environment's for the others.

    Args:
        environment: By default this process's. DRIVETRAIN_COMM_ALGORITHM, _STREAMS,
            _BUCKET_MB, _COMPRESSION, _POWERSGD_RANK, _POWERSGD_START_AFTER,
            _SOCKET_BUFFER_KB, _SCHEDULE and _TUNE (0 or 1) count.
        **given: Fields of `Settings`; None means that the environment decides.

    Raises:
        DistributedError: A name is unknown or a value is out of range.

    Example:
        >>> str(settings_from({"DRIVETRAIN_COMM_STREAMS": "4"}, bucket_mb=2))
        'streams=4, bucket_mb=2'
    """
    environment = os.environ if environment is None else environment
    known = {field.name for field in fields(Settings)}
    for name in given:
        if name not in known:
            _refuse("a setting", name, f"one of {', '.join(sorted(known))}")
    for variable in sorted(environment):
        name = variable.removeprefix(_PREFIX)
        if name != variable and name.lower() not in {*_CONVERT, *_OTHERS}:
            near = ", ".join(difflib.get_close_matches(name.lower(), _CONVERT, 1))
            hint = f": {_PREFIX}{near.upper()} is" if near else ""
            logger.warning("%s is no variable of drivetrain-comm%s", variable, hint)
    found = {name: value for name, value in given.items() if value is not None}
    for name, convert in _CONVERT.items():
        variable = f"{_PREFIX}{name.upper()}"
        text = environment.get(variable, "")
        if name in found or not text:
            continue
        try:
            found[name] = convert(text)
        except (KeyError, ValueError):
            _refuse(variable, text, _WANTED[convert])
        # Alone, so that what is wrong is known to stand in the environment.
        try:
            Settings(**{name: found[name]})
        except DistributedError as error:
            message = f"in the variable {variable}: {error}"
            raise DistributedError(message) from None
    return replace(Settings(), **found)


def _switch(text: str) -> bool:
    return {"0": False, "1": True}[text]


_CONVERT: dict[str, Any] = {
    "algorithm": str,
    "streams": int,
    "bucket_mb": float,
    "compression": str,
    "powersgd_rank": int,
    "powersgd_start_after": int,
    "socket_buffer_kb": int,
    "schedule": str,
    "tune": _switch,
}
_WANTED: dict[Any, str] = {int: "an integer", float: "a number", _switch: "0 or 1"}
# Exactly: True is no number here.
_KINDS: dict[str, tuple[type, ...]] = {
    "streams": (int,),
    "bucket_mb": (int, float),
    "powersgd_rank": (int,),
    "powersgd_start_after": (int,),
    "socket_buffer_kb": (int,),
}
_PREFIX = "DRIVETRAIN_COMM_"
# Read elsewhere.
_OTHERS = ("cache", "host", "interface", "nccl_table", "nccl_table_hash")


def _refuse(name: str, value: object, wanted: str) -> None:
    message = f"{name} must be {wanted}, got {value!r}"
    raise DistributedError(message)
