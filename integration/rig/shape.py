"""Links of nodes: what they are, and the traffic control commands that make them so."""

from __future__ import annotations

from dataclasses import dataclass

# A packet of the kernel may hold many segments. Small ones leave links their shape,
# large ones cost less work; these are 0.7 ms of a link of 400 Mbit/s.
SEGMENTS_BYTES = 32768
_BURST_BYTES = 2 * SEGMENTS_BYTES
# Switches with proper buffers: with a shallow queue, many senders to one receiver lose
# so much that what is measured is the queue.
_LEAST_QUEUE_BYTES = 4_000_000
_LEAST_QUEUE_S = 0.1
_NUM_FLOW_CLASSES = 1024
_FLOW_CLASS = 0x1_1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """The link of a node to the switch, the same in both directions.

    Args:
        rate_mbit_per_s: The rate of the port in Mbit/s.
        rtt_ms: From a node to another one and back, in milliseconds.
        flow_cap_mbit_per_s: The most that one TCP connection gets, as clouds limit
            single flows; None means the whole port.

    Raises:
        ValueError: A rate is not positive, the time is negative, or the cap is over
            the rate.

    Example:
        >>> Link(rate_mbit_per_s=400).queue_bytes
        5000000
    """

    rate_mbit_per_s: float
    rtt_ms: float = 0
    flow_cap_mbit_per_s: float | None = None

    def __post_init__(self):
        if self.rate_mbit_per_s <= 0:
            raise ValueError(f"a rate must be positive, not {self.rate_mbit_per_s}")
        if self.rtt_ms < 0:
            raise ValueError(f"a round trip takes 0 ms or more, not {self.rtt_ms}")
        cap = self.flow_cap_mbit_per_s
        if cap is not None and not 0 < cap <= self.rate_mbit_per_s:
            raise ValueError(
                f"a flow's cap is over 0 and at most the port's rate of "
                f"{self.rate_mbit_per_s} Mbit/s, not {cap}"
            )

    @property
    def bytes_per_s(self):
        """The rate of the port in bytes per second."""
        return self.rate_mbit_per_s * 125e3

    @property
    def queue_bytes(self):
        """How much waits at a port of the switch: 100 ms, a round trip, 4 MB at least."""
        seconds = max(_LEAST_QUEUE_S, self.rtt_ms / 1e3)
        return max(_LEAST_QUEUE_BYTES, round(self.bytes_per_s * seconds))


def port_commands(link, device):
    """The `tc` commands for a port of the switch: a bucket with a deep queue.

    >>> link = Link(rate_mbit_per_s=400)
    >>> [" ".join(command) for command in port_commands(link, "port0")]
    ['qdisc replace dev port0 root tbf rate 400000000bit burst 65536b limit 5000000b']
    """
    rate = f"rate {_bits(link.rate_mbit_per_s)} burst {_BURST_BYTES}b"
    line = f"qdisc replace dev {device} root tbf {rate} limit {link.queue_bytes}b"
    return [line.split()]


def node_commands(link, device):
    """The `tc` commands for the device of a node, with the caps of its flows.

    Every TCP flow falls into one of 1024 classes by a sum of its ports in which the
    connections that a process makes one after another are neighbours, so that few
    flows rarely share a class. Everything else has a class of its own.
    """
    if link.flow_cap_mbit_per_s is None:
        return port_commands(link, device)
    port, flow = _bits(link.rate_mbit_per_s), _bits(link.flow_cap_mbit_per_s)
    share = _bits(link.rate_mbit_per_s / (_NUM_FLOW_CLASSES + 1))
    burst = f"burst {_BURST_BYTES}b cburst {_BURST_BYTES}b quantum {SEGMENTS_BYTES}"
    add = f"class add dev {device} parent"
    lines = [
        f"qdisc replace dev {device} root handle 1: htb default 2",
        f"{add} 1: classid 1:1 htb rate {port} {burst}",
        f"{add} 1:1 classid 1:2 htb rate {share} ceil {port} {burst}",
        *(
            f"{add} 1:1 classid 1:{(_FLOW_CLASS & 0xFFFF) + i:x} "
            f"htb rate {share} ceil {flow} {burst}"
            for i in range(_NUM_FLOW_CLASSES)
        ),
    ]
    program = ",".join(" ".join(map(str, line)) for line in _flow_program())
    size = len(_flow_program())
    bpf = f"filter add dev {device} parent 1: protocol ip prio 1 bpf bytecode"
    return [*map(str.split, lines), [*bpf.split(), f"{size},{program}"]]


def _bits(mbit_per_s):
    return f"{round(mbit_per_s * 1e6)}bit"


def _flow_program():
    """Classic BPF that returns the class of a TCP packet: (code, jt, jf, k) a line."""
    network = -0x100000 & 0xFFFFFFFF  # offsets from the IP header, which has 20 bytes
    load_byte, load_half = 0x30, 0x28
    multiply, add_x, shift, mask, set_bits = 0x24, 0x0C, 0x74, 0x54, 0x44
    to_x, jump_equal, give, give_number = 0x07, 0x15, 0x16, 0x06
    return [
        (load_byte, 0, 0, network + 9),
        (jump_equal, 1, 0, 6),  # TCP
        (give_number, 0, 0, 0),  # not one of these flows
        (load_half, 0, 0, network + 22),
        (multiply, 0, 0, 37),
        (to_x, 0, 0, 0),
        (load_half, 0, 0, network + 20),
        (add_x, 0, 0, 0),
        (shift, 0, 0, 1),  # ports that are chosen for a connection are even
        (mask, 0, 0, _NUM_FLOW_CLASSES - 1),
        (set_bits, 0, 0, _FLOW_CLASS),
        (give, 0, 0, 0),
    ]
