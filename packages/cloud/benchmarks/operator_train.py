"""Trains as an ElasticJob: pods are processes, one is killed, and there are 2, 3 and 2.

The cluster is the double of `drivetrain_cluster_double`; masters, agents and
workers are the real ones. The steps are those of an undisturbed run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from drivetrain_cluster_double import ClusterDouble
from operator_samples import (
    RunningOperator,
    account,
    definitions,
    live,
    manifests,
    names,
    pods_of,
    status,
)
from tasks import TASKS, collate

from drivetrain_cloud.kubernetes.job_connections import connect_master
from drivetrain_elastic import ElasticLoop, Schedule
from drivetrain_testing import Bar, Row, run_bars

_BATCH, _STEPS, _PAUSE_S, _LONG_S = 24, 500, 0.2, 120
_TOLERANCE = 1e-9


def train(model, row):
    """Trains as often as an ElasticJob says, and compares with an undisturbed run."""
    with tempfile.TemporaryDirectory() as folder:
        found = story(model, Path(folder))
    difference = abs(found["score"]["loss"] / found["wanted"]["loss"] - 1)
    accuracy = found["score"]["accuracy"], found["wanted"]["accuracy"]
    return Row(
        figure=f"{row}: {_STEPS} steps, {found['worlds']} worlds, Succeeded; a pod was "
        f"made {found['replaced_s']:.1f} s after one was killed; held-out loss "
        f"{found['score']['loss']:.6f}, {difference:.1e} from the undisturbed one; "
        f"accuracy {accuracy[0]:.1%}, undisturbed {accuracy[1]:.1%}",
        holds=found["phase"] == "Succeeded"
        and difference <= _TOLERANCE
        and accuracy[0] == accuracy[1],
        proven_on="cpu-gloo",
        details=found,
    )


def story(model, folder):
    """Lives a job's life, and returns what came of it."""
    program = [str(Path(__file__).resolve()), "--worker", model, str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    alone = folder / "alone"
    alone.mkdir()
    (alone / "go").touch()
    subprocess.run([sys.executable, *program[:-1], str(alone)], check=True, env=env)
    wanted = json.loads((alone / "score.json").read_text())
    # Masters of other runs may have left their journals on this machine.
    name = f"{model.replace('_', '-')}-{os.getpid()}"
    agent = [sys.executable, "-m", "drivetrain_cloud.kubernetes.agent"]
    container = {
        "name": "worker",
        "image": "trainer",
        "command": [*agent, *program],
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "resources": {"requests": {"cpu": "1"}},
    }
    spec = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    job = {
        "apiVersion": "drivetrain.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": spec,
    }
    with ClusterDouble(nodes=3, run="processes", folder=folder / "cluster") as cluster:
        cluster.apply(definitions())
        cluster.apply(manifests())

        def step():
            return (status(cluster, name).get("trainerStatus") or {}).get("step", 0)

        def trains(number):
            """Waits until so many workers, and no others, have made steps together."""
            told = lambda: status(cluster, name)
            worlds = lambda: json.loads((folder / "world.json").read_text())
            cluster.wait_for(
                lambda: (
                    told().get("phase") == "Running"
                    and told()["readyReplicas"] == number
                    and (folder / "world.json").exists()
                    and worlds()["size"] == number
                ),
                _LONG_S,
            )
            at = step()
            cluster.wait_for(lambda: step() > at + 3, _LONG_S)

        with RunningOperator(account(cluster), connect=connect_master, progress_s=0.2):
            cluster.apply(job)
            trains(2)
            victim = names(live(pods_of(cluster, name)))[0]
            began_s = time.monotonic()
            cluster.kill(victim)
            cluster.wait_for(
                lambda: f"{name}-worker-2" in names(pods_of(cluster, name))
            )
            replaced_s = time.monotonic() - began_s
            trains(2)
            spec["replicas"] = 3
            cluster.apply(job)
            trains(3)
            spec["replicas"] = 2
            cluster.apply(job)
            trains(2)
            (folder / "go").touch()
            ended = lambda: (
                status(cluster, name).get("phase")
                in {
                    "Succeeded",
                    "Failed",
                }
            )
            cluster.wait_for(ended, _LONG_S)
            told = status(cluster, name)
    return {
        "phase": told["phase"],
        "failures": told["failures"],
        "step": told["trainerStatus"]["step"],
        "replaced_s": replaced_s,
        "score": json.loads((folder / "score.json").read_text()),
        "wanted": wanted,
        "worlds": json.loads((folder / "world.json").read_text())["epoch"],
    }


def language_model(quick):
    """Trains the byte-level language model."""
    del quick
    return train("byte_lm", "byte-level language model")


def image_model(quick):
    """Trains the residual network on scikit-learn's digits."""
    del quick
    return train("resnet", "ResNet on digits")


# ---- what workers run ----


def worker(name, folder):
    """Trains with whatever workers there are, slowly until it is told to go."""
    task = TASKS[name]()
    loop = ElasticLoop(
        task.model,
        torch.optim.AdamW(task.model.parameters(), lr=3e-3),
        schedule=Schedule(num_samples=len(task.data), global_batch=_BATCH, seed=0),
        num_steps=_STEPS,
    )
    for step in loop:
        with step:
            if not (folder / "go").exists():
                time.sleep(_PAUSE_S)
            for part in step.parts():
                batch = collate(task.data, part.indices)
                loss = task.loss(task.model(batch[0]), batch)
                (loss * part.weight).backward()
        if loop.rank == 0:
            told = {"size": step.world_size, "epoch": step.epoch, "step": step.number}
            _write(folder / "world.json", told)
    if loop.is_done and loop.rank == 0:
        _write(folder / "score.json", task.score())


def _write(path, told):
    path.with_suffix(".new").write_text(json.dumps(told))
    path.with_suffix(".new").replace(path)


def main():
    """Runs the bars, or what a worker runs."""
    if "--worker" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--worker", nargs=2)
        name, folder = parser.parse_args().worker
        worker(name, Path(folder))
        return 0
    bound = "Succeeded, and <= 1e-9 from the undisturbed loss"
    return run_bars(
        [
            Bar(name="operator-byte-lm", bound=bound, measure=language_model),
            Bar(name="operator-resnet", bound=bound, measure=image_model),
        ],
        description=__doc__,
    )


if __name__ == "__main__":
    sys.exit(main())
