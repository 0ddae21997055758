#!/bin/sh
# Tries the operator on a real cluster: a job is made, scaled, loses a pod, and is deleted.
#
#   deploy/smoke.sh IMAGE
#
# IMAGE has Python and `pip install "drivetrain-cloud[kubernetes]"`; it is run by the
# operator and by the pods of the job. kubectl must be able to make CustomResourceDefinitions.
# With OPERATOR_RUNS=1 the operator is not installed: one that runs already is tried.
# What it makes in the cluster stays if it fails, for people to look at.
set -eu

image=${1:?usage: smoke.sh IMAGE}
job=drivetrain-smoke
limit=300

told() {
    kubectl get elasticjob "$job" -o "jsonpath={.status.$1}"
}

until_true() {
    what=$1
    shift
    left=$limit
    until "$@"; do
        left=$((left - 1))
        if [ "$left" -le 0 ]; then
            echo "it did not come: $what" >&2
            kubectl get elasticjob,pod,event -l "drivetrain.dev/job=$job" >&2 || true
            kubectl get elasticjob "$job" -o yaml >&2 || true
            exit 1
        fi
        sleep 1
    done
    echo "ok: $what"
}

is_ready() {
    [ "$(told readyReplicas)" = "$1" ] && [ "$(told phase)" = Running ]
}

is_replaced() {
    ! kubectl get pod "$1" >/dev/null 2>&1 && is_ready 3
}

is_gone() {
    [ -z "$(kubectl get pod,secret,service -l "drivetrain.dev/job=$job" -o name)" ]
}

if [ -z "${OPERATOR_RUNS:-}" ]; then
    drivetrain-cloud operator --definitions --manifests |
        sed "s|image: drivetrain-operator$|image: $image|" | kubectl apply -f -
    kubectl rollout status -n drivetrain-system deployment/drivetrain-operator \
        --timeout "${limit}s"
fi

kubectl apply -f - <<END
apiVersion: drivetrain.dev/v1alpha1
kind: ElasticJob
metadata: {name: $job}
spec:
  replicas: 2
  template:
    spec:
      containers:
        - name: worker
          image: $image
          command:
            - python
            - -m
            - drivetrain_cloud.kubernetes.agent
            - -m
            - drivetrain_elastic.examples.byte_lm
            - --steps=100000
            - --pause-s=0.2
          resources: {requests: {cpu: 500m, memory: 1Gi}}
END
until_true "two workers train" is_ready 2
kubectl scale elasticjob "$job" --replicas 3
until_true "three workers train" is_ready 3
kubectl delete pod "$job-worker-0" --wait=false
until_true "another one takes the place of a worker" is_replaced "$job-worker-0"
kubectl scale elasticjob "$job" --replicas 2
until_true "two workers train" is_ready 2
kubectl delete elasticjob "$job" --timeout "${limit}s"
until_true "nothing of the job is left" is_gone
echo "all of it is as it should be"
