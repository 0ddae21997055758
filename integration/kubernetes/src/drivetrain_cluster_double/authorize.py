"""Who may do what, as the roles of the cluster say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drivetrain_cluster_double.errors import forbidden
from drivetrain_cluster_double.routes import Call
from drivetrain_cluster_double.store import Store

_GROUP = "rbac.authorization.k8s.io"
_Rule = dict[str, Any]


ADMIN = "system:masters"
"""Who may do everything."""


def service_account(namespace: str, name: str) -> str:
    """Returns the user that a service account is."""
    return f"system:serviceaccount:{namespace}:{name}"


def _rules_of(store: Store, user: str, namespace: str) -> Iterator[_Rule]:
    """Yields the rules of the roles that a user has in a namespace, or everywhere."""
    places = [("", "clusterrolebindings")]
    places += [(namespace, "rolebindings")] if namespace else []
    for where, plural in places:
        for key, row in store.table((_GROUP, plural)).rows.items():
            subjects = row.item.get("subjects") or ()
            names = {
                service_account(s.get("namespace", where), s["name"]) for s in subjects
            }
            if key.namespace == where and user in names:
                reference = row.item["roleRef"]
                is_role = reference["kind"] == "Role"
                roles = store.table((_GROUP, "roles" if is_role else "clusterroles"))
                name = (where if is_role else "", reference["name"])
                for role in (r.item for k, r in roles.rows.items() if k == name):
                    yield from role.get("rules") or ()


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
    names, resources = rule.get("resourceNames"), {"*", call.target}
    if call.subresource:
        resources.add(f"*/{call.subresource}")
    return (
        not {"*", call.verb}.isdisjoint(rule.get("verbs") or ())
        and not {"*", call.group}.isdisjoint(rule.get("apiGroups") or ())
        and not resources.isdisjoint(rule.get("resources") or ())
        and (not names or call.name in names)
    )


def check_allowed(store: Store, user: str, call: Call) -> None:
    """Refuses a call that the roles do not allow.

    Raises:
        StatusError: They do not.
    """
    if user == ADMIN:
        return
    with store.lock:
        if any(allows(rule, call) for rule in _rules_of(store, user, call.namespace)):
            return
    where = f'in the namespace "{call.namespace}"'
    why = (
        f'User "{user}" cannot {call.verb} resource "{call.target}" in API group '
        f'"{call.group}" {where if call.namespace else "at the cluster scope"}'
    )
    raise forbidden(call.group, call.target, call.name, why)
