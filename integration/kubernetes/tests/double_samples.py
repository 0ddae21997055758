"""What tests of the double of a cluster share: a definition, objects, a pod."""

from __future__ import annotations

import contextlib
import copy
import http.client
import json
import ssl

from drivetrain_cluster_double import StatusError

GROUP, PLURAL = "test.drivetrain.dev", "widgets"

DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{PLURAL}.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {
            "plural": PLURAL,
            "singular": "widget",
            "kind": "Widget",
            "listKind": "WidgetList",
            "shortNames": ["wd"],
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.replicas",
                        "statusReplicasPath": ".status.replicas",
                        "labelSelectorPath": ".status.selector",
                    },
                },
                "additionalPrinterColumns": [
                    {
                        "name": "Replicas",
                        "type": "integer",
                        "jsonPath": ".spec.replicas",
                    }
                ],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["replicas"],
                                "x-kubernetes-validations": [
                                    {
                                        "rule": "self.replicas <= self.maxReplicas",
                                        "message": "replicas exceed maxReplicas",
                                    },
                                    {
                                        "rule": "self.mode == oldSelf.mode",
                                        "message": "mode never changes",
                                    },
                                ],
                                "properties": {
                                    "replicas": {"type": "integer", "minimum": 0},
                                    "maxReplicas": {"type": "integer", "default": 8},
                                    "mode": {
                                        "type": "string",
                                        "enum": ["Wait", "Resize"],
                                        "default": "Wait",
                                    },
                                    "title": {"type": "string", "pattern": "^[a-z]*$"},
                                    "port": {"x-kubernetes-int-or-string": True},
                                    "steps": {
                                        "type": "array",
                                        "x-kubernetes-list-type": "map",
                                        "x-kubernetes-list-map-keys": ["name"],
                                        "items": {
                                            "type": "object",
                                            "required": ["name"],
                                            "properties": {
                                                "name": {"type": "string"},
                                                "size": {"type": "integer"},
                                            },
                                        },
                                    },
                                    "free": {
                                        "type": "object",
                                        "x-kubernetes-preserve-unknown-fields": True,
                                    },
                                },
                            },
                            "status": {
                                "type": "object",
                                "properties": {
                                    "replicas": {"type": "integer"},
                                    "selector": {"type": "string"},
                                    "seen": {"type": "string"},
                                },
                                "x-kubernetes-preserve-unknown-fields": True,
                            },
                        },
                    }
                },
            }
        ],
    },
}


def definition():
    """Returns the definition, to change."""
    return copy.deepcopy(DEFINITION)


def widget(name="a", **spec):
    """Returns an object of the definition."""
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": {"replicas": 1, **spec},
    }


def pod(name="p", command=("sleep", "100"), *, cpu=None, **spec):
    """Returns a pod."""
    container = {"name": "main", "image": "none", "command": list(command)}
    if cpu is not None:
        container["resources"] = {"requests": {"cpu": cpu}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }


class RawClient:
    """Speaks HTTP with an API server, and knows nothing of Kubernetes."""

    def __init__(self, cluster, token=None):
        self.token = token or cluster.token
        self.host = cluster.url.removeprefix("https://")
        self.context = ssl.create_default_context(cafile=str(cluster.ca_file))

    def open(self, method, path, body=None, accept="application/json", **headers):
        """Sends a request; returns the connection and the response."""
        line = http.client.HTTPSConnection(self.host, context=self.context, timeout=60)
        headers = {key.replace("_", "-"): value for key, value in headers.items()}
        headers |= {"Authorization": f"Bearer {self.token}", "Accept": accept}
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        line.request(method, path, data, headers)
        return line, line.getresponse()

    def call(self, method, path, body=None, patch=None, **headers):
        """Sends a request; returns the status and what came."""
        if patch:
            headers["Content_Type"] = f"application/{patch}"
        line, response = self.open(method, path, body, **headers)
        with contextlib.closing(line):
            text = response.read()
            return response.status, json.loads(text)

    @contextlib.contextmanager
    def watch(self, path, query=""):
        """Begins a watch; yields its events as they come."""
        line, response = self.open("GET", f"{path}?watch=true&{query}")
        with contextlib.closing(line), contextlib.closing(response):
            assert response.status == 200, response.read()
            yield (json.loads(text) for text in iter(response.readline, b""))


WIDGETS = f"/apis/{GROUP}/v1/namespaces/default/{PLURAL}"
PODS = "/api/v1/namespaces/default/pods"
CONFIGS = "/api/v1/namespaces/default/configmaps"


def config(name, **labels):
    """Returns a ConfigMap."""
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def clean_up(cluster):
    """Deletes what a test has made, whatever holds it."""
    for named in [one for one in cluster.api.catalog if one.name in _MADE]:
        kind = named.name
        for item in cluster.list(kind, "default"):
            name = item["metadata"]["name"]
            with contextlib.suppress(StatusError):
                cluster.api.change(named, "default", name, _without_finalizers)
                cluster.delete(kind, name)
    cluster.wait_for(lambda: not cluster.list("Pod"))


_MADE = {"Widget", "Pod", "ConfigMap", "Lease", "Event", "Role", "RoleBinding"}


def _without_finalizers(item):
    metadata = {k: v for k, v in item["metadata"].items() if k != "finalizers"}
    return {**item, "metadata": metadata}
