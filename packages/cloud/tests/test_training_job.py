"""A TrainingJob becomes an ElasticJob, and is scaled in the order that scripts need."""

from __future__ import annotations

import pytest
from training_samples import RUN, pod, scaler, stored, training_job

from drivetrain_cloud.kubernetes.job_spec import parse_job
from drivetrain_cloud.kubernetes.operator_actions import (
    CreateObject,
    PatchObject,
    SetStatus,
)
from drivetrain_cloud.kubernetes.training_job.launcher_command import (
    parse_launcher_command,
)
from drivetrain_cloud.kubernetes.training_job.look_after import (
    TrainingObserved,
    look_after,
)
from drivetrain_cloud.kubernetes.training_job.translate import (
    SPOT_ANNOTATION,
    SUSPENDED_ANNOTATION,
    WAIT_ANNOTATION,
    spec_change,
    translate,
)
from drivetrain_core import ProgramError


def launched(command):
    return parse_launcher_command({"command": ["sh", "-c", command]})


# ---- the launcher's command ----


def test_command_of_a_launcher_is_taken_apart():
    found = launched(
        "exec A=1 horovodrun -np 4 --min-np=2 --max-np 8 --slots 2 --verbose -p 22 "
        "--elastic-timeout 300 --reset-limit 3 /usr/bin/python3 -u -m 'my pkg' --lr .1"
    )
    assert found.python == "/usr/bin/python3"
    assert found.program == ("-m", "my pkg", "--lr", ".1")
    assert found.env == {"A": "1", "PYTHONUNBUFFERED": "1"}
    numbers = found.num_processes, found.min_processes, found.max_processes
    assert (*numbers, found.slots) == (4, 2, 8, 2)
    assert (found.elastic_timeout_s, found.reset_limit) == (300, 3)


def test_command_may_be_a_list_or_have_no_word():
    words = ["horovodrun", "-np", "1"]
    found = parse_launcher_command({"command": words, "args": ["python", "a.py"]})
    assert found.program == ("a.py",)
    assert parse_launcher_command({"image": "trainer"}) is None


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("mpirun -np 2 python a.py", "it runs 'mpirun'"),
        ("cd /a && horovodrun python a.py", "it runs 'cd'|'&&' is for a shell"),
        ("horovodrun python a.py | tee log", r"'\|' is for a shell"),
        ("horovodrun python a.py; ls", "';' is for a shell"),
        ("horovodrun -np $N python a.py", r"'\$' is for a shell"),
        ("horovodrun python a.py\nls", "several lines"),
        ("horovodrun python a.py\npython b.py", "several lines"),
        ("horovodrun python a.py\n-np 3", "several lines"),
        ("horovodrun -np $((N+1)) python a.py", r"'\$' is for a shell"),
        ("horovodrun python 'a.py", "no closing quotation"),
        ("horovodrun", "must be python and a script, got ''"),
        ("horovodrun ./train", "must be python and a script, got './train'"),
        ("horovodrun python", "a script or -m may stand"),
        ("horovodrun python -c 'print(1)'", "a script or -m may stand, got '-c'"),
        ("horovodrun -np two python a.py", "-np must be 1 or more, got 'two'"),
        ("horovodrun --min-np 0 python a.py", "--min-np must be 1 or more"),
        ("horovodrun -np", "-np has no value"),
        ("horovodrun --autotune python a.py", "--autotune is not known here"),
        ("", "it runs ''"),
    ],
)
def test_command_that_is_not_one_call_is_refused(command, says):
    with pytest.raises(ProgramError, match=says):
        launched(command)
    with pytest.raises(ProgramError, match=says):
        translate(stored(training_job(launch=command)))


def test_login_shell_is_refused():
    words = ["bash", "-lc", "horovodrun python a.py"]
    with pytest.raises(ProgramError, match="given '-lc'"):
        parse_launcher_command({"command": words})


# ---- translation ----


def test_training_job_becomes_an_elastic_job():
    job = training_job(
        replicas=3,
        launch=f"{RUN} --reset-limit 9 python train.py --lr 1",
        worker={"minReplicas": 2, "maxReplicas": 5},
        slotsPerWorker=2,
        cleanPodPolicy="All",
        backoffLimit=4,
    )
    elastic = translate(stored(job))
    spec = parse_job(elastic)
    assert (spec.replicas, spec.spot.least, spec.max_replicas) == (3, 2, 3)
    assert (spec.backoff_limit, spec.clean.value) == (4, "All")
    worker = elastic["spec"]["template"]["spec"]["containers"][0]
    assert worker["command"] == ["python", "-m", "drivetrain_cloud.kubernetes.agent"]
    assert worker["args"] == [
        *(
            "--nproc-per-node",
            "2",
            "--standbys",
            "0",
            "-m",
            "drivetrain_horovod.on_elastic",
        ),
        *("--reset-limit", "9", "train.py", "--lr", "1"),
    ]
    pod = elastic["spec"]["master"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "launcher"
    assert pod["containers"][0]["command"][-1] == "drivetrain_cloud.kubernetes.master"
    assert pod["containers"][0]["volumeMounts"][0]["mountPath"] == "/etc/edl"
    assert pod["volumes"][0]["configMap"]["name"] == "job-config"
    owner = elastic["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"], owner["controller"]) == (
        "TrainingJob",
        "1",
        True,
    )


def test_worker_without_a_launcher_keeps_its_command():
    job = training_job(launch=None)
    container = job["spec"]["etReplicaSpecs"]["worker"]["template"]["spec"][
        "containers"
    ]
    container[0]["command"] = ["my-agent"]
    made = translate(stored(job))["spec"]
    assert made["template"]["spec"]["containers"][0]["command"] == ["my-agent"]
    assert "master" not in made


def test_processes_of_the_launcher_raise_the_least_workers():
    job = training_job(
        replicas=4,
        launch="horovodrun --min-np 5 python a.py",
        worker={"minReplicas": 1},
        slotsPerWorker=2,
    )
    assert translate(stored(job))["spec"]["minReplicas"] == 3


@pytest.mark.parametrize(
    ("launch", "worker", "says"),
    [
        ("horovodrun -np 3 python a.py", {}, "waits for -np 3 processes: 2 workers"),
        ("horovodrun --min-np 3 python a.py", {}, "waits for --min-np 3"),
        ("horovodrun --slots 4 python a.py", {}, "4 slots, and slotsPerWorker 1"),
        ("horovodrun --max-np 1 python a.py", {}, "--max-np 1 is less than the 2"),
        (
            "horovodrun --max-np 3 python a.py",
            {"maxReplicas": 4},
            "--max-np 3 is less than the 4",
        ),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(launch, worker, says):
    job = stored(training_job(launch=launch, worker=worker))
    with pytest.raises(ProgramError, match=says):
        translate(job)


def test_policy_never_and_suspension_are_carried_over():
    job = stored(
        training_job(restartPolicy="Never"), annotations={SUSPENDED_ANNOTATION: "true"}
    )
    made = translate(job)["spec"]
    assert made["runPolicy"]["backoffLimit"] == 0
    assert made["suspend"] is True


def test_change_of_the_job_leaves_its_size_unless_that_is_what_has_changed():
    job = stored(training_job(replicas=3, worker={"minReplicas": 1}))
    elastic = stored(translate(job), uid="2")
    elastic["spec"] |= {"replicas": 2, "nodeUnit": 1}
    assert spec_change(elastic, translate(job, elastic)) is None
    job["spec"]["backoffLimit"] = 1
    patch = spec_change(elastic, translate(job, elastic))
    # What only the server has put there comes again by itself.
    assert patch["spec"] == {"runPolicy": {"backoffLimit": 1}, "nodeUnit": None}
    job["spec"]["etReplicaSpecs"]["worker"]["replicas"] = 5
    assert spec_change(elastic, translate(job, elastic))["spec"]["replicas"] == 5


@pytest.mark.parametrize(
    "line",
    [
        "horovodrun -np $((${workers}*${gpus})) --min-np $(( $gpus - 1 )) python a.py",
        "horovodrun\n-np 6\n  --min-np 1\npython a.py",
    ],
)
def test_launcher_s_lines_and_sums_are_those_of_a_shell(line):
    env = [{"name": "workers", "value": "3"}, {"name": "gpus", "value": "2"}]
    found = parse_launcher_command({"command": ["sh", "-c", line], "env": env})
    assert (found.num_processes, found.min_processes) == (6, 1)
    assert found.program == ("a.py",)


def test_annotations_of_a_client_ask_for_spot_nodes_and_bound_the_wait():
    notes = {SPOT_ANNOTATION: "true", WAIT_ANNOTATION: "3600"}
    job = stored(training_job(), annotations=notes)
    assert translate(job)["spec"]["spot"] == {"enabled": True, "maxWaitSeconds": 3600}
    job["metadata"]["annotations"] = {WAIT_ANNOTATION: "an hour"}
    with pytest.raises(ProgramError, match="must be seconds, got 'an hour'"):
        translate(job)


# ---- scaling, in order ----


class Story:
    """A job of three workers, all that is done for it, and what comes of that."""

    def __init__(self, replicas=3):
        worker = {"minReplicas": 1, "maxReplicas": 5}
        self.job = stored(training_job(replicas=replicas, worker=worker))
        self.elastic = stored(translate(self.job), uid="2")
        self.elastic["status"] = {"phase": "Running"}
        self.pods = [pod(number) for number in range(replicas)]
        self.scalers = []
        self.done = []
        self.look()
        self.done.clear()

    def look(self, most=None):
        observed = TrainingObserved(
            job=self.job,
            elastic=self.elastic,
            pods=tuple(self.pods),
            scalers=tuple(self.scalers),
            now="2026-01-01T00:00:00Z",
        )
        steps = look_after(observed)[:most]
        for subject, action in steps:
            if isinstance(action, SetStatus):
                subject["status"] = action.status
                self.done.append(f"{subject['kind']} {action.status['phase']}")
            elif isinstance(action, PatchObject) and action.kind == "ConfigMap":
                lines = action.patch["data"]["discover_hosts.sh"].split("\n")[1:-1]
                names = [line.removeprefix("echo ")[:-2] for line in lines]
                self.done.append("hosts " + " ".join(names))
            elif isinstance(action, PatchObject):
                self.elastic["spec"] |= action.patch["spec"]
                notes = self.elastic["metadata"]["annotations"]
                notes |= action.patch["metadata"]["annotations"]
                left = notes["drivetrain.dev/leave"]
                size = self.elastic["spec"]["replicas"]
                self.done.append(f"size {size}" + (f", without {left}" if left else ""))
        return steps

    def take(self):
        """Looks until nothing is left to be done; returns what was."""
        for _ in range(10):
            if not self.look():
                break
        else:
            pytest.fail(f"it does not come to rest: {self.done[-6:]}")
        done = [one for one in self.done if not one.startswith("TrainingJob")]
        self.done = []
        return done

    def said(self, at=0):
        status = self.scalers[at]["status"]
        rows = status["conditions"]
        return status["phase"], next(
            r["message"] for r in rows if r["status"] == "True"
        )


def test_scale_in_edits_the_host_file_before_anybody_leaves():
    story = Story()
    story.scalers = [stored(scaler("ScaleIn", toDelete={"count": 1}))]
    assert story.take() == [
        "ScaleIn Scaling",
        "hosts job-worker-0 job-worker-1",
        "size 2, without job-worker-2",
    ]
    assert story.job["status"]["currentScaler"] == "ScaleIn/scaler"
    assert story.job["status"]["targetWorkers"] == ["job-worker-0", "job-worker-1"]
    # Its pod is still there: its process has not ended.
    assert story.take() == []
    del story.pods[2]
    assert story.take() == ["ScaleIn ScaleSucceeded"]
    assert "currentScaler" not in story.job["status"]
    assert story.take() == []


def test_scale_in_of_named_pods_takes_those():
    story = Story()
    names = ["job-worker-0", "job-worker-1"]
    story.scalers = [stored(scaler("ScaleIn", toDelete={"podNames": names}))]
    assert story.take() == [
        "ScaleIn Scaling",
        "hosts job-worker-2",
        "size 1, without job-worker-0,job-worker-1",
    ]
    del story.pods[:2]
    assert story.take() == ["ScaleIn ScaleSucceeded"]


def test_scale_out_edits_the_host_file_once_all_are_ready():
    story = Story()
    story.scalers = [stored(scaler("ScaleOut", toAdd={"count": 2}))]
    assert story.take() == ["ScaleOut Scaling", "size 5"]
    story.pods += [pod(3), pod(4, ready=False)]
    assert story.take() == ["ScaleOut Scaling"]
    assert story.scalers[0]["status"]["addPods"] == ["job-worker-3", "job-worker-4"]
    assert len(story.job["status"]["currentWorkers"]) == 3
    story.pods[4] = pod(4)
    assert story.take() == [
        "hosts job-worker-0 job-worker-1 job-worker-2 job-worker-3 job-worker-4",
        "ScaleOut ScaleSucceeded",
    ]


def test_two_at_once_go_one_after_the_other():
    story = Story()
    first = scaler("ScaleIn", "first", toDelete={"count": 1})
    second = scaler("ScaleIn", "second", toDelete={"count": 1})
    story.scalers = [
        stored(second, uid="b", creationTimestamp="2026-01-01T00:00:02Z"),
        stored(first, uid="a", creationTimestamp="2026-01-01T00:00:01Z"),
    ]
    story.take()
    assert story.said(0) == ("Pending", "waits for ScaleIn/first")
    assert story.said(1)[0] == "Scaling"
    del story.pods[2]
    story.take()
    assert story.said(1)[0] == "ScaleSucceeded"
    assert story.said(0)[0] == "Scaling"
    assert story.elastic["spec"]["replicas"] == 1
    del story.pods[1]
    story.take()
    assert story.said(0)[0] == "ScaleSucceeded"


def test_one_that_has_begun_goes_on_though_an_older_one_is_seen():
    story = Story()
    begun = scaler("ScaleOut", "begun", toAdd={"count": 1})
    story.scalers = [stored(begun, uid="b", creationTimestamp="2026-01-01T00:00:02Z")]
    story.take()
    older = scaler("ScaleIn", "older", toDelete={"count": 1})
    story.scalers.append(
        stored(older, uid="a", creationTimestamp="2026-01-01T00:00:01Z")
    )
    story.take()
    assert story.said(1) == ("Pending", "waits for ScaleOut/begun")


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (scaler("ScaleIn", toDelete={"count": 3}), "3 workers less 3 are fewer than"),
        (
            scaler("ScaleIn", toDelete={"podNames": ["job-worker-0", "stranger"]}),
            "stranger: no worker of the job has this name",
        ),
        (scaler("ScaleOut", toAdd={"count": 3}), "3 workers and 3 more are more than"),
    ],
)
def test_what_cannot_be_done_fails_and_changes_nothing(one, says):
    story = Story()
    story.scalers = [stored(one)]
    assert story.take() == [f"{one['kind']} ScaleFailed"]
    assert story.said()[1].startswith(says)
    assert story.elastic["spec"]["replicas"] == 3


def test_scaling_of_a_job_that_has_ended_fails():
    story = Story()
    story.scalers = [stored(scaler("ScaleOut", toAdd={"count": 1}))]
    story.take()
    story.elastic["status"]["phase"] = "Succeeded"
    assert story.take() == ["ScaleOut ScaleFailed"]
    assert story.said()[1] == "the job has ended: Succeeded"
    assert story.job["status"]["phase"] == "Succeeded"


def test_scale_in_waits_until_all_workers_are_there():
    story = Story()
    gone = story.pods.pop()
    story.scalers = [stored(scaler("ScaleIn", toDelete={"count": 1}))]
    story.take()
    assert story.said() == ("Pending", "2 workers are there, of 3")
    story.pods.append(gone)
    story.take()
    assert story.said()[0] == "Scaling"


@pytest.mark.parametrize("num", range(1, 5))
def test_operator_that_dies_between_two_actions_changes_the_size_once(num):
    """Every other one dies after so many actions, and the next one goes on."""
    story = Story()
    story.scalers = [
        stored(scaler("ScaleIn", "in", toDelete={"count": 1}), uid="a"),
        stored(scaler("ScaleOut", "out", toAdd={"count": 2}), uid="b"),
    ]
    sizes = [3]
    for at in range(20):
        story.look(num if at % 2 == 0 else None)
        size = story.elastic["spec"]["replicas"]
        sizes += [size] if size != sizes[-1] else []
        notes = story.elastic["metadata"]["annotations"]
        left = notes.get("drivetrain.dev/leave") or ""
        story.pods = [p for p in story.pods if p["metadata"]["name"] not in left]
        while len(story.pods) < size:
            story.pods.append(pod(10 + len(story.pods)))
    assert sizes == [3, 2, 4]
    assert story.said(0)[0] == story.said(1)[0] == "ScaleSucceeded"


# ---- the job itself ----


def test_new_job_gets_its_config_map_before_its_elastic_job():
    job = stored(training_job())
    actions = [action for _, action in look_after(TrainingObserved(job=job))]
    made = [one.kind for one in actions if isinstance(one, CreateObject)]
    assert made == ["ConfigMap", "ElasticJob"]
    assert actions[-1].status["phase"] == "Created"


def test_job_that_cannot_be_translated_says_why_and_is_left_alone():
    job = stored(training_job(launch="mpirun python a.py"))
    ((_, action),) = look_after(TrainingObserved(job=job))
    row = action.status["conditions"][-1]
    assert (row["type"], row["status"]) == ("Invalid", "True")
    assert "one call of horovodrun: it runs 'mpirun'" in row["message"]
    job["status"] = action.status
    assert look_after(TrainingObserved(job=job)) == []


@pytest.mark.parametrize(
    ("below", "phase"),
    [
        ({"phase": "Pending"}, "LauncherCreated"),
        ({"phase": "Waiting"}, "Restarting"),
        ({"phase": "Suspended"}, "Suspended"),
        ({"phase": "Failed", "failures": 7}, "Failed"),
        ({"phase": "Succeeded"}, "Succeeded"),
        (
            {
                "phase": "Scaling",
                "conditions": [{"type": "Running", "status": "True"}],
            },
            "Running",
        ),
    ],
)
def test_phases_are_those_of_the_training_job(below, phase):
    story = Story()
    story.pods.append(pod(0, role="master"))
    story.elastic["status"] = below
    story.take()
    status = story.job["status"]
    assert status["phase"] == phase
    assert status["restartCount"] == below.get("failures", 0)
    assert status["replicaStatuses"]["worker"]["active"] == 3
    assert status["replicaStatuses"]["launcher"]["active"] == 1
    rows = {one["type"]: one["status"] for one in status["conditions"]}
    assert rows["Created"] == rows["LauncherCreated"] == "True"
    assert len(rows) == 9


def test_job_that_is_deleted_is_left_to_the_owner_of_its_parts():
    job = stored(training_job(), deletionTimestamp="2026-01-01T00:00:00Z")
    assert look_after(TrainingObserved(job=job)) == []


def scaling_out(timeout):
    """A ScaleOut that has made a worker, which no node takes, a minute ago."""
    story = Story()
    story.scalers = [stored(scaler("ScaleOut", toAdd={"count": 1}, timeout=timeout))]
    assert story.take() == ["ScaleOut Scaling", "size 4"]
    story.pods.append(pod(3, ready=False))
    story.take()
    for row in story.scalers[0]["status"]["conditions"]:
        row["lastTransitionTime"] = "2025-12-31T23:59:00Z"
    return story


def test_scale_out_that_takes_too_long_fails_and_gives_its_workers_back_once():
    story = scaling_out(timeout=60)
    # Whoever does not come to say so finds the size given back already.
    story.look(most=1)
    assert story.elastic["spec"]["replicas"] == 3
    story.take()
    assert story.said()[0] == "ScaleFailed"
    assert "within 60 s" in story.said()[1]
    assert story.elastic["spec"]["replicas"] == 3
    assert story.elastic["metadata"]["annotations"]["drivetrain.dev/leave"] == (
        "job-worker-3"
    )
    assert scaling_out(timeout=61).take() == []


def test_scale_out_that_has_not_grown_the_job_takes_nothing_from_it():
    story = scaling_out(timeout=60)
    story.elastic["spec"]["replicas"] = 3
    del story.elastic["metadata"]["annotations"]["drivetrain.dev/scaled-by"]
    story.take()
    assert story.said()[0] == "ScaleFailed"
    assert story.elastic["spec"]["replicas"] == 3
