"""A training on nodes that are taken away and given back by a trace, on this machine.

Nodes are agents as processes, each with a metadata endpoint of a cloud of its own; the
master, the supervisor and the training are the real ones. Times are not compressed: clouds
give 30 s (Google Cloud) and 120 s (AWS).
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from tasks import TASKS, collate

from drivetrain_cloud.spot import JobPhase, NodePhase, Recovery, SpotConfig
from drivetrain_cloud.spot.local_job import LocalSpotJob
from drivetrain_cloud.spot.local_pool import CapacityChange
from drivetrain_core.services import DcpCheckpointer
from drivetrain_elastic import ElasticLoop, Schedule
from drivetrain_elastic._data._schedule import Position
from drivetrain_elastic.protocol import messages as pb
from drivetrain_testing import Row

_NODES, _BATCH = 4, 24
_PAUSE_S = 0.3
_POLL_S = 0.2
# How long after a return the next node is taken, and how long it stays away.
_SLOW = {"seconds": 600.0, "every_s": 45.0, "away_s": 25.0}
_QUICK = {"seconds": 80.0, "every_s": 20.0, "away_s": 10.0}


def trace_of(*, seconds, every_s, away_s):
    """Returns a trace in which one node goes every so often, and comes back."""
    changes, at_s = [CapacityChange(0.0, _NODES)], every_s
    while at_s + away_s < seconds:
        changes.append(CapacityChange(at_s, _NODES - 1))
        changes.append(CapacityChange(at_s + away_s, _NODES))
        at_s += every_s
    return changes


def spot_run(quick, recovery=Recovery.RESIZE, model="byte_lm"):
    """Measures what a trace of reclaims and returns costs, and what it changes."""
    shape = _QUICK if quick else _SLOW
    clouds = (
        (("aws", 12.0), ("azure", 6.0)) if quick else (("aws", 120.0), ("gcp", 30.0))
    )
    num_steps = int(shape["seconds"] / _PAUSE_S)
    config = SpotConfig(
        nodes=_NODES,
        min_nodes=1,
        recovery=recovery,
        settle_s=0.2,
        grow_after_s=0.5,
        margin_s=1.5,
    )
    with tempfile.TemporaryDirectory() as folder:
        wanted = undisturbed(folder, model, num_steps)
        with LocalSpotJob(
            [*program(folder, "spot", num_steps, model), "--pause-s", str(_PAUSE_S)],
            config,
            trace_of(**shape),
            folder=folder,
            clouds=clouds,
        ) as job:
            recorder = Recorder()
            code = job.run(poll_s=_POLL_S, looked=recorder.look)
            found = judge(job, recorder, Path(folder), num_steps, model)
            if code or not Path(folder, "spot.json").exists():
                outputs = [
                    path.read_text()[-2000:] for path in Path(folder).glob("*.txt")
                ]
                raise RuntimeError("\n".join(outputs))
        score = json.loads(Path(folder, "spot.json").read_text())
    found["held_out"] = (score, wanted)
    difference = abs(score["loss"] / wanted["loss"] - 1)
    in_time = found["saved"] == found["notices"]
    return Row(
        figure=f"{found['share']:.1%} of available node time in steps "
        f"({found['share_with_starts']:.1%} with starts); {found['lost']} samples lost, "
        f"{found['repeated']} repeated in {num_steps} steps; held-out loss "
        f"{difference:.1e} from the undisturbed one, accuracy {score['accuracy']:.1%} "
        f"(undisturbed {wanted['accuracy']:.1%}); {found['saved']} of "
        f"{found['notices']} notices saved in time; {found['reclaims']} reclaims, "
        f"{found['returns']} returns",
        # Who waits for all nodes lets the others wait.
        holds=(found["share"] >= 0.95 or recovery != Recovery.RESIZE)
        and not found["lost"]
        and not found["repeated"]
        and difference <= 1e-9
        and score["accuracy"] == wanted["accuracy"]
        and in_time,
        proven_on="cpu-gloo",
        details=found,
    )


def spot_wait(quick):
    """The same for a ResNet that waits for all of its nodes."""
    return spot_run(quick, Recovery.WAIT_FULL, "resnet")


def spot_notices(quick):
    """Has nodes hear again and again that they go, and counts checkpoints in time.

    Half of the notices are of 30 s, half of 120 s. Each is withdrawn when a checkpoint is
    durable or its time is over.
    """
    num = 10 if quick else 100
    config = SpotConfig(nodes=2, min_nodes=1, settle_s=0.0, grow_after_s=0.0)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalSpotJob(
            [*program(folder, "spot", 10_000_000, "byte_lm"), "--pause-s", "0.1"],
            config,
            [CapacityChange(0.0, 2)],
            folder=folder,
            clouds=(("aws", 120.0), ("gcp", 30.0)),
        ) as job,
    ):
        story = Notices(job, num)
        job.run(poll_s=0.1, looked=story.look)
    took_s = [took for _, took in story.found if took is not None]
    in_time = sum(
        took is not None and took < notice_s for notice_s, took in story.found
    )
    return Row(
        figure=f"{in_time} of {num} notices with a durable checkpoint before the deadline; "
        f"{statistics.median(took_s):.2f} s after the notice in the median, "
        f"{max(took_s):.2f} s at most",
        holds=in_time == num,
        proven_on="cpu-gloo",
        # Not a Counter: a copy of it would count its pairs.
        details={"kinds": dict(Counter(str(notice_s) for notice_s, _ in story.found))},
    )


class Notices:
    """Gives a notice, waits for a checkpoint, and takes it back, so many times."""

    def __init__(self, job, num):
        self._job, self._num = job, num
        self._node, self._began_s, self._is_over = "", 0.0, True
        # The seconds of each notice, and after how many there was a checkpoint.
        self.found = []

    def look(self, supervisor):
        """Takes what the supervisor has just seen."""
        now_s = time.monotonic()
        nodes = {node.name: node for node in supervisor.capacity.nodes}
        training = supervisor.capacity.those(NodePhase.TRAINING)
        if len(training) < 2 or supervisor.view.step < 5:
            return
        # Nobody takes the place of one that does not go.
        self._job.pool.boot_s = float("inf")
        if self._is_over:
            if any(node.notice for node in nodes.values()):
                return
            if len(self.found) == self._num:
                self._job.client.call("Stop", pb.StopRequest(reason="all were given"))
                return
            self._node = training[len(self.found) % 2].name
            self._began_s, self._is_over = now_s, False
            self._job.pool.reclaim(self._node, now_s)
            return
        notice_s = 120.0 if self._node == "spot-0" else 30.0
        saves = [one for one in supervisor.saves if one.asked_s >= self._began_s]
        if saves or now_s > self._began_s + notice_s:
            took_s = saves[0].durable_s - self._began_s if saves else None
            self.found.append((notice_s, took_s))
            self._job.pool.withdraw(self._node)
            self._is_over = True


class Recorder:
    """Notes at each look since when each node can train, and until when it is there."""

    def __init__(self):
        self.ready_s, self.gone_s, self.notices = {}, {}, {}
        self._here = set()

    def look(self, supervisor):
        """Takes what the supervisor has just seen."""
        now_s = time.monotonic()
        here = set()
        for node in supervisor.capacity.nodes:
            if node.phase != NodePhase.REQUESTED:
                self.ready_s.setdefault(node.name, node.since_s)
            if node.notice is not None:
                self.notices[node.name] = node.notice
            here.add(node.name)
        for name in self._here - here:
            self.gone_s[name] = now_s
        self._here = here
        if supervisor.capacity.phase == JobPhase.ENDED:
            for name in here:
                self.gone_s[name] = now_s


def judge(job, recorder, folder, num_steps, model):
    """Returns the figures of a run."""
    lines = [
        json.loads(line)
        for path in Path(folder, "spot").glob("*.jsonl")
        for line in path.read_text().splitlines()
        if line.endswith("}")
    ]
    last_s = max(line["end_s"] for line in lines)
    began_s = job.pool.began_s
    events = job.pool.events
    came_s = {e.node: began_s + e.at_s for e in events if e.what == "came"}
    noticed_s = {e.node: began_s + e.at_s for e in events if e.what == "noticed"}
    # A node is there until it is taken, whether or not it has left before.
    notice_s = {name: n.deadline_s for name, n in recorder.notices.items()}
    stepping = Counter()
    for line in lines:
        stepping[line["node"]] += line["end_s"] - line["begin_s"]
    available = with_starts = 0.0
    idle = {}
    for name, start_s in came_s.items():
        end_s = min(last_s, notice_s.get(name, last_s))
        ready_s = min(recorder.ready_s.get(name, end_s), end_s)
        available += end_s - ready_s
        with_starts += end_s - min(start_s, end_s)
        idle[name] = round(end_s - ready_s - stepping[name], 2)
    lost, repeated, again = samples(lines, num_steps, model)
    in_time = sum(
        any(
            noticed_s[name] <= save.asked_s
            and save.durable_s <= recorder.notices[name].deadline_s
            for save in job.supervisor.saves
        )
        for name in noticed_s
        if name in recorder.notices and stepping[name]
    )
    return {
        "share": sum(stepping.values()) / available,
        "share_with_starts": sum(stepping.values()) / with_starts,
        "lost": lost,
        "repeated": repeated,
        "steps_made_again": again,
        # One that had not trained yet has nothing to save.
        "notices": sum(stepping[name] > 0 for name in noticed_s),
        "before_training": sum(not stepping[name] for name in noticed_s),
        "saved": in_time,
        "reclaims": len(noticed_s),
        "killed": sum(e.what == "killed" for e in events),
        "returns": len(came_s) - _NODES,
        "saves_s": [round(s.durable_s - s.asked_s, 2) for s in job.supervisor.saves],
        "start_s": round(
            statistics.median(
                recorder.ready_s[n] - came_s[n] for n in recorder.ready_s if n in came_s
            ),
            1,
        ),
        "idle_s": idle,
        "seconds": round(last_s - began_s, 1),
    }


def samples(lines, num_steps, model):
    """Compares the samples of all steps that count with those of the schedule."""
    schedule, position = schedule_of(TASKS[model]()), Position()
    latest = {}
    for line in lines:
        latest[line["step"]] = max(latest.get(line["step"], 0), line["epoch"])
    made = {}
    for line in lines:
        if line["epoch"] == latest[line["step"]]:
            made.setdefault(line["step"], Counter()).update(line["indices"])
    again = len({(one["step"], one["epoch"]) for one in lines}) - len(latest)
    lost = repeated = 0
    for step in range(1, num_steps + 1):
        block = schedule.block(position, num_copies=1)
        wanted = Counter(
            index
            for indices, _ in schedule.parts(block, num_shares=1, share=0)
            for index in indices
        )
        lost += (wanted - made.get(step, Counter())).total()
        repeated += (made.get(step, Counter()) - wanted).total()
        position = schedule.after(block)
    return lost, repeated, again


# ---- the training ----


def program(folder, name, num_steps, model):
    """Returns what workers run."""
    return [
        str(Path(__file__).resolve()),
        "--worker",
        str(folder),
        name,
        str(num_steps),
        model,
    ]


def undisturbed(folder, model, num_steps):
    """Trains in one process; returns the loss and the accuracy on held-out samples."""
    import subprocess

    subprocess.run(
        [sys.executable, *program(folder, "alone", num_steps, model)],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return json.loads(Path(folder, "alone.json").read_text())


def schedule_of(task):
    """Returns which samples each step trains on."""
    return Schedule(num_samples=len(task.data), global_batch=_BATCH, seed=0)


def worker(folder, name, num_steps, model, pause_s):
    """Trains, and writes down what each step was."""
    task = TASKS[model]()
    loop = ElasticLoop(
        task.model,
        torch.optim.AdamW(task.model.parameters(), lr=3e-3),
        schedule=schedule_of(task),
        num_steps=num_steps,
        checkpointer=DcpCheckpointer(Path(folder, f"{name}-checkpoints")),
    )
    lines = Path(folder, name)
    lines.mkdir(exist_ok=True)
    node = os.environ.get("DRIVETRAIN_ELASTIC_WORKER", "alone").split("/")[0]
    with Path(lines, f"{os.getpid()}.jsonl").open("w") as file:
        for step in loop:
            line = {
                "step": step.number,
                "epoch": step.epoch,
                "node": node,
                "indices": [],
            }
            line["begin_s"] = time.monotonic()
            try:
                with step:
                    time.sleep(pause_s)
                    for part in step.parts():
                        batch = collate(task.data, part.indices)
                        line["indices"] += list(part.indices)
                        loss = task.loss(task.model(batch[0]), batch)
                        (loss * part.weight).backward()
            finally:
                line["end_s"] = time.monotonic()
                file.write(json.dumps(line) + "\n")
                file.flush()
    if loop.is_done and loop.rank == 0:
        Path(folder, f"{name}.json").write_text(json.dumps(task.score()))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--recovery", choices=list(Recovery), default=Recovery.RESIZE)
    parser.add_argument("--model", choices=list(TASKS), default="byte_lm")
    parser.add_argument("--notices", action="store_true", help="the notices only")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--pause-s", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        folder, name, num_steps, model = args.worker
        worker(folder, name, int(num_steps), model, args.pause_s)
        return
    import logging

    with contextlib.suppress(KeyboardInterrupt):
        logging.basicConfig(
            level=logging.INFO, format="%(relativeCreated)7d %(message)s"
        )
        if args.notices:
            row = spot_notices(args.quick)
        else:
            row = spot_run(args.quick, Recovery(args.recovery), args.model)
        print(row.figure, json.dumps(row.details))


if __name__ == "__main__":
    main()
