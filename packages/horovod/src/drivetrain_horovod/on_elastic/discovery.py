"""Which hosts there are: what a discovery script prints, less those that have failed."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Protocol

from drivetrain_core import DistributedError, ProgramError
from drivetrain_horovod.on_elastic._state import HostUpdateResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_HOST = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.\-]*)(?::(\d{1,6}))?", re.ASCII)
_PATIENCE_S = 30.0


class HostDiscovery(Protocol):
    """Says which hosts there are."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Returns the processes that each host has room for."""


def parse_hosts(text: str, default_slots: int | None = None) -> dict[str, int]:
    r"""Returns the hosts that a discovery script has printed, with their slots.

    Args:
        text: A line `HOST:SLOTS` or `HOST` for each.
        default_slots: Of a host whose line says none.

    Raises:
        ProgramError: A line is something else, or a host stands there twice.

    Example:
        >>> parse_hosts("a:2\nb\n", default_slots=4)
        {'a': 2, 'b': 4}
    """
    hosts: dict[str, int] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        found = _HOST.fullmatch(line)
        slots = int(found[2]) if found and found[2] else default_slots
        if found is None or not slots or found[1] in hosts:
            message = (
                f"a discovery script must print a line HOST:SLOTS for each host, once, "
                f"got {line!r}"
            )
            raise ProgramError(message)
        hosts[found[1]] = slots
    return hosts


class HostDiscoveryScript:
    """Runs a script that prints `HOST:SLOTS` for each host.

    Args:
        discovery_script: The command, for a shell.
        default_slots: Of hosts that are printed without.
        timeout_s: How long it may take.

    Example:
        >>> HostDiscoveryScript("echo a:2; echo b:1").find_available_hosts_and_slots()
        {'a': 2, 'b': 1}
    """

    def __init__(
        self,
        discovery_script: str,
        default_slots: int | None = None,
        *,
        timeout_s: float = _PATIENCE_S,
    ) -> None:
        self._script = discovery_script
        self._default_slots = default_slots
        self._timeout_s = timeout_s

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Returns what the script prints now.

        Raises:
            DistributedError: It fails, or takes too long.
            ProgramError: It prints something else than hosts.
        """
        with subprocess.Popen(
            self._script,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                said, words = process.communicate(timeout=self._timeout_s)
            except subprocess.TimeoutExpired as error:
                message = f"{self._script!r} has not ended within {self._timeout_s:g} s"
                raise DistributedError(message) from error
            finally:
                # What the script has started would be there after each look, once more.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            message = (
                f"{self._script!r} ended with {process.returncode}: {words.strip()}"
            )
            raise DistributedError(message)
        return parse_hosts(said, self._default_slots)


class FixedHosts:
    """Says that there are always the same hosts.

    Args:
        hosts: Their slots.
    """

    def __init__(self, hosts: Mapping[str, int]) -> None:
        self._hosts = dict(hosts)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Returns them."""
        return dict(self._hosts)


class Blacklist:
    """Hosts that have failed, each for longer the more often it has.

    Args:
        cooldown_s: How long a host is left out after its first failure, and at most; None
            leaves it out for ever.
        clock: Seconds that only grow.
        jitter: Returns a factor for each wait, so that hosts do not come back together.

    Raises:
        ProgramError: The times make no sense.

    Example:
        >>> now = [0.0]
        >>> bad = Blacklist((10.0, 60.0), clock=lambda: now[0], jitter=lambda: 1.0)
        >>> bad.add("a")
        >>> now[0] = 11.0
        >>> "a" in bad
        False
        >>> bad.add("a")
        >>> now[0] = 22.0
        >>> "a" in bad
        True
    """

    def __init__(
        self,
        cooldown_s: tuple[float, float] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: random.uniform(1.0, 1.25),
    ) -> None:
        if cooldown_s is not None and not 0 < cooldown_s[0] <= cooldown_s[1]:
            message = f"a cool-down must go from above 0 to more, got {cooldown_s}"
            raise ProgramError(message)
        self._cooldown_s = cooldown_s
        self._clock = clock
        self._jitter = jitter
        self._num: dict[str, int] = {}
        self._until_s: dict[str, float] = {}

    def add(self, host: str) -> None:
        """Leaves a host out from now on.

        Args:
            host: Which one has failed.
        """
        if host in self:
            return
        count = self._num.get(host, 0)
        self._num[host] = count + 1
        if self._cooldown_s is None:
            self._until_s[host] = float("inf")
            return
        least_s, most_s = self._cooldown_s
        wait_s = min(most_s, least_s * 2 ** min(count, 30)) * self._jitter()
        self._until_s[host] = self._clock() + wait_s

    def __contains__(self, host: object) -> bool:
        """Whether a host is left out now."""
        return self._until_s.get(str(host), -1.0) > self._clock()


class HostManager:
    """Keeps which hosts are there, and which of them are to be left out.

    Args:
        discovery: Says which hosts there are.
        blacklist: Those that have failed.

    Attributes:
        current_hosts: Those of the last look, less those that have failed.

    Example:
        >>> manager = HostManager(FixedHosts({"a": 2, "b": 1}), Blacklist())
        >>> manager.update_available_hosts()
        <HostUpdateResult.added: 2>
        >>> manager.blacklist("a")
        >>> manager.update_available_hosts()
        <HostUpdateResult.removed: 1>
        >>> manager.current_hosts
        {'b': 1}
    """

    def __init__(self, discovery: HostDiscovery, blacklist: Blacklist) -> None:
        self._discovery = discovery
        self._blacklist = blacklist
        self.current_hosts: dict[str, int] = {}

    def update_available_hosts(self) -> HostUpdateResult:
        """Looks again, and returns what has changed; other slots are another host.

        Raises:
            DistributedError: The hosts are not known now; those of before stay.
            ProgramError: What says them says something else.
        """
        found = self._discovery.find_available_hosts_and_slots()
        after = {host: n for host, n in found.items() if host not in self._blacklist}
        before = self.current_hosts.items()
        result = HostUpdateResult.no_update
        if before - after.items():
            result |= HostUpdateResult.removed
        if after.items() - before:
            result |= HostUpdateResult.added
        self.current_hosts = after
        return result

    def blacklist(self, host: str) -> None:
        """Leaves a host out, for as long as the blacklist says.

        Args:
            host: Which one has failed.
        """
        self._blacklist.add(host)

    def is_blacklisted(self, host: str) -> bool:
        """Whether a host is left out now.

        Args:
            host: Which one.
        """
        return host in self._blacklist
