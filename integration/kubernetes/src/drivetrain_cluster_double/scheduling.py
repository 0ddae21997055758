"""Which node a pod goes to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cloud.kubernetes.quantities import read_quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from drivetrain_cluster_double.store import Key

__all__ = [
    "Choice",
    "Load",
    "Place",
    "choose_node",
    "requests_of",
    "shape_of",
    "tolerates",
]

_Item = dict[str, Any]


class Load(NamedTuple):
    """What a pod takes of its node.

    Attributes:
        key: Which pod.
        priority: Pods of a lower one give way.
        requests: How much of what.
        is_ending: Whether it is being deleted.
    """

    key: Key
    priority: int
    requests: Mapping[str, float]
    is_ending: bool = False


class Place(NamedTuple):
    """A node, and what is on it.

    Attributes:
        node: The node.
        allocatable: How much of what it has.
        used: How much of that is taken.
        loads: By whom.
    """

    node: _Item
    allocatable: Mapping[str, float]
    used: Mapping[str, float]
    loads: Mapping[Key, Load]


class Choice(NamedTuple):
    """What `choose_node` decided.

    Attributes:
        node: Where the pod goes, or will go when others have given way; empty if nowhere.
        victims: Who has to give way.
        reason: Why it goes nowhere now.
    """

    node: str
    victims: tuple[Key, ...] = ()
    reason: str = ""


def requests_of(pod: _Item) -> dict[str, float]:
    """Returns how much of what a pod takes."""
    found: dict[str, float] = {"pods": 1}
    for container in pod["spec"]["containers"]:
        requests = (container.get("resources") or {}).get("requests") or {}
        for name, amount in requests.items():
            found[name] = found.get(name, 0) + read_quantity(amount)
    return found


def shape_of(pod: _Item) -> str:
    """Returns what pods have in common that fit on the same nodes."""
    spec = pod["spec"]
    parts = (
        spec.get(n) for n in ("nodeSelector", "tolerations", "affinity", "priority")
    )
    return repr((requests_of(pod), *parts))


def tolerates(pod: _Item, taint: Mapping[str, str]) -> bool:
    """Whether a pod tolerates a taint."""
    for one in pod["spec"].get("tolerations") or ():
        is_any = one.get("operator") == "Exists"
        if (
            one.get("effect") in {None, "", taint["effect"]}
            and (one.get("key", "") == taint["key"] or (is_any and not one.get("key")))
            and (is_any or one.get("value", "") == taint.get("value", ""))
        ):
            return True
    return False


def choose_node(pod: _Item, places: Sequence[Place]) -> Choice:
    """Decides which node a pod goes to.

    Nodes that the pod's selector and affinity name, and whose taints it tolerates, are
    tried in the order in which they come. When there is room on none, pods of a lower
    priority give way.

    Args:
        pod: The pod.
        places: The nodes, the best first.
    """
    wanted, why = requests_of(pod), Counter[str]()
    able = []
    for place in places:
        reason = _refusal(pod, place.node)
        if reason:
            why[reason] += 1
            continue
        lacking = _lacking(wanted, place.allocatable, place.used)
        if not lacking:
            return Choice(place.node["metadata"]["name"])
        able.append(place)
        for name in lacking:
            why["Too many pods" if name == "pods" else f"Insufficient {name}"] += 1
    listed = ", ".join(f"{number} {reason}" for reason, number in sorted(why.items()))
    text = f"0/{len(places)} nodes are available: {listed or 'there are none'}."
    if pod["spec"].get("preemptionPolicy") == "Never":
        return Choice("", reason=text)
    options = [(victims, p) for p in able if (victims := _victims(pod, wanted, p))]
    if not options:
        return Choice("", reason=text)
    victims, place = min(
        options,
        key=lambda option: (max(one.priority for one in option[0]), len(option[0])),
    )
    keys = tuple(one.key for one in victims)
    return Choice(place.node["metadata"]["name"], keys, text)


def _refusal(pod: _Item, node: _Item) -> str:
    spec, node_spec = pod["spec"], node.get("spec") or {}
    if node_spec.get("unschedulable"):
        return "node(s) were unschedulable"
    labels = node["metadata"].get("labels") or {}
    selector = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return "node(s) didn't match Pod's node affinity/selector"
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if terms and not any(
        _matches(term.get("matchExpressions") or (), labels)
        for term in terms.get("nodeSelectorTerms") or ()
    ):
        return "node(s) didn't match Pod's node affinity/selector"
    for taint in node_spec.get("taints") or ():
        if taint["effect"] != "PreferNoSchedule" and not tolerates(pod, taint):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    return ""


def _matches(
    expressions: Iterable[Mapping[str, Any]], labels: Mapping[str, str]
) -> bool:
    for one in expressions:
        value, values = labels.get(one["key"]), one.get("values") or ()
        match one["operator"]:
            case "In" if value not in values:
                return False
            case "NotIn" if value in values:
                return False
            case "Exists" if value is None:
                return False
            case "DoesNotExist" if value is not None:
                return False
    return True


def _lacking(
    wanted: Mapping[str, float], has: Mapping[str, float], used: Mapping[str, float]
) -> list[str]:
    return [
        name
        for name, amount in wanted.items()
        # Of sums of fractions, a little is lost.
        if amount + used.get(name, 0) > has.get(name, 0) + 1e-9
    ]


def _victims(pod: _Item, wanted: Mapping[str, float], place: Place) -> list[Load]:
    """Returns whom to remove from a node to make room, those of low priority first."""
    priority = pod["spec"].get("priority", 0)
    lower = [one for one in place.loads.values() if one.priority < priority]
    used, found = dict(place.used), []
    for one in sorted(lower, key=lambda load: (load.priority, not load.is_ending)):
        found.append(one)
        for name, amount in one.requests.items():
            used[name] = used.get(name, 0) - amount
        if not _lacking(wanted, place.allocatable, used):
            return found
    return []
