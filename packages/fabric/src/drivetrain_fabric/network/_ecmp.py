"""Equal-cost multi-path: which of its ports up a switch sends a flow through.

A switch hashes the five-tuple of a packet (addresses, protocol, ports), so that all
packets of a flow take one way. RoCE v2 has one UDP port to go to, 4791, and a source
port for each queue pair: queue pairs are what a connection has to spread over ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from drivetrain_fabric.network._errors import FabricError
from drivetrain_fabric.network._seed import check_seed

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    from drivetrain_fabric.network._clos import IntArray

    HashArray: TypeAlias = NDArray[np.uint32]

_CASTAGNOLI = 0x82F63B78
_NETWORK = 10 << 24
_UDP, _ROCE_PORT = 17, 4791
_FIRST_SOURCE_PORT, _NUM_SOURCE_PORTS = 0xC000, 0x4000
HASHES = ("crc", "unseeded", "random")


def _table() -> HashArray:
    table = np.arange(256)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ _CASTAGNOLI, table >> 1)
    return table.astype(np.uint32)


_TABLE = _table()


def crc32c(words: NDArray[np.uint8]) -> HashArray:
    """Returns the CRC-32C of each row of bytes.

    Args:
        words: Bytes, of shape (messages, length).

    Example:
        >>> hex(crc32c(np.frombuffer(b"123456789", np.uint8)[None])[0])
        '0xe3069283'
    """
    crc = np.full(len(words), 0xFFFFFFFF, np.uint32)
    for column in words.T:
        crc = _TABLE[(crc ^ column) & 0xFF] ^ (crc >> 8)
    return ~crc


def mix(value: NDArray[np.uint32] | NDArray[np.int64]) -> HashArray:
    """Returns numbers that depend on each bit of others, and not linearly."""
    mixed = value.astype(np.uint32)
    mixed ^= mixed >> 16
    mixed *= np.uint32(0x7FEB352D)
    mixed ^= mixed >> 15
    mixed *= np.uint32(0x846CA68B)
    mixed ^= mixed >> 16
    return mixed


def source_ports(
    source: IntArray, target: IntArray, queue_pair: IntArray, seed: int
) -> IntArray:
    """Returns the UDP source ports of queue pairs, from the range of dynamic ports.

    Args:
        source: The network cards that send.
        target: The network cards that receive.
        queue_pair: The numbers of the queue pairs within their connections.
        seed: Another seed gives other ports, as another start of the job does.
    """
    spread = mix(queue_pair + (seed * 0x9E3779B1 & 0xFFFFFFFF))
    spread = mix(spread ^ mix(source)) ^ target.astype(np.uint32)
    return _FIRST_SOURCE_PORT + mix(spread).astype(np.int64) % _NUM_SOURCE_PORTS


def five_tuples(
    source: IntArray, target: IntArray, ports: IntArray
) -> NDArray[np.uint8]:
    """Returns the bytes that switches hash: card `i` has the address 10.0.0.0 + i.

    Args:
        source: The network cards that send.
        target: The network cards that receive.
        ports: The source ports.
    """
    words = np.empty((len(source), 13), np.uint8)
    for first, value, size in (
        (0, source + _NETWORK, 4),
        (4, target + _NETWORK, 4),
        (9, ports, 2),
    ):
        for i in range(size):
            words[:, first + i] = value >> (8 * (size - 1 - i)) & 0xFF
    words[:, 8] = _UDP
    words[:, 11], words[:, 12] = divmod(_ROCE_PORT, 256)
    return words


@dataclass(frozen=True, kw_only=True, slots=True)
class Ecmp:
    """How switches hash.

    Args:
        kind: `crc`, a CRC-32C that each switch mixes with a seed of its own;
            `unseeded`, the same without seeds, so that switches of one tier sort flows
            as those before them did (polarization); `random`, an ideal hash, which
            has nothing to do with the addresses.
        seed: Of the switches' seeds, or of the ideal hash.

    Raises:
        FabricError: The kind is not known, or the seed is negative.

    Example:
        >>> flows = np.arange(4)
        >>> digests = Ecmp().digests(flows, flows + 9, source_ports(flows, flows, flows, 0))
        >>> ports = Ecmp().choose(digests, switch=flows * 0, fanout=32)
        >>> bool((ports < 32).all())
        True
    """

    kind: str = "crc"
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks the kind and the seed."""
        if self.kind not in HASHES:
            message = f"hash must be one of {', '.join(HASHES)}, got {self.kind!r}"
            raise FabricError(message)
        check_seed(self.seed)

    def digests(self, source: IntArray, target: IntArray, ports: IntArray) -> HashArray:
        """Returns what the hash sees of each flow.

        Args:
            source: The network cards that send.
            target: The network cards that receive.
            ports: The source ports.
        """
        if self.kind == "random":
            generator = np.random.default_rng(self.seed)
            return generator.integers(1 << 32, size=len(source), dtype=np.uint32)
        return crc32c(five_tuples(source, target, ports))

    def choose(
        self, digests: HashArray, switch: IntArray, fanout: IntArray | int
    ) -> IntArray:
        """Returns the way that each flow takes at a switch.

        Args:
            digests: What `digests` returned.
            switch: The switch at which each flow is, a number of its own for each.
            fanout: How many ways there are.
        """
        if self.kind != "unseeded":
            # A CRC is linear: two seeds before it differ by a constant after it, and
            # would sort flows alike. So the seed is mixed in behind.
            seeds = mix(switch + 1 + (self.seed * 0x9E3779B1 & 0xFFFFFFFF))
            digests = mix(digests ^ seeds)
        return digests.astype(np.int64) % fanout
