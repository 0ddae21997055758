"""Schemas of the kinds that come with the server, as far as they matter here.

They are structural schemas, as those of custom resources, which say also how lists merge.
What they do not name is kept as it is.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "DATA",
    "DEFINITION",
    "DEPLOYMENT",
    "DISRUPTION_BUDGET",
    "EVENT",
    "LEASE",
    "METADATA",
    "NAMESPACE",
    "NODE",
    "OBJECT",
    "POD",
    "POD_SPEC",
    "PRIORITY_CLASS",
    "ROLE",
    "ROLE_BINDING",
    "SERVICE",
]

_Schema = dict[str, Any]

_OPEN: _Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_TEXT: _Schema = {"type": "string"}
_FLAG: _Schema = {"type": "boolean"}
_COUNT: _Schema = {"type": "integer", "format": "int32"}
_QUANTITY: _Schema = {
    "x-kubernetes-int-or-string": True,
    "pattern": r"^[+-]?(\d+|\d+\.\d*|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?$",
}
_TEXTS: _Schema = {"type": "array", "items": _TEXT}
_LABELS: _Schema = {"type": "object", "additionalProperties": _TEXT}


def _of(required: tuple[str, ...] = (), **properties: _Schema) -> _Schema:
    found: _Schema = {**_OPEN, "properties": properties}
    if required:
        found["required"] = list(required)
    return found


def _keyed(items: _Schema, *keys: str, merge: str = "", least: int = 0) -> _Schema:
    found: _Schema = {
        "type": "array",
        "items": items,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": list(keys),
        "x-strategic-key": merge or keys[0],
    }
    return {**found, "minItems": least} if least else found


def _one_of(*values: str, default: str | None = None) -> _Schema:
    found: _Schema = {"type": "string", "enum": list(values)}
    return found if default is None else {**found, "default": default}


METADATA: _Schema = _of(
    labels=_LABELS,
    annotations=_LABELS,
    finalizers={
        "type": "array",
        "items": _TEXT,
        "x-kubernetes-list-type": "set",
        "x-strategic-key": "",
    },
    ownerReferences=_keyed(
        _of(
            ("apiVersion", "kind", "name", "uid"),
            apiVersion=_TEXT,
            kind=_TEXT,
            name=_TEXT,
            uid=_TEXT,
            controller=_FLAG,
            blockOwnerDeletion=_FLAG,
        ),
        "uid",
    ),
)
"""Of the metadata of all kinds."""

_CONDITIONS = _keyed(_of(("type",), type=_TEXT, status=_TEXT), "type")

OBJECT: _Schema = _of(metadata=METADATA, status=_of(conditions=_CONDITIONS))
"""Of kinds about which nothing more is said."""

_ENV = _keyed(
    _of(
        ("name",),
        name={**_TEXT, "minLength": 1},
        value=_TEXT,
        valueFrom=_of(
            fieldRef=_of(("fieldPath",), fieldPath=_TEXT),
            configMapKeyRef=_of(("key",), name=_TEXT, key=_TEXT),
            secretKeyRef=_of(("key",), name=_TEXT, key=_TEXT),
        ),
    ),
    "name",
)
_RESOURCES = _of(
    limits={"type": "object", "additionalProperties": _QUANTITY},
    requests={"type": "object", "additionalProperties": _QUANTITY},
)
_NAME: _Schema = {
    **_TEXT,
    "maxLength": 63,
    "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
}
_PORT: _Schema = {**_COUNT, "minimum": 1, "maximum": 65535}
_CONTAINER = _of(
    ("name",),
    name=_NAME,
    image=_TEXT,
    command=_TEXTS,
    args=_TEXTS,
    workingDir=_TEXT,
    env=_ENV,
    ports=_keyed(
        _of(
            ("containerPort",),
            containerPort=_PORT,
            protocol=_one_of("TCP", "UDP", "SCTP", default="TCP"),
        ),
        "containerPort",
        "protocol",
    ),
    resources=_RESOURCES,
    volumeMounts=_keyed(
        _of(("mountPath", "name"), mountPath=_TEXT, name=_TEXT), "mountPath"
    ),
    imagePullPolicy=_one_of("Always", "IfNotPresent", "Never", default="IfNotPresent"),
    terminationMessagePath={**_TEXT, "default": "/dev/termination-log"},
    terminationMessagePolicy=_one_of("File", "FallbackToLogsOnError", default="File"),
)
_TOLERATION = _of(
    key=_TEXT,
    operator=_one_of("Exists", "Equal"),
    value=_TEXT,
    effect=_one_of("", "NoSchedule", "PreferNoSchedule", "NoExecute"),
    tolerationSeconds={"type": "integer"},
)
_CONTAINERS = _keyed(_CONTAINER, "name")

POD_SPEC: _Schema = _of(
    ("containers",),
    containers={**_CONTAINERS, "minItems": 1},
    initContainers=_CONTAINERS,
    volumes=_keyed(_of(("name",), name=_NAME), "name"),
    restartPolicy=_one_of("Always", "OnFailure", "Never", default="Always"),
    terminationGracePeriodSeconds={"type": "integer", "minimum": 0, "default": 30},
    activeDeadlineSeconds={"type": "integer", "minimum": 1},
    dnsPolicy={**_TEXT, "default": "ClusterFirst"},
    schedulerName={**_TEXT, "default": "default-scheduler"},
    serviceAccountName={**_TEXT, "default": "default"},
    securityContext={**_OPEN, "default": {}},
    enableServiceLinks={**_FLAG, "default": True},
    nodeSelector=_LABELS,
    nodeName=_TEXT,
    hostname=_NAME,
    subdomain=_NAME,
    priority=_COUNT,
    priorityClassName=_TEXT,
    tolerations={"type": "array", "items": _TOLERATION},
    imagePullSecrets=_keyed(_of(name=_TEXT), "name"),
)
"""Of the spec of a pod, also in a template."""

_ADDRESSES = _keyed(_of(("type", "address")), "type")

POD: _Schema = _of(
    ("spec",),
    metadata=METADATA,
    spec=POD_SPEC,
    status=_of(
        conditions=_CONDITIONS,
        podIPs=_keyed(_of(ip=_TEXT), "ip"),
        phase=_one_of("", "Pending", "Running", "Succeeded", "Failed", "Unknown"),
    ),
)
"""Of pods."""

NODE: _Schema = _of(
    metadata=METADATA,
    spec=_of(
        taints={
            "type": "array",
            "items": _of(
                ("key", "effect"),
                effect=_one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
            ),
        },
        unschedulable=_FLAG,
    ),
    status=_of(
        conditions=_CONDITIONS,
        addresses=_ADDRESSES,
        capacity={"type": "object", "additionalProperties": _QUANTITY},
        allocatable={"type": "object", "additionalProperties": _QUANTITY},
    ),
)
"""Of nodes."""

SERVICE: _Schema = _of(
    metadata=METADATA,
    spec=_of(
        type=_one_of(
            "ClusterIP", "NodePort", "LoadBalancer", "ExternalName", default="ClusterIP"
        ),
        selector=_LABELS,
        sessionAffinity=_one_of("None", "ClientIP", default="None"),
        ports=_keyed(
            _of(
                ("port",),
                port=_PORT,
                protocol=_one_of("TCP", "UDP", "SCTP", default="TCP"),
                targetPort={"x-kubernetes-int-or-string": True},
            ),
            "port",
            "protocol",
        ),
    ),
    status=_of(conditions=_CONDITIONS),
)
"""Of services."""

_SELECTOR = _of(
    matchLabels=_LABELS,
    matchExpressions={
        "type": "array",
        "items": _of(
            ("key", "operator"),
            key=_TEXT,
            operator=_one_of("In", "NotIn", "Exists", "DoesNotExist"),
            values=_TEXTS,
        ),
    },
)

DEPLOYMENT: _Schema = _of(
    metadata=METADATA,
    spec=_of(
        ("selector", "template"),
        replicas={**_COUNT, "minimum": 0, "default": 1},
        selector=_SELECTOR,
        template=_of(metadata=METADATA, spec=POD_SPEC),
    ),
    status=_of(conditions=_CONDITIONS),
)
"""Of deployments."""

DISRUPTION_BUDGET: _Schema = _of(
    metadata=METADATA,
    spec=_of(
        minAvailable={"x-kubernetes-int-or-string": True},
        maxUnavailable={"x-kubernetes-int-or-string": True},
        selector=_SELECTOR,
    ),
    status=_of(conditions=_CONDITIONS),
)
"""Of budgets of disruptions."""

_VERSION = _of(
    ("name", "served", "storage"),
    name=_NAME,
    served=_FLAG,
    storage=_FLAG,
    schema=_of(openAPIV3Schema=_OPEN),
    subresources=_of(
        status=_OPEN,
        scale=_of(
            ("specReplicasPath", "statusReplicasPath"),
            specReplicasPath=_TEXT,
            statusReplicasPath=_TEXT,
            labelSelectorPath=_TEXT,
        ),
    ),
    additionalPrinterColumns={
        "type": "array",
        "items": _of(
            ("name", "type", "jsonPath"),
            name=_TEXT,
            type=_TEXT,
            jsonPath=_TEXT,
            priority=_COUNT,
        ),
    },
    selectableFields={
        "type": "array",
        "items": _of(("jsonPath",), jsonPath=_TEXT),
    },
)

DEFINITION: _Schema = _of(
    ("spec",),
    metadata=METADATA,
    spec=_of(
        ("group", "names", "scope", "versions"),
        group=_TEXT,
        scope=_one_of("Namespaced", "Cluster"),
        names=_of(
            ("kind", "plural"),
            kind=_TEXT,
            plural=_NAME,
            singular=_TEXT,
            shortNames=_TEXTS,
            categories=_TEXTS,
        ),
        versions={"type": "array", "items": _VERSION, "minItems": 1},
    ),
    status=_of(conditions=_CONDITIONS),
)
"""Of definitions of custom resources."""

ROLE: _Schema = _of(
    metadata=METADATA,
    rules={
        "type": "array",
        "items": _of(
            ("verbs",),
            apiGroups=_TEXTS,
            resources=_TEXTS,
            resourceNames=_TEXTS,
            verbs=_TEXTS,
        ),
    },
)
"""Of roles."""

ROLE_BINDING: _Schema = _of(
    ("roleRef",),
    metadata=METADATA,
    subjects={
        "type": "array",
        "items": _of(("kind", "name"), kind=_TEXT, name=_TEXT, namespace=_TEXT),
    },
    roleRef=_of(
        ("kind", "name"),
        kind=_one_of("Role", "ClusterRole"),
        name=_TEXT,
        apiGroup=_TEXT,
    ),
)
"""Of bindings of roles."""

PRIORITY_CLASS: _Schema = _of(("value",), metadata=METADATA, value=_COUNT)
"""Of classes of priority."""

DATA: _Schema = _of(metadata=METADATA, data=_LABELS, stringData=_LABELS)
"""Of what is kept for others: ConfigMaps and Secrets."""

EVENT: _Schema = _of(
    metadata=METADATA,
    involvedObject=_of(name=_TEXT, uid=_TEXT, kind=_TEXT),
    regarding=_of(name=_TEXT, uid=_TEXT, kind=_TEXT),
)
"""Of events."""

LEASE: _Schema = _of(
    metadata=METADATA,
    spec=_of(holderIdentity=_TEXT, leaseDurationSeconds={**_COUNT, "minimum": 1}),
)
"""Of leases."""

NAMESPACE: _Schema = _of(
    metadata=METADATA, spec=_of(finalizers=_TEXTS), status=_of(phase=_TEXT)
)
"""Of namespaces."""
