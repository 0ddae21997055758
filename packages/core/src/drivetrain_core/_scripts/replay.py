"""Runs the user's script again, up to the `accelerate` that is being searched for.

What cannot be pickled can still be made again: a trial runs the script as it was
started, with the same arguments in the same folder. Earlier calls of `accelerate` get
the plans that they were given; the one that is searched for hands its program over, and
never returns.
"""

from __future__ import annotations

import runpy
import sys
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from drivetrain_core._errors import ProgramError, SearchError
from drivetrain_core._partial import read_partial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drivetrain_core._plan import Plan
    from drivetrain_core._program import Program

# Programs that run other people's code: to run them again would not be a replay.
_HOSTS = ("pytest", "IPython", "ipykernel", "ipykernel_launcher", "unittest", "pdb")

# Where the process was when this was first imported: the script may go elsewhere later.
_STARTED_IN = Path.cwd()

# What each call of this process was given, in order; None for one that failed.
_decided: list[Plan | None] = []


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """How a script was started, and which of its calls is meant.

    Args:
        path: The script; empty when it was started as a module.
        module: The module's name, for `python -m`.
        arguments: Its command line, without its own name.
        folder: The working directory.
        earlier: The plans of the calls of `accelerate` before the one that is meant;
            None for one that failed.
    """

    path: str
    module: str = ""
    arguments: tuple[str, ...] = ()
    folder: str = "."
    earlier: tuple[Plan | None, ...] = ()


@dataclass(slots=True)
class Replay:
    """What `accelerate` does in a script that runs again.

    Args:
        script: The script.
        on_program: Takes the program of the call that is meant; it must not return.
    """

    script: Script
    on_program: Callable[[Program], NoReturn]
    _calls: int = field(default=0, init=False)

    def next_call(self, program: Program, strategy: Any) -> Any:
        """Returns the strategy of an earlier call, or hands the program over.

        Raises:
            SearchError: The call searched in the first run, and failed.
        """
        index = self._calls
        self._calls += 1
        if index == len(self.script.earlier):
            self.on_program(program)
        plan = self.script.earlier[index]
        if plan is not None:
            return plan
        if strategy == "auto" or read_partial(strategy) is not None:
            message = f"call {index + 1} of accelerate failed in the first run"
            raise SearchError(message)
        # What failed without a search fails again.
        return strategy


def begin_call() -> int:
    """Counts a call of `accelerate` in this process, and returns its number from 0."""
    _decided.append(None)
    return len(_decided) - 1


def remember_plan(call: int, plan: Plan) -> None:
    """Keeps what a call of `accelerate` was given."""
    _decided[call] = plan


def current_script(call: int, started: Script | None = None) -> Script | None:
    """Returns the script that this process runs; None where there is none to run again.

    Args:
        call: The number of the call of `accelerate` that is meant, from 0.
        started: The script that a command of ours runs.
    """
    earlier = tuple(_decided[:call])
    if started is not None:
        return replace(started, earlier=earlier)
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if file is None or not (_STARTED_IN / file).is_file():
        return None
    spec = getattr(main, "__spec__", None)
    module = spec.name.removesuffix(".__main__") if spec is not None else ""
    host = (module or Path(file).stem).partition(".")[0]
    if host in _HOSTS:
        return None
    return Script(
        path=str((_STARTED_IN / file).resolve()),
        module=module,
        arguments=tuple(sys.argv[1:]),
        folder=str(_STARTED_IN),
        earlier=earlier,
    )


def run_script(script: Script) -> None:
    """Runs a script as Python would, as `__main__`.

    Raises:
        ProgramError: It is missing.
    """
    if not script.module and not Path(script.path).is_file():
        message = f"there is no script {script.path!r}"
        raise ProgramError(message)
    with _as_started(script):
        try:
            if script.module:
                runpy.run_module(script.module, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(script.path, run_name="__main__")
        except SystemExit as left:
            # `sys.exit(main())` ends a script well; an error of its own ends us too.
            if left.code not in (None, 0):
                raise


@contextmanager
def _as_started(script: Script) -> Iterator[None]:
    """Gives the script the folder, `sys.argv` and `sys.path` that Python would."""
    argv, first = sys.argv, sys.path[0]
    sys.argv = [script.path, *script.arguments]
    own = script.folder if script.module else Path(script.path).resolve().parent
    sys.path[0] = str(own)
    try:
        with chdir(script.folder):
            yield
    finally:
        sys.argv, sys.path[0] = argv, first
