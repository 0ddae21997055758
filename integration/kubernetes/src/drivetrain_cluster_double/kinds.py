"""The kinds of objects that are served: their names, versions, and what is special."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cluster_double.shapes import (
    DATA,
    DEFINITION,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    EVENT,
    LEASE,
    NAMESPACE,
    NODE,
    OBJECT,
    POD,
    PRIORITY_CLASS,
    ROLE,
    ROLE_BINDING,
    SERVICE,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BUILTIN", "Column", "Kind", "ScalePaths", "TableName"]

TableName = tuple[str, str]
"""Where the objects of a kind lie: its group, and its plural."""

_NAMES = frozenset({"metadata.name", "metadata.namespace"})


class Column(NamedTuple):
    """One column of what `kubectl get` prints.

    Attributes:
        name: Its heading.
        type: Of OpenAPI: `string`, `integer`, `date` ...
        path: Where the value is, as `.spec.replicas`.
        priority: Above 0 it is shown only with `-o wide`.
    """

    name: str
    type: str
    path: str
    priority: int = 0


class ScalePaths(NamedTuple):
    """Where a kind keeps what its `/scale` tells, as `.spec.replicas`."""

    spec_replicas: str
    status_replicas: str
    selector: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of objects.

    Args:
        name: As in `kind:` of an object.
        plural: As in paths.
        group: Empty for the core.
        versions: That are served, the one in which objects are kept first.
        is_namespaced: Whether its objects lie in namespaces.
        short_names: That kubectl knows it by.
        categories: Groups of kinds for kubectl, as `all`.
        has_status: Whether `/status` is a resource of its own.
        has_generation: Whether changes of the spec are counted.
        needs_version: Whether an update must say which version it changes.
        fields: That can be selected.
        scale: Set if it has `/scale`.
        schemas: Of each version.
        columns: Of each version, for kubectl.
        table: Where its objects lie; another kind's, if they are the same objects.
        is_custom: Whether somebody has defined it.
        keeps_unknown: Versions whose unknown fields are kept.
    """

    name: str
    plural: str
    group: str = ""
    versions: tuple[str, ...] = ("v1",)
    is_namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    has_status: bool = False
    has_generation: bool = False
    needs_version: bool = False
    fields: frozenset[str] = _NAMES
    scale: Mapping[str, ScalePaths] = field(default_factory=dict)
    schemas: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    columns: Mapping[str, tuple[Column, ...]] = field(default_factory=dict)
    table: TableName = ("", "")
    singular: str = ""
    is_custom: bool = False
    keeps_unknown: bool = True

    def __post_init__(self) -> None:
        """Fills in what follows from the rest."""
        if not self.table[1]:
            object.__setattr__(self, "table", (self.group, self.plural))
        if not self.singular:
            object.__setattr__(self, "singular", self.name.lower())

    def api_version(self, version: str = "") -> str:
        """Returns the `apiVersion` of its objects, of the kept version by default."""
        version = version or self.versions[0]
        return f"{self.group}/{version}" if self.group else version

    def schema(self, version: str = "") -> dict[str, Any]:
        """Returns the schema of a version; one that allows all if there is none."""
        return self.schemas.get(version or self.versions[0], OBJECT)


def _kind(
    name: str,
    plural: str,
    group: str = "",
    *,
    shape: dict[str, Any] = OBJECT,
    columns: tuple[Column, ...] = (),
    fields: tuple[str, ...] = (),
    scale: ScalePaths | None = None,
    version: str = "v1",
    **rest: Any,
) -> Kind:
    return Kind(
        name=name,
        plural=plural,
        group=group,
        versions=(version,),
        schemas={version: shape},
        columns={version: columns} if columns else {},
        fields=_NAMES | set(fields),
        scale={version: scale} if scale else {},
        **rest,
    )


_RBAC = "rbac.authorization.k8s.io"
_AGE = Column("Age", "date", ".metadata.creationTimestamp")
_INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "fieldPath")

BUILTIN: tuple[Kind, ...] = (
    _kind(
        "Pod",
        "pods",
        shape=POD,
        short_names=("po",),
        categories=("all",),
        has_status=True,
        has_generation=True,
        fields=(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ),
        columns=(
            Column("Ready", "string", "@ready"),
            Column("Status", "string", "@status"),
            Column("Restarts", "string", "@restarts"),
            _AGE,
            Column("IP", "string", ".status.podIP", 1),
            Column("Node", "string", ".spec.nodeName", 1),
        ),
    ),
    _kind(
        "Node",
        "nodes",
        shape=NODE,
        is_namespaced=False,
        short_names=("no",),
        has_status=True,
        fields=("spec.unschedulable",),
        columns=(
            Column("Status", "string", "@node"),
            _AGE,
            Column("Version", "string", ".status.nodeInfo.kubeletVersion"),
        ),
    ),
    _kind(
        "Service",
        "services",
        shape=SERVICE,
        short_names=("svc",),
        categories=("all",),
        has_status=True,
        fields=("spec.clusterIP", "spec.type"),
        columns=(
            Column("Type", "string", ".spec.type"),
            Column("Cluster-IP", "string", ".spec.clusterIP"),
            _AGE,
        ),
    ),
    _kind("ConfigMap", "configmaps", shape=DATA, short_names=("cm",)),
    _kind("Secret", "secrets", shape=DATA, fields=("type",)),
    _kind(
        "Event",
        "events",
        shape=EVENT,
        short_names=("ev",),
        fields=(
            *(f"involvedObject.{name}" for name in _INVOLVED),
            *("reason", "source", "type", "reportingComponent"),
        ),
        columns=(
            Column("Type", "string", ".type"),
            Column("Reason", "string", ".reason"),
            Column("Object", "string", "@involved"),
            Column("Message", "string", ".message"),
        ),
    ),
    _kind(
        "Event",
        "events",
        "events.k8s.io",
        shape=EVENT,
        short_names=("ev",),
        table=("", "events"),
        fields=(
            *(f"regarding.{name}" for name in _INVOLVED),
            *("reason", "type", "reportingController"),
        ),
    ),
    _kind(
        "Namespace",
        "namespaces",
        shape=NAMESPACE,
        is_namespaced=False,
        short_names=("ns",),
        has_status=True,
        fields=("status.phase",),
        columns=(Column("Status", "string", ".status.phase"), _AGE),
    ),
    _kind("ServiceAccount", "serviceaccounts", short_names=("sa",)),
    _kind(
        "Lease",
        "leases",
        "coordination.k8s.io",
        shape=LEASE,
        needs_version=True,
        columns=(Column("Holder", "string", ".spec.holderIdentity"), _AGE),
    ),
    _kind("Role", "roles", _RBAC, shape=ROLE),
    _kind("RoleBinding", "rolebindings", _RBAC, shape=ROLE_BINDING),
    _kind("ClusterRole", "clusterroles", _RBAC, shape=ROLE, is_namespaced=False),
    _kind(
        "ClusterRoleBinding",
        "clusterrolebindings",
        _RBAC,
        shape=ROLE_BINDING,
        is_namespaced=False,
    ),
    _kind(
        "PriorityClass",
        "priorityclasses",
        "scheduling.k8s.io",
        shape=PRIORITY_CLASS,
        is_namespaced=False,
        short_names=("pc",),
    ),
    _kind(
        "Deployment",
        "deployments",
        "apps",
        shape=DEPLOYMENT,
        short_names=("deploy",),
        categories=("all",),
        has_status=True,
        has_generation=True,
        scale=ScalePaths(".spec.replicas", ".status.replicas", "@matchLabels"),
    ),
    _kind(
        "PodDisruptionBudget",
        "poddisruptionbudgets",
        "policy",
        shape=DISRUPTION_BUDGET,
        short_names=("pdb",),
        has_status=True,
        has_generation=True,
    ),
    _kind(
        "CustomResourceDefinition",
        "customresourcedefinitions",
        "apiextensions.k8s.io",
        shape=DEFINITION,
        is_namespaced=False,
        short_names=("crd", "crds"),
        has_status=True,
        has_generation=True,
        needs_version=True,
        columns=(Column("Created At", "date", ".metadata.creationTimestamp"),),
    ),
)
"""What is served before anybody defines more."""
