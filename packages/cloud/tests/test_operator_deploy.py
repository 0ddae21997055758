"""What installs the operator: manifests, a chart and a script say the same things."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from operator_samples import (
    FOLDER,
    RunningOperator,
    account,
    definitions,
    elastic_job,
    live,
    manifests,
    pods_of,
)

needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="there is no kubectl"
)
DEPLOY = Path(__file__).parents[1] / "deploy"
BASE = FOLDER / "manifests" / "base"


def documents(text):
    return {
        (one["kind"], one["metadata"]["name"]): one
        for one in yaml.safe_load_all(text)
        if one
    }


def base():
    names = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    files = [BASE / name for name in names if name.endswith(".yaml")]
    return documents("---\n".join(file.read_text() for file in files))


def chart(namespace="drivetrain-system", **changes):
    """Returns what the chart makes; its templates have nothing but values."""
    values = yaml.safe_load((DEPLOY / "chart" / "values.yaml").read_text())
    assert changes.keys() <= values.keys()
    known = {f".Values.{name}": value for name, value in (values | changes).items()}
    known[".Release.Namespace"] = namespace
    text = "---\n".join(
        file.read_text() for file in sorted(DEPLOY.glob("chart/templates/*.yaml"))
    )
    return documents(
        re.sub(r"\{\{ (\S+) \}\}", lambda match: str(known[match[1]]), text)
    )


def test_kustomizations_name_what_is_there():
    found = sorted(FOLDER.rglob("kustomization.yaml"))
    assert len(found) >= 3
    for file in found:
        for name in yaml.safe_load(file.read_text())["resources"]:
            target = file.parent / name
            assert target.is_file() or (target / "kustomization.yaml").is_file()


def test_chart_makes_what_the_manifests_do():
    wanted, made = base(), chart()
    # Helm makes the namespace.
    wanted.pop(("Namespace", "drivetrain-system"))
    assert made.keys() == wanted.keys()
    key = ("Deployment", "drivetrain-operator")
    containers = [
        one[key]["spec"]["template"]["spec"]["containers"][0] for one in (wanted, made)
    ]
    commands = [one.pop("command") for one in containers]
    assert made == wanted
    assert commands[1][: len(commands[0])] == commands[0]


def test_chart_follows_its_values():
    made = chart("elsewhere", image="mine:1", replicas=1, jobsNamespace="training")
    item = made["Deployment", "drivetrain-operator"]
    container = item["spec"]["template"]["spec"]["containers"][0]
    assert (item["metadata"]["namespace"], item["spec"]["replicas"]) == ("elsewhere", 1)
    assert container["image"] == "mine:1"
    assert "--namespace=training" in container["command"]
    binding = made["ClusterRoleBinding", "drivetrain-operator"]
    assert binding["subjects"][0]["namespace"] == "elsewhere"


def test_command_of_the_deployment_is_understood():
    import argparse

    from drivetrain_cloud.cli import populate_parser

    for made in (base(), chart()):
        item = made["Deployment", "drivetrain-operator"]
        command = item["spec"]["template"]["spec"]["containers"][0]["command"]
        assert command[0] == "drivetrain-cloud"
        parser = argparse.ArgumentParser()
        populate_parser(parser)
        assert parser.parse_args(command[1:]).leader_election


def test_definitions_of_the_chart_are_those_of_the_package():
    for file in DEPLOY.glob("chart/crds/*.yaml"):
        assert file.read_text() == (FOLDER / "crds" / file.name).read_text()


@needs_kubectl
@pytest.mark.extra
def test_kubectl_makes_the_same_of_kustomizations():
    def made(folder):
        command = ["kubectl", "kustomize", FOLDER / "manifests" / folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return documents(done.stdout)

    found = made("base")
    definition = ("CustomResourceDefinition", "elasticjobs.drivetrain.dev")
    assert found.pop(definition) == documents(definitions())[definition]
    assert found == base()
    found = made("overlays/namespaced")
    assert ("ClusterRoleBinding", "drivetrain-operator") not in found
    item = found["Deployment", "drivetrain-operator"]
    command = item["spec"]["template"]["spec"]["containers"][0]["command"]
    assert "--namespace=training" in command


def test_script_for_real_clusters_is_a_shell_script():
    subprocess.run(["sh", "-n", DEPLOY / "smoke.sh"], check=True)


@needs_kubectl
@pytest.mark.extra
@pytest.mark.faults
def test_script_for_real_clusters_runs_on_the_double():
    from drivetrain_cluster_double import ClusterDouble

    with ClusterDouble(nodes=3, run="processes") as cluster:
        cluster.apply(definitions())
        cluster.apply(manifests())
        folder = Path(sys.executable).parent
        env = {
            **os.environ,
            "KUBECONFIG": str(cluster.kubeconfig),
            "OPERATOR_RUNS": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{folder}:{os.environ['PATH']}",
        }
        operator = subprocess.Popen(
            [sys.executable, "-m", "drivetrain_cloud.cli", "operator"],
            env={**env, "KUBECONFIG": str(account(cluster))},
            stderr=subprocess.DEVNULL,
        )
        try:
            done = subprocess.run(
                ["sh", DEPLOY / "smoke.sh", "trainer"],
                env=env,
                check=False,
                capture_output=True,
                text=True,
            )
        finally:
            operator.terminate()
            operator.wait(60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "all of it is as it should be"


@pytest.mark.extra
def test_operator_of_one_namespace_needs_no_rights_in_others():
    from drivetrain_cluster_double import ClusterDouble

    overlay = FOLDER / "manifests" / "overlays" / "namespaced"
    with ClusterDouble(nodes=1, run="simulated") as cluster:
        cluster.apply(definitions())
        cluster.apply(one for one in manifests() if one["kind"] != "ClusterRoleBinding")
        cluster.apply((overlay / "role.yaml").read_text())
        job = elastic_job(replicas=1)
        for namespace in ("training", "default"):
            job["metadata"]["namespace"] = namespace
            cluster.apply(job)
        with RunningOperator(account(cluster), namespace="training") as running:
            cluster.wait_for(lambda: len(live(pods_of(cluster))) == 1)
            assert running.error is None
        (pod,) = pods_of(cluster)
        assert pod["metadata"]["namespace"] == "training"
