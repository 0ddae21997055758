"""Checks this node, in a process of its own, alone or together with the other nodes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from drivetrain_core.processes import describe_exit
from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

# The check bounds itself; this is for one that does not even do that.
_MOST_S = 900.0
_BAD = {"faulty", "slow"}
# How the check says that it goes on, or is over, without this one.
_TOO_LATE = (
    "two nodes call themselves",
    "has begun without",
    "is one more",
    "which is over",
)


class NodeCheck:
    """Runs `drivetrain-elastic check`; used from one event loop.

    Args:
        node: This one's name.
        env: What the check sees of the environment: the job's token among it.

    Attributes:
        pid: Of the check under way; 0 while there is none.
    """

    def __init__(self, node: str, env: Mapping[str, str]) -> None:
        self._node = node
        self._env = dict(env)
        self._lock = asyncio.Lock()
        self.pid = 0

    async def alone(self) -> pb.CheckResult:
        """Checks this node by itself."""
        return await self._run([])

    async def together(
        self, num_nodes: int, address: str, *, join_s: float
    ) -> pb.CheckResult:
        """Checks this node with the others, and the others with it.

        A node that has started again, or comes too late, is checked by itself.

        Args:
            num_nodes: How many there are.
            address: Of the master, where they meet.
            join_s: How long those that are there wait for the others.
        """
        found = await self._run(
            [
                *("--nodes", str(num_nodes), "--rdzv-endpoint", address),
                *("--join-s", str(join_s), "--id", "start"),
            ]
        )
        if not found.faulty and any(said in found.reason for said in _TOO_LATE):
            return await self.alone()
        return found

    async def _run(self, options: list[str]) -> pb.CheckResult:
        async with self._lock:
            command = [sys.executable, "-m", "drivetrain_elastic.cli", "check"]
            command += ["--json", "--node", self._node, *options]
            process = await asyncio.create_subprocess_exec(
                *command,
                env=self._env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            self.pid = process.pid
            try:
                async with asyncio.timeout(_MOST_S):
                    said, errors = await process.communicate()
            except TimeoutError:
                why = f"the check has not ended within {_MOST_S:g} s"
                return _faulty(self._node, why)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
                self.pid = 0
        try:
            found: dict[str, Any] = json.loads(said)
        except ValueError:
            why = errors.decode(errors="replace").strip().rsplit("\n", 1)[-1]
            if not why:
                why = f"it {describe_exit(process.returncode or 0)} and said nothing"
            # Who could not be checked is not known to be faulty.
            logger.warning("the check of this node was not made: %s", why)
            return pb.CheckResult(reason=f"not made: {why}"[:300])
        return _result(self._node, found)


def _faulty(node: str, why: str) -> pb.CheckResult:
    return pb.CheckResult(is_faulty=True, reason=why[:300], faulty={node: why[:300]})


def _result(node: str, found: dict[str, Any]) -> pb.CheckResult:
    """Returns what the master is to know of a check."""
    if "nodes" not in found:
        if found["is_good"]:
            said = "passed, alone" if found["is_checked"] else "nothing was checked"
            return pb.CheckResult(reason="; ".join([said, *_not_made(found)])[:300])
        faults = [f"{name}: {why}" for name, why in found["failures"].items()]
        faults += [
            one for one in (found["network_failure"], found["wrong_bits"]) if one
        ]
        return _faulty(node, "; ".join(faults))
    bad = {
        name: one["reason"][:300]
        for name, one in found["nodes"].items()
        if one["outcome"] in _BAD
    }
    if node in bad:
        return pb.CheckResult(is_faulty=True, reason=bad[node], faulty=bad)
    own = found["nodes"].get(node)
    said = "was not waited for" if own is None else own["reason"]
    said = f"{said}, with {len(found['nodes'])} nodes"
    if found["absent"]:
        said += f"; did not come: {', '.join(found['absent'])}"
    switches = [f"switch {s} is bad: {w}" for s, w in found["bad_switches"].items()]
    said = "; ".join([said, *switches, *_not_made(found["this"])])
    return pb.CheckResult(reason=said[:300], faulty=bad)


def _not_made(found: dict[str, Any]) -> list[str]:
    return [f"{name} not made: {why}" for name, why in found["not_made"].items()]
