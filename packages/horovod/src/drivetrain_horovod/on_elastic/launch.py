r"""Keeps an agent running on each host that a discovery script names.

    python -m drivetrain_horovod.on_elastic.launch --host-discovery-script ./hosts.sh \
        --min-np 2 --on-host 'ssh {host}' --rdzv-endpoint MASTER:29400 \
        --token-file token train.py

The master is one that `drivetrain-elastic master` has started. Agents of hosts that are
not named any more leave at the end of a step; hosts whose agents fail are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shlex
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from drivetrain_core import DistributedError
from drivetrain_core.commands import (
    CommandParser,
    as_wrong_use,
    integer,
    number,
    run_command,
)
from drivetrain_elastic.extending import MasterClient, addresses, read_token
from drivetrain_elastic.protocol import messages as pb
from drivetrain_horovod.on_elastic.discovery import (
    Blacklist,
    HostDiscoveryScript,
    HostManager,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_PAUSE_S = 0.05
_LEAVE_S = 60.0
_END_S = 30.0


class HostAgents:
    """The agents of a job, one a host; used from one thread.

    Args:
        manager: Knows the hosts.
        start: Starts an agent, for a host and its slots.
        leave: Asks the agent of a host to leave at the end of a step.

    Attributes:
        exit_code: Of the job; None while it goes on.
    """

    def __init__(
        self,
        manager: HostManager,
        *,
        start: Callable[[str, int], subprocess.Popen[bytes]],
        leave: Callable[[str], None],
    ) -> None:
        self._manager = manager
        self._start, self._leave = start, leave
        self._agents: dict[str, tuple[int, subprocess.Popen[bytes]]] = {}
        self._leaving: set[str] = set()
        self.exit_code: int | None = None

    def look(self) -> None:
        """Notes which agents have ended, and sees to it that each host has one."""
        self._note_ends()
        if self.exit_code is not None:
            return
        try:
            self._manager.update_available_hosts()
        except DistributedError as error:
            logger.warning("the hosts are those of before: %s", error)
        hosts = self._manager.current_hosts
        for host, (slots, _) in self._agents.items():
            if hosts.get(host) != slots and host not in self._leaving:
                logger.info("%s leaves", host)
                self._leave(host)
                self._leaving.add(host)
        for host, slots in hosts.items():
            if host not in self._agents:
                logger.info("%s joins with %d processes", host, slots)
                self._agents[host] = slots, self._start(host, slots)

    def _note_ends(self) -> None:
        for host, (_, process) in list(self._agents.items()):
            code = process.poll()
            if code is None:
                continue
            del self._agents[host]
            was_leaving = host in self._leaving
            self._leaving.discard(host)
            if code and not was_leaving:
                logger.warning("the agent of %s has ended with %d", host, code)
                self._manager.blacklist(host)
            if not was_leaving and (code == 0 or not self._agents):
                # It ends well only with the job.
                self.exit_code = code

    def close(self) -> None:
        """Ends all agents; where the job has ended, they do so by themselves."""
        end_s = time.monotonic() + (_END_S if self.exit_code is not None else 0.0)
        for _, process in self._agents.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end_s - time.monotonic()))
            if process.poll() is None:
                process.terminate()
        for _, process in self._agents.values():
            process.wait()


def agent_command(
    arguments: argparse.Namespace, host: str, slots: int
) -> Sequence[str]:
    """Returns what starts the agent of a host.

    Args:
        arguments: Of the command line.
        host: Which one.
        slots: Its processes.
    """
    least = arguments.min_np or 1
    command = [sys.executable, "-m", "drivetrain_elastic.cli", "run", "--node", host]
    command += ["--rdzv-endpoint", arguments.rdzv_endpoint]
    command += ["--token-file", arguments.token_file]
    command += ["--nproc-per-node", str(slots), "--standbys", "0"]
    command += ["--nnodes", f"1:{arguments.max_hosts}", "--min-workers", str(least)]
    if arguments.tls_ca:
        command += ["--tls-ca", arguments.tls_ca]
    command += ["-m", "drivetrain_horovod.on_elastic", arguments.script]
    command += arguments.arguments
    if not arguments.on_host:
        return command
    prefix = [word.replace("{host}", host) for word in shlex.split(arguments.on_host)]
    return [*prefix, shlex.join(command)]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job, and returns its exit status.

    Args:
        argv: The arguments; None for those of the process.
    """
    parser = CommandParser(
        prog="python -m drivetrain_horovod.on_elastic.launch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--host-discovery-script",
        required=True,
        metavar="COMMAND",
        help="prints a line HOST:SLOTS for each host",
    )
    parser.add_argument(
        "--slots",
        type=integer(1),
        metavar="N",
        help="of hosts that are printed without",
    )
    parser.add_argument(
        "--min-np",
        type=integer(1),
        metavar="N",
        help="fewer processes do not train (1)",
    )
    parser.add_argument(
        "--max-hosts",
        type=integer(1),
        default=1024,
        metavar="N",
        help="more hosts stand by (%(default)s)",
    )
    parser.add_argument(
        "--blacklist-cooldown-range",
        type=number(0),
        nargs=2,
        metavar=("LEAST", "MOST"),
        help="how many seconds a host is left out after a failure; by default for ever",
    )
    parser.add_argument(
        "--on-host",
        default="",
        metavar="COMMAND",
        help="runs a command on {host}, as `ssh {host}`; by default all run here",
    )
    parser.add_argument(
        "--rdzv-endpoint", type=addresses, required=True, metavar="HOST:PORT"
    )
    parser.add_argument("--token-file", required=True, metavar="FILE")
    parser.add_argument("--tls-ca", metavar="FILE", help="who vouches for the master")
    parser.add_argument("script", metavar="SCRIPT", help="the training script")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="of the script"
    )
    name = "drivetrain_horovod.on_elastic.launch"
    return run_command(name, _run, parser.parse_args(argv))


def _run(arguments: argparse.Namespace) -> int:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    cooldown = arguments.blacklist_cooldown_range
    script = HostDiscoveryScript(arguments.host_discovery_script, arguments.slots)
    with as_wrong_use(arguments):
        blacklist = Blacklist(tuple(cooldown) if cooldown else None)
    manager = HostManager(script, blacklist)
    if arguments.tls_ca:
        os.environ["DRIVETRAIN_ELASTIC_TLS_CA"] = arguments.tls_ca
    client = MasterClient(arguments.rdzv_endpoint, read_token(arguments.token_file))

    def leave(host: str) -> None:
        reason = "the discovery script does not name it any more"
        client.call(
            "Leave", pb.LeaveRequest(node=host, within_s=_LEAVE_S, reason=reason)
        )

    agents = HostAgents(
        manager,
        start=lambda host, slots: subprocess.Popen(
            agent_command(arguments, host, slots), stdin=subprocess.DEVNULL
        ),
        leave=leave,
    )
    try:
        looked_s = 0.0
        while agents.exit_code is None:
            if time.monotonic() - looked_s >= _LOOK_S:
                agents.look()
                looked_s = time.monotonic()
            time.sleep(_PAUSE_S)
    finally:
        agents.close()
        client.close()
    return agents.exit_code


if __name__ == "__main__":
    sys.exit(main())
