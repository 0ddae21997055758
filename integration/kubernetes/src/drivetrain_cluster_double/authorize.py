"""Who may do what, as the roles of the cluster say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cluster_double.errors import StatusError, forbidden

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from drivetrain_cluster_double.routes import Call
    from drivetrain_cluster_double.store import Store

__all__ = ["ADMIN", "User", "allows", "refusal", "rules_of", "service_account"]

_GROUP = "rbac.authorization.k8s.io"
_MASTERS = "system:masters"
_Rule = dict[str, Any]


class User(NamedTuple):
    """Who calls.

    Attributes:
        name: Who it is.
        groups: Of which groups.
    """

    name: str
    groups: tuple[str, ...] = ()


ADMIN = User("admin", (_MASTERS, "system:authenticated"))
"""Who may do everything."""


def service_account(namespace: str, name: str) -> User:
    """Returns the user that a service account is."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
    user = f"system:serviceaccount:{namespace}:{name}"
    return User(user, (*groups, "system:authenticated"))


def rules_of(store: Store, user: User, namespace: str) -> Iterator[_Rule]:
    """Yields the rules of the roles that a user has.

    Args:
        store: Of the cluster.
        user: Who.
        namespace: Where; empty for the whole cluster.
    """
    if _MASTERS in user.groups:
        yield {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    for row in store.table((_GROUP, "clusterrolebindings")).rows.values():
        if _binds(row.item, user):
            yield from _role_rules(store, row.item["roleRef"], "")
    if not namespace:
        return
    for key, row in store.table((_GROUP, "rolebindings")).rows.items():
        if key.namespace == namespace and _binds(row.item, user, namespace):
            yield from _role_rules(store, row.item["roleRef"], namespace)


def _binds(binding: Mapping[str, Any], user: User, namespace: str = "") -> bool:
    for subject in binding.get("subjects") or ():
        match subject["kind"]:
            case "User" if subject["name"] == user.name:
                return True
            case "Group" if subject["name"] in user.groups:
                return True
            case "ServiceAccount":
                where = subject.get("namespace", namespace)
                if service_account(where, subject["name"]).name == user.name:
                    return True
    return False


def _role_rules(
    store: Store, reference: Mapping[str, Any], namespace: str
) -> Iterator[_Rule]:
    is_cluster = reference["kind"] == "ClusterRole"
    table = store.table((_GROUP, "clusterroles" if is_cluster else "roles"))
    for key, row in table.rows.items():
        if key.name == reference["name"] and (is_cluster or key.namespace == namespace):
            yield from row.item.get("rules") or ()


def allows(rule: _Rule, call: Call) -> bool:
    """Whether a rule allows a call.

    Example:
        >>> from drivetrain_cluster_double.routes import Call
        >>> rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}
        >>> allows(rule, Call("list", "", "v1", "pods"))
        True
        >>> allows(rule, Call("create", "", "v1", "pods", subresource="eviction"))
        False
    """
    names = rule.get("resourceNames")
    resources = rule.get("resources") or ()
    return (
        not {"*", call.verb}.isdisjoint(rule.get("verbs") or ())
        and not {"*", call.group}.isdisjoint(rule.get("apiGroups") or ())
        and (
            not {"*", call.target}.isdisjoint(resources)
            or (bool(call.subresource) and f"*/{call.subresource}" in resources)
        )
        and (not names or call.name in names)
    )


def refusal(store: Store, user: User, call: Call) -> StatusError | None:
    """Returns why a user may not do something, or None."""
    if _MASTERS in user.groups:
        return None
    with store.lock:
        if any(allows(rule, call) for rule in rules_of(store, user, call.namespace)):
            return None
    where = f'in the namespace "{call.namespace}"'
    where = where if call.namespace else "at the cluster scope"
    why = (
        f'User "{user.name}" cannot {call.verb} resource "{call.target}" in API group '
        f'"{call.group}" {where}'
    )
    return forbidden(call.group, call.target, call.name, why)
