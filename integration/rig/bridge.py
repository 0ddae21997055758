"""A switch without delay between namespaces: a bridge in a namespace of its own."""

from __future__ import annotations

from rig.namespaces import at, make_namespace, remove_namespace, tc
from rig.shape import SEGMENTS_BYTES, port_commands


class Bridge:
    """Wires of nodes that take no time.

    Args:
        name: The name of the bridge's own namespace.
    """

    def __init__(self, name):
        self._name = name
        self._nodes = []
        make_namespace(name)
        at(name, "link add bridge type bridge")
        at(name, "link set bridge up")

    def attach(self, node, name, address):
        """Gives a namespace its eth0; nodes come in the order of their numbers."""
        self._nodes.append((name, address))
        pair = f"link add eth0 type veth peer name port{node} netns {self._name}"
        at(name, pair)
        at(name, f"addr add {address}/24 dev eth0")
        at(self._name, f"link set port{node} gso_max_size {SEGMENTS_BYTES}")
        at(self._name, f"link set port{node} master bridge up")

    def shape(self, node, link):
        """Sets the rate of the port that leads to a node; None means no limit."""
        if link is not None:
            tc(self._name, port_commands(link, f"port{node}"))

    def cut(self, node):
        """Pulls the cable of a node."""
        at(self._name, f"link set port{node} down")

    def part(self, one, other):
        """Lets what two nodes send to each other vanish; others reach both."""
        for here, there in ((one, other), (other, one)):
            nowhere = "lladdr 02:00:00:00:00:99 nud permanent dev eth0"
            address = self._nodes[there][1]
            at(self._nodes[here][0], f"neigh replace {address} {nowhere}")

    def stats(self):
        """Nothing: the kernel's bridge is not watched."""
        return {}

    def close(self):
        """Removes the bridge."""
        remove_namespace(self._name)
