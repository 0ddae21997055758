"""Selection of an all-reduce algorithm by the cost model, without a trial."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from drivetrain_comm.algorithms import ring
from drivetrain_comm.selection._choice import MOST_STREAMS, Choice, available, steps_of
from drivetrain_comm.selection._cost import cost_of
from drivetrain_comm.selection._load import load_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drivetrain_comm.selection._cost import Network
    from drivetrain_comm.selection._load import Load

# Below this the number of hops counts, above it the number of bytes.
_SHORT_BYTES = 64 << 10


def load_of_algorithm(name: str, hosts: Sequence[Sequence[int]]) -> Load:
    """Returns what an algorithm asks of the network between hosts.

    Args:
        name: The algorithm.
        hosts: The ranks of each host.

    Example:
        >>> load_of_algorithm("hierarchical-direct", [[0, 1], [2, 3]]).link
        1.0
    """
    ranks = sorted(rank for host in hosts for rank in host)
    whole = [steps_of(name, hosts, rank) for rank in ranks]
    return load_of([steps for steps, _ in whole], whole[0][1], hosts)


def load_of_stock(hosts: Sequence[Sequence[int]]) -> Load:
    """Returns what Gloo asks of the network: a ring in the order of the ranks.

    Args:
        hosts: The ranks of each host.

    Example:
        >>> load_of_stock([[0, 1], [2, 3]]).link, load_of_stock([[0, 2], [1, 3]]).link
        (1.5, 3.0)
    """
    ranks = sorted(chain.from_iterable(hosts))
    num_chunks = ring.num_chunks(len(ranks))
    whole = [ring.all_reduce(ranks, rank, range(num_chunks)) for rank in ranks]
    return load_of(whole, num_chunks, hosts)


def useful_streams(network: Network) -> list[int]:
    """Returns how many connections to a peer are worth a trial.

    Example:
        >>> from drivetrain_comm.selection._cost import Network
        >>> useful_streams(Network(delay_s=0.0, flow_bytes_per_s=2e7,
        ...     port_bytes_per_s=8e7, local_bytes_per_s=1e9))
        [1, 2, 4]
    """
    most = network.port_bytes_per_s / network.flow_bytes_per_s
    found = [1]
    while found[-1] < most * 0.9 and found[-1] < MOST_STREAMS:
        found.append(found[-1] * 2)
    return found


def cheapest(
    loads: Mapping[str, Load],
    network: Network,
    size_bytes: int,
    num_streams: int | None = None,
) -> Choice:
    """Returns what the model finds fastest for one vector of this size.

    Args:
        loads: What each algorithm asks of the network.
        network: What was measured.
        size_bytes: Of the vector.
        num_streams: Connections to each peer, if they are fixed.
    """
    streams = [num_streams] if num_streams else useful_streams(network)

    def seconds(choice: Choice) -> float:
        load = loads[choice.algorithm]
        return cost_of(load, network, choice.num_streams, size_bytes).alone_s

    choices = [Choice(algorithm=a, num_streams=n) for a in loads for n in streams]
    return min(choices, key=seconds)


def guess(hosts: Sequence[Sequence[int]], size_bytes: int, num_streams: int) -> Choice:
    """Returns a choice that is good on most networks, before one was measured.

    Args:
        hosts: The ranks of each host.
        size_bytes: Of the vector.
        num_streams: Connections to each peer.

    Example:
        >>> str(guess([[0, 1], [2, 3]], 1 << 20, 1))
        'hierarchical-direct'
    """
    names = available(hosts)
    wanted = (
        ("direct",)
        if size_bytes <= _SHORT_BYTES
        else ("hierarchical-ring", "hierarchical-direct", "ring", "direct")
    )
    name = next((name for name in wanted if name in names), names[0])
    return Choice(algorithm=name, num_streams=num_streams)
