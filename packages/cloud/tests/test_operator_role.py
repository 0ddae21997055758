"""The operator's role allows what it needs, and nothing else."""

from __future__ import annotations

import pytest
from drivetrain_cluster_double import ClusterDouble, Fault
from operator_samples import (
    FakeTraining,
    RunningOperator,
    account,
    definitions,
    elastic_job,
    live,
    manifests,
    pods_of,
    status,
)

pytestmark = pytest.mark.extra

POD_GROUPS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: podgroups.scheduling.volcano.sh}
spec:
  group: scheduling.volcano.sh
  scope: Namespaced
  names: {kind: PodGroup, plural: podgroups, singular: podgroup}
  versions:
    - name: v1beta1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          x-kubernetes-preserve-unknown-fields: true
"""
# Asked for by an admission plugin when an owner is set that blocks deletion, not by calls.
OF_ADMISSION = ("drivetrain.dev", "elasticjobs/finalizers", "update")


def permissions():
    return {
        (group, resource, verb)
        for role in manifests()
        if role["kind"] == "ClusterRole"
        and role["metadata"]["name"] == "drivetrain-operator"
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def address_of_service(cluster):
    service = cluster.get("Service", "job-master") or {"spec": {}}
    return service["spec"].get("clusterIP")


def test_role_allows_what_the_operator_does_and_nothing_else():
    used = set()

    def record(call):
        if call.user_agent.startswith("drivetrain-operator"):
            used.add((call.group, call.target, call.verb))

    with ClusterDouble(nodes=2, run="simulated") as cluster:
        cluster.apply(definitions())
        cluster.apply(manifests())
        cluster.apply(POD_GROUPS)
        cluster.faults.hook = record
        # An answer that is lost makes it ask what has become of the call.
        for resource in ("pods", "services", "secrets", "podgroups"):
            cluster.faults.add(
                Fault(verb="create", resource=resource, status=500, when="after")
            )
        for resource in ("pods", "elasticjobs"):
            cluster.faults.add(Fault(verb="delete", resource=resource, status=409))
        policy = {"ttlSecondsAfterFinished": 0}
        gang = {"gang": "Volcano", "queueName": "q"}
        with RunningOperator(
            account(cluster), connect=FakeTraining(cluster)
        ) as running:
            cluster.apply(elastic_job(replicas=3, runPolicy=policy))
            cluster.wait_for(lambda: status(cluster).get("phase") == "Running")
        address = cluster.get("Service", "job-master")["spec"]["clusterIP"]
        cluster.delete("Service", "job-master")
        with RunningOperator(
            account(cluster), connect=FakeTraining(cluster)
        ) as running:
            # Pods know no other address than that of the one that was deleted.
            cluster.wait_for(lambda: address_of_service(cluster) == address)
            cluster.apply(elastic_job("gang", replicas=2, runPolicy=gang))
            cluster.wait_for(lambda: len(live(pods_of(cluster, "gang"))) == 2)
            # Its scheduler is not here.
            assert cluster.get("PodGroup", "gang")["spec"] == {
                "minMember": 1,
                "minResources": {"cpu": "1"},
                "queue": "q",
            }
            for pod in pods_of(cluster, "gang"):
                assert pod["spec"]["schedulerName"] == "volcano"
                group = pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"]
                assert group == "gang"
            # Somebody changes it: with the next pods it says again what the job does.
            wrong = cluster.get("PodGroup", "gang")
            wrong["spec"]["minMember"] = 9
            cluster.apply(wrong)
            cluster.apply(elastic_job("gang", replicas=3, runPolicy=gang))
            cluster.wait_for(lambda: len(live(pods_of(cluster, "gang"))) == 3)
            assert cluster.get("PodGroup", "gang")["spec"]["minMember"] == 1
            cluster.delete("ElasticJob", "gang")
            cluster.apply(elastic_job(replicas=2, runPolicy=policy))
            cluster.wait_for(lambda: len(live(pods_of(cluster))) == 2)
            for pod in live(pods_of(cluster)):
                cluster.finish(pod["metadata"]["name"], "default", exit_code=0)
            cluster.wait_for(lambda: not cluster.list("ElasticJob"))
            assert running.error is None
    assert used == permissions() - {OF_ADMISSION}


def test_operator_that_may_not_do_something_says_so():
    with ClusterDouble(nodes=1, run="simulated") as cluster:
        cluster.apply(definitions())
        items = manifests()
        for role in items:
            if role["kind"] == "ClusterRole":
                for rule in role["rules"]:
                    if rule["resources"] == ["services"]:
                        rule["verbs"].remove("create")
        cluster.apply(items)
        said = lambda: [
            one["message"]
            for one in cluster.list("Event")
            if one["reason"] == "CannotReconcile"
        ]
        with RunningOperator(account(cluster)):
            cluster.apply(elastic_job(replicas=1))
            cluster.wait_for(said)
        assert 'cannot create resource "services"' in said()[0]
        assert not cluster.list("Pod")
