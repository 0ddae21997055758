"""The commands that talk to the daemon of this node: `daemon` and `recover`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._commands import common
from drivetrain_checkpoint._daemon.client import Client, visit
from drivetrain_checkpoint._daemon.settings import Settings
from drivetrain_checkpoint._errors import DaemonError
from drivetrain_checkpoint._storage.catalog import list_saved
from drivetrain_checkpoint._storage.open import resolve

if TYPE_CHECKING:
    import argparse

_SLICE_S = 1.0


def daemon(args: argparse.Namespace) -> int:
    """Starts the daemon of this node, looks at it, or stops it."""
    url = resolve(args.folder)
    if args.action == "start":
        settings = Settings(job=args.job, url=url, options=dict(args.options))
        if visit(args.job, url, {"op": "status"}) is None:
            Client(settings).hello()
    question: dict[str, Any] = {"op": "status"}
    if args.action == "stop":
        question = {"op": "stop", "at_once": args.at_once}
    answer = visit(args.job, url, question)
    if answer is None:
        common.existing(args.folder)
        if args.json:
            common.say_json({})
        else:
            common.say(f"no daemon serves job {args.job!r} here")
        return 1
    if args.json:
        common.say_json(answer)
    elif args.action == "status":
        common.say(json.dumps(answer, indent=2))
    elif args.action == "start":
        common.say(f"process {answer['pid']} serves job {args.job!r}")
    return 0


def recover(args: argparse.Namespace) -> int:
    """Brings what the daemon of this node holds in memory to storage."""
    url = resolve(args.folder)
    status = _asked(args.job, url, {"op": "status"})
    steps = [step for rank in status["ranks"].values() for step in rank["steps"]]
    if not steps:
        message = f"the daemon of job {args.job!r} holds no save in memory"
        raise DaemonError(message)
    deadline = time.monotonic() + args.timeout
    question = {"op": "settle", "timeout_s": _SLICE_S}
    is_durable = False
    while not is_durable and time.monotonic() < deadline:
        is_durable = _asked(args.job, url, question)["durable"]
        status = _asked(args.job, url, {"op": "status"})
        is_busy = any(rank["doing"] for rank in status["ranks"].values())
        if status["failures"] and not is_busy:
            break  # storage refuses it; the daemon goes on trying
    failures = sorted(set(status["failures"].values()))
    found = None
    if is_durable:
        saved = list_saved(common.storage_at(args.folder, args))
        mine = [one.root.step for one in saved if one.root.job == args.job]
        found = mine[-1] if mine else max(steps)  # they lie in folders of the job's
    if args.json:
        common.say_json({"step": found, "durable": is_durable, "failures": failures})
    elif is_durable:
        common.say(f"step {found} is durable")
    if not is_durable:
        because = "; ".join(failures) or f"it takes longer than {args.timeout:g} s"
        message = f"step {max(steps)} is not durable: {because}"
        raise DaemonError(message)
    return 0


def _asked(job: str, url: str, question: dict[str, Any]) -> dict[str, Any]:
    answer = visit(job, url, question)
    if answer is None:
        common.existing(url)
        message = f"no daemon serves job {job!r} here"
        raise DaemonError(message)
    return answer
