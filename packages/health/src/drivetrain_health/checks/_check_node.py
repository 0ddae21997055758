"""The check of one node by itself."""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_health.checks._bench import measure_apart
from drivetrain_health.checks._check_config import CheckConfig
from drivetrain_health.checks._checks import CHECKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed.distributed_c10d import Store

# Of the time of a round: what is left is for the others to hear of it.
_SHARE = 0.9


class NodeReport(NamedTuple):
    """What was measured on a node.

    Attributes:
        node: Its name.
        measures: Rates, by names that say the unit; more is better.
        failures: Why checks have failed, by their names.
        skipped: Why there was nothing to check, by the names of checks.
        not_made: Why checks could not be made, by their names: memory or a disk was used
            up, which is no fault.
        network_failure: Why a check with other nodes has failed; empty if none has.
        received: A digest of what it has received from the other nodes of its group.
        wrong_bits: How the node contradicts itself in computing the same thing twice.
        digests: Of a fixed computation, by the build and device that made it.
    """

    node: str
    measures: Mapping[str, float] = {}
    failures: Mapping[str, str] = {}
    skipped: Mapping[str, str] = {}
    network_failure: str = ""
    received: str = ""
    wrong_bits: str = ""
    digests: Mapping[str, str] = {}
    not_made: Mapping[str, str] = {}

    @property
    def is_good(self) -> bool:
        """Whether nothing has failed."""
        return not (self.failures or self.network_failure or self.wrong_bits)

    @property
    def is_checked(self) -> bool:
        """Whether anything was checked at all."""
        return bool(self.measures or self.digests or self.received) or not self.is_good


def check_node(
    config: CheckConfig | None = None, *, node: str | None = None
) -> NodeReport:
    """Checks this node by itself; checks that take several nodes are left out.

    Args:
        config: What is checked, and for how long.
        node: Its name; by default the host's.

    Raises:
        DistributedError: No process can be started for a measurement.

    Example:
        >>> config = CheckConfig(checks=("loopback", "gpu_all_to_all"), measure_s=0.1)
        >>> report = check_node(config, node="a")
        >>> report.is_good, sorted(report.skipped), report.measures["loopback_gb_per_s"] > 0
        (True, ['gpu_all_to_all'], True)
    """
    return measure_node(config or CheckConfig(), node or socket.gethostname())


def measure_node(
    config: CheckConfig,
    node: str,
    group: tuple[str, ...] = (),
    store: Store | None = None,
) -> NodeReport:
    """Makes all checks of a node, and those with its group if it has one.

    Args:
        config: What is checked, and for how long.
        node: Its name.
        group: With whom it is checked, itself included.
        store: Where this group meets, and nobody else.

    Raises:
        DistributedError: No process can be started for a measurement.
    """
    end_s = time.monotonic() + config.round_s * _SHARE
    measures: dict[str, float] = {}
    digests: dict[str, str] = {}
    failures: dict[str, str] = {}
    skipped: dict[str, str] = {}
    not_made: dict[str, str] = {}
    wrong: list[str] = []
    network: list[str] = []
    received: list[str] = []
    for name in config.checks:
        is_paired = CHECKS[name].is_paired
        if is_paired and (store is None or len(group) < 2):
            skipped[name] = "it takes another node"
            continue
        own = _own_part(store, name) if is_paired else None
        failed = "" if own is None else _meet(own, node, group, end_s)
        left_s = end_s - time.monotonic()
        if not failed and left_s <= 0:
            failed = f"no time was left of {config.round_s:g} s for a round"
        if not failed:
            outcome = measure_apart(
                name,
                config,
                limit_s=left_s,
                rank=group.index(node) if is_paired else 0,
                num_nodes=len(group) if is_paired else 1,
                store=own,
            )
            if outcome.found is not None:
                measures.update(outcome.found.measures)
                digests.update(outcome.found.digests)
                wrong += [outcome.found.wrong_bits] if outcome.found.wrong_bits else []
                received += [outcome.found.received] if is_paired else []
                continue
            if outcome.skipped:
                skipped[name] = outcome.skipped
                # All of a group have to do without it, or it is no group.
                received += [f"no {name}"] if is_paired else []
                continue
            if outcome.not_made:
                not_made[name] = outcome.not_made
                if own is not None:
                    own.set(f"not made/{node}", "")
                    received.append(f"no {name}")
                continue
            failed = outcome.failed
        if own is not None and (others := _without(own, group)):
            not_made[name] = f"{' and '.join(others)} could not make it"
            received.append(f"no {name}")
        elif is_paired:
            network.append(f"{name}: {failed}")
        else:
            failures[name] = failed
    return NodeReport(
        node,
        measures=measures,
        failures=failures,
        skipped=skipped,
        network_failure="; ".join(network),
        received=" ".join(received),
        wrong_bits="; ".join(wrong),
        digests=digests,
        not_made=not_made,
    )


def _without(store: Store, group: tuple[str, ...]) -> list[str]:
    """Returns who of a group could not make a check, so that no other could."""
    return [one for one in group if store.check([f"not made/{one}"])]


def _meet(store: Store, node: str, group: tuple[str, ...], end_s: float) -> str:
    """Waits until all of a group are there; returns what failed, and nothing if they are.

    Somebody may be late, for a check of its own was: that is no failure of the network.
    """
    store.set(f"here/{node}", "")
    left_s = max(0.001, end_s - time.monotonic())
    try:
        store.wait([f"here/{one}" for one in group], timedelta(seconds=left_s))
    except RuntimeError:
        # Stores raise errors of different kinds when the time is up.
        missing = [one for one in group if not store.check([f"here/{one}"])]
        if missing:
            return f"{' and '.join(missing)} did not come"
    return ""


def _own_part(store: Store | None, name: str) -> Store:
    # Imported late: it imports torch.
    from torch.distributed.distributed_c10d import PrefixStore

    assert store is not None
    return PrefixStore(name, store)
