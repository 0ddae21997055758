"""The plan: which optimizations, with which configuration, and why.

A plan is plain data that a person reads and a machine applies again. Its file is
YAML, versioned by the key `drivetrain_plan`, and never holds code.
"""

from __future__ import annotations

import errno
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_core._choice import Choice
from drivetrain_core._errors import Code, PlanFormatError, reason_of
from drivetrain_core._yaml import MOST_TEXT, dump_yaml, load_yaml
from drivetrain_core.services._whole_file import write_whole

if TYPE_CHECKING:
    import os

PLAN_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """Why a slot got its answer.

    Args:
        slot: The question.
        chose: The answer, `off` for the program as the user wrote it.
        because: The measured or declared fact.
    """

    slot: str
    chose: str
    because: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """A plan or choice that was turned down.

    Args:
        plan: What was turned down, as `Choice` writes it.
        code: The class of the reason.
        because: The reason.
        fix: What would make it usable; empty when nothing would.
    """

    plan: str
    code: str
    because: str
    fix: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """An ordered list of choices, with what was measured and why they were made.

    Args:
        choices: The optimizations with their configurations, in the order of apply.
        made: Versions, device, world size, seconds and trials of its making.
        fingerprint: Hashes of the model and the batch that it was made for. The
            data-parallel size is no part of it.
        measured: Speed, speed-up and memory.
        guard: The numerical differences that were seen.
        why: A reason for each slot.
        rejected: What was turned down.

    Example:
        >>> plan = Plan(choices=(Choice("compile", {"scope": "block"}),))
        >>> print(plan.to_yaml())
        drivetrain_plan: 1
        strategy:
        - compile:
            scope: block
        <BLANKLINE>
        >>> Plan.from_yaml(plan.to_yaml()) == plan
        True
    """

    choices: tuple[Choice, ...] = ()
    made: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)
    guard: Mapping[str, Any] = field(default_factory=dict)
    why: tuple[Reason, ...] = ()
    rejected: tuple[Rejected, ...] = ()

    def __str__(self) -> str:
        """Returns the choices on one line."""
        return describe(self.choices)

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as plain data; empty parts are left out."""
        strategy: list[Any] = [
            {c.name: dict(c.config)} if c.config else c.name for c in self.choices
        ]
        parts: dict[str, Any] = {
            "drivetrain_plan": PLAN_VERSION,
            "made": dict(self.made),
            "fingerprint": dict(self.fingerprint),
            "strategy": strategy,
            "measured": dict(self.measured),
            "guard": dict(self.guard),
            "why": [asdict(reason) for reason in self.why],
            "rejected": [
                {key: text for key, text in asdict(r).items() if text or key != "fix"}
                for r in self.rejected
            ],
        }
        always = ("drivetrain_plan", "strategy")
        return {key: part for key, part in parts.items() if part or key in always}

    def to_yaml(self) -> str:
        """Returns the plan as YAML."""
        return dump_yaml(self.to_dict())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the plan, whole or not at all, and returns its path.

        Raises:
            PlanFormatError: The place cannot be written to.
        """
        target = Path(path)
        try:
            write_whole(target, self.to_yaml())
        except OSError as error:
            raise _unwritable(target, error, "choose another path") from error
        return target

    def may_replace(self, path: str | os.PathLike[str]) -> bool:
        """Returns whether this plan of a search may be written over what a file holds.

        What was measured stays where another search ended before it measured anything.

        Args:
            path: The file, which need not be there.
        """
        if self.measured:
            return True
        try:
            return not Plan.load(path).measured
        except PlanFormatError:
            return True

    @staticmethod
    def require_writable(path: str | os.PathLike[str]) -> None:
        """Raises now what `save` would raise later.

        Raises:
            PlanFormatError: The place cannot be written to.
        """
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_dir():
                raise IsADirectoryError(errno.EISDIR, "it is a directory", str(target))
            if target.exists() and not _holds_plan(target):
                raise FileExistsError(errno.EEXIST, "it is there, and is no plan")
            with tempfile.TemporaryFile(dir=target.parent):
                pass
        except OSError as error:
            fix = "choose another path with plan_out=, or with --plan of a command"
            raise _unwritable(target, error, fix) from error

    @classmethod
    def from_yaml(cls, text: str, source: str = "plan") -> Plan:
        """Returns the plan that a YAML text holds.

        Args:
            text: The YAML.
            source: What to call it in errors, such as its path.

        Raises:
            PlanFormatError: It is not YAML, has a doubled key, is of another
                version, or lacks a strategy.
        """
        return cls.from_dict(load_yaml(text, source, PlanFormatError), source)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Reads a plan file.

        Raises:
            PlanFormatError: It is missing, unreadable, or not a plan.
        """
        try:
            with Path(path).open(encoding="utf-8") as file:
                text = file.read(MOST_TEXT + 1)
        except (OSError, UnicodeDecodeError) as error:
            because = f"the plan cannot be read: {reason_of(error)}"
            raise _broken(str(path), because) from error
        return cls.from_yaml(text, str(path))

    @classmethod
    def from_dict(cls, data: object, source: str = "plan") -> Plan:
        """Returns the plan that plain data describes.

        Raises:
            PlanFormatError: The data is not a plan of this version.
        """
        if not isinstance(data, Mapping):
            raise _broken(source, f"it must be a mapping, got {type(data).__name__}")
        version = data.get("drivetrain_plan")
        if version != PLAN_VERSION or isinstance(version, bool):
            raise PlanFormatError(
                Code.VERSION,
                source,
                because=f"key 'drivetrain_plan' must be {PLAN_VERSION}, got {version!r}",
                fix="search again, or use the version of drivetrain-core that wrote it",
            )
        known = ["drivetrain_plan", "strategy", *(f.name for f in fields(cls)[1:])]
        unknown = [str(key) for key in data if key not in known]
        if unknown:
            raise _broken(source, f"unknown key {unknown[0]!r}; known: {known}")
        if not isinstance(data.get("strategy"), list):
            raise _broken(source, "key 'strategy' must be a list of optimizations")
        return cls(
            choices=tuple(_choice(item, source) for item in data["strategy"]),
            made=_mapping(data, "made", source),
            fingerprint=_mapping(data, "fingerprint", source),
            measured=_mapping(data, "measured", source),
            guard=_mapping(data, "guard", source),
            why=tuple(
                Reason(**_texts(r, ("slot", "chose", "because"), (), source))
                for r in _list(data, "why", source)
            ),
            rejected=tuple(
                Rejected(**_texts(r, ("plan", "code", "because"), ("fix",), source))
                for r in _list(data, "rejected", source)
            ),
        )


def describe(choices: Iterable[Choice]) -> str:
    """Returns choices on one line; `baseline` for none.

    Example:
        >>> describe([Choice("ddp", {}), Choice("compile", {"scope": "block"})])
        'ddp + compile(scope=block)'
    """
    return " + ".join(str(choice) for choice in choices) or "baseline"


def _holds_plan(path: Path) -> bool:
    """Returns whether a file is a plan's, of any version, or is empty."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(1 << 16)
    return not start or re.search(rb"(?m)^\W*drivetrain_plan\W*:", start) is not None


def _unwritable(target: Path, error: OSError, fix: str) -> PlanFormatError:
    because = error.strerror or str(error)
    if target.is_dir():
        because = "it is a directory"
        fix = f"name a file in it, such as {target / 'plan.yaml'}"
    return _broken(str(target), f"the plan cannot be written: {because}", fix)


def _broken(source: str, because: str, fix: str = "") -> PlanFormatError:
    return PlanFormatError(Code.FORMAT, source, because=because, fix=fix)


def _choice(item: object, source: str) -> Choice:
    if isinstance(item, str):
        return Choice(item, {})
    if isinstance(item, Mapping) and len(item) == 1:
        ((name, config),) = item.items()
        if isinstance(name, str) and (config is None or isinstance(config, Mapping)):
            return Choice(name, dict(config or {}))
    raise _broken(
        source,
        f"an entry of 'strategy' is no `name: options`: {item!r}",
        "write `- name`, or `- name: {option: value}`",
    )


def _mapping(data: Mapping[str, Any], key: str, source: str) -> dict[str, Any]:
    part = data.get(key) or {}
    if not isinstance(part, Mapping):
        raise _broken(source, f"key {key!r} must be a mapping, got {part!r}")
    return dict(part)


def _list(data: Mapping[str, Any], key: str, source: str) -> list[Any]:
    part = data.get(key) or []
    if not isinstance(part, list):
        raise _broken(source, f"key {key!r} must be a list, got {part!r}")
    return part


def _texts(
    entry: object, required: tuple[str, ...], optional: tuple[str, ...], source: str
) -> dict[str, str]:
    if not isinstance(entry, Mapping) or any(key not in entry for key in required):
        raise _broken(source, f"an entry must have the keys {required}, got {entry!r}")
    unknown = [key for key in entry if key not in (*required, *optional)]
    if unknown:
        raise _broken(source, f"an entry has the unknown key {unknown[0]!r}")
    return {key: str(value) for key, value in entry.items()}
