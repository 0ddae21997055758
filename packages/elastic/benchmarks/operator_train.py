"""Trains as an ElasticJob: pods are processes, one is killed, and there are 2, 3 and 2.

The cluster is the double of `drivetrain_elastic.kubernetes.double`; masters, agents and
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

from drivetrain_core.examples import byte_lm, digits
from drivetrain_core.testing import Bar, Row, run_bars
from drivetrain_elastic import ElasticLoop, Schedule
from drivetrain_elastic.kubernetes.double import ClusterDouble
from drivetrain_elastic.kubernetes.job_links import link_master

_BATCH, _LENGTH, _BYTES, _STEPS, _PAUSE_S, _LONG_S = 24, 64, 1_000_000, 500, 0.2, 120
_TOLERANCE = 1e-9


def train(model, row):
    """Trains as often as an ElasticJob says, and compares with an undisturbed run."""
    with tempfile.TemporaryDirectory() as folder:
        found = story(model, Path(folder))
    difference = abs(found["loss"] / found["wanted"] - 1)
    return Row(
        figure=f"{row}: {_STEPS} steps, {found['worlds']} worlds, Succeeded; a pod was "
        f"made {found['replaced_s']:.1f} s after one was killed; held-out loss "
        f"{found['loss']:.6f}, {difference:.1e} from the undisturbed one",
        holds=found["phase"] == "Succeeded" and difference <= _TOLERANCE,
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
    wanted = json.loads((alone / "loss.json").read_text())["loss"]
    # Masters of other runs may have left their journals on this machine.
    name = f"{model.replace('_', '-')}-{os.getpid()}"
    agent = [sys.executable, "-m", "drivetrain_elastic.kubernetes.agent"]
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

        with RunningOperator(account(cluster), link=link_master, progress_s=0.2):
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
        "loss": json.loads((folder / "loss.json").read_text())["loss"],
        "wanted": wanted,
        "worlds": json.loads((folder / "world.json").read_text())["epoch"],
    }


def language_model(quick):
    """Trains the byte-level language model."""
    del quick
    return train("byte_lm", "byte-level language model")


def image_model(quick):
    """Trains the convolutional network on scikit-learn's digits."""
    del quick
    return train("digits", "convolutional network on digits")


# ---- what workers run ----


def _byte_lm():
    size = byte_lm.ByteLMConfig(
        num_layers=1, dim=32, num_heads=2, num_kv_heads=2, ffn_dim=64
    )
    text, held_out = byte_lm.read_standard_library(_BYTES)
    data = byte_lm.ByteText(text, _LENGTH)
    test = byte_lm.ByteText(held_out, _LENGTH)
    return byte_lm.ByteLM(size), byte_lm.loss, data, test


def _digits():
    train, test = digits.load_digits()
    to_double = lambda one: [(images.double(), label) for images, label in one]
    return digits.DigitsNet(width=8), digits.loss, to_double(train), to_double(test)


def worker(name, folder):
    """Trains with whatever workers there are, slowly until it is told to go."""
    torch.manual_seed(0)
    model, loss_of, data, test = {"byte_lm": _byte_lm, "digits": _digits}[name]()
    model.double()
    loop = ElasticLoop(
        model,
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        schedule=Schedule(num_samples=len(data), global_batch=_BATCH, seed=0),
        num_steps=_STEPS,
    )
    for step in loop:
        with step:
            if not (folder / "go").exists():
                time.sleep(_PAUSE_S)
            for part in step.parts():
                batch = _collate(data, part.indices)
                loss = loss_of(model(batch[0]), batch)
                (loss * part.weight).backward()
        if loop.rank == 0:
            told = {"size": step.world_size, "epoch": step.epoch, "step": step.number}
            _write(folder / "world.json", told)
    if loop.is_done and loop.rank == 0:
        with torch.no_grad():
            batch = _collate(test, range(min(256, len(test))))
            loss = loss_of(model(batch[0]), batch).item()
        _write(folder / "loss.json", {"loss": loss})


def _write(path, told):
    path.with_suffix(".new").write_text(json.dumps(told))
    path.with_suffix(".new").replace(path)


def _collate(data, indices):
    inputs, targets = zip(*(data[index] for index in indices), strict=True)
    return torch.stack(inputs), torch.stack(targets)


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
            Bar(name="operator-digits", bound=bound, measure=image_model),
        ],
        description=__doc__,
    )


if __name__ == "__main__":
    sys.exit(main())
