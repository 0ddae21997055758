"""A manifest and a script that were written for Horovod train, and are scaled meanwhile."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import test_on_elastic
from drivetrain_cluster_double import ClusterDouble
from operator_samples import RunningOperator, account, of_the_double, status
from test_on_elastic import check_steps, expected, sizes_of
from test_training_controller import Both, phase, written
from training_samples import scaler, training_job

from drivetrain_cloud.kubernetes.job_connections import connect_master

pytestmark = [pytest.mark.extra, pytest.mark.faults]

SCRIPT = Path(test_on_elastic.__file__).with_name("horovod_story.py")


def test_training_job_is_scaled_and_loses_a_pod_while_its_script_trains(tmp_path):
    out = tmp_path / "steps.json"
    run = (
        "horovodrun -np 2 --min-np 1 --host-discovery-script /etc/edl/discover_hosts.sh"
    )
    program = f"{sys.executable} {SCRIPT} --out {out} --epochs 14 --pause-s 0.1"
    # Masters of other runs have left their journals on this machine.
    name = f"job-{os.getpid()}"
    selector = {"name": name}
    job = training_job(name, launch=f"{run} {program}", worker={"minReplicas": 1})
    with ClusterDouble(
        nodes=2, run="processes", folder=tmp_path / "cluster"
    ) as cluster:
        cluster.apply(of_the_double(written()))

        def step():
            told = status(cluster, name).get("trainerStatus") or {}
            return told.get("step", 0)

        def goes_on():
            at = step()
            cluster.wait_for(lambda: step() > at + 5, 60)

        options = {"connect": connect_master, "progress_s": 0.2}
        with RunningOperator(account(cluster), make=Both, **options):
            cluster.apply(job)
            phase(cluster, "TrainingJob", name, "Running")
            goes_on()
            cluster.apply(
                scaler("ScaleOut", "more", selector=selector, toAdd={"count": 1})
            )
            phase(cluster, "ScaleOut", "more", "ScaleSucceeded")
            # Its agent takes longer than its pod.
            joined = re.compile(rf"world \d+: {name}-worker-2/.* is new")
            cluster.wait_for(
                lambda: joined.search(cluster.logs(f"{name}-worker-2")), 60
            )
            goes_on()
            named = {"podNames": [f"{name}-worker-0"]}
            cluster.apply(scaler("ScaleIn", "less", selector=selector, toDelete=named))
            phase(cluster, "ScaleIn", "less", "ScaleSucceeded")
            goes_on()
            cluster.kill(f"{name}-worker-1")
            phase(cluster, "TrainingJob", name, "Succeeded", 90)
    steps = json.loads(out.read_text())["steps"]
    check_steps(steps, 14)
    assert sizes_of(steps)[:3] == [2, 3, 2]
    parameters = json.loads(out.read_text())["parameters"]
    assert parameters == pytest.approx(expected(steps), rel=1e-9)
