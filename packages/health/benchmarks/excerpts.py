"""How many outputs of failed jobs, written after public reports, are diagnosed rightly.

The excerpts are in tests/data/public_excerpts.json. No sign was written after one of them, but
counts by group were seen, and a few decisions made with them; after those in
tests/data/development_excerpts.json signs may be written. Each is given
to `drivetrain-health diagnose`, as a user would do it. Its group says what has failed, and its
action what may follow; classes and actions are compared by what they mean, so that a failure of
a disk may be called storage, and a node that is replaced is a restart elsewhere.
"""

import contextlib
import io
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from drivetrain_health.cli import main
from drivetrain_testing import Row

_DATA = Path(__file__).parents[1] / "tests" / "data"
_LINKS = {"interconnect", "rendezvous", "hang"}
_MEANS = {
    "machine": {"gpu-hardware", "node-hardware", "node-lost"},
    "driver": {"driver", "gpu-hardware", "node-hardware"},
    "disk": {"storage"},
    "store": {"storage", "service"},
    "network": _LINKS,
    "hang": _LINKS - {"rendezvous"},
    "rendezvous": {"rendezvous", "interconnect"},
    "memory": {"out-of-memory"},
    "killed": {"killed", "out-of-memory", "scheduler"},
    "scheduler": {"scheduler", "killed", "node-lost"},
    "crash": {"crash"},
    "data": {"data", "program", "storage"},
    "program": {"program"},
    "unknown": {"unknown"},
}
# Adapters that read the memory of GPUs have no class, but causes of their own.
_PEER_CLASSES = {"interconnect", "driver"}
_PEER_CAUSES = ("peer", "direct", "dmabuf", "registration", "protection")
_OWN_FAULT = {"program", "data"}
_BOUND = 0.95


def excerpts(quick):
    """All excerpts: how many get their class and action, and how many stop for nothing."""
    return measured("public_excerpts.json")


def development(quick):
    """The same of other excerpts, after which signs may be written."""
    return measured("development_excerpts.json")


def measured(file):
    """The figures of a file of excerpts."""
    rows = json.loads((_DATA / file).read_text(encoding="utf-8"))["excerpts"]
    all_of, right, of_class, of_action, stopped = (Counter() for _ in range(5))
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            group = row["group"]
            groups = [group] if isinstance(group, str) else group
            name, cause, action = diagnosed(row, Path(folder))
            is_class = any(means(one, name, cause) for one in groups)
            is_action = follows(row["action"], action)
            all_of[groups[0]] += 1
            right[groups[0]] += is_class and is_action
            of_class[groups[0]] += is_class
            of_action[groups[0]] += is_action
            is_own = row["action"] == "any" or _OWN_FAULT.intersection(groups)
            stopped[groups[0]] += "stop" in action and not is_own
    for one in sorted(all_of):
        print(
            f"{one:12} {right[one]:3d} of {all_of[one]:3d} right; class {of_class[one]:3d}, "
            f"action {of_action[one]:3d}, stops {stopped[one]}",
            file=sys.stderr,
        )
    share = right.total() / all_of.total()
    return Row(
        figure=f"{right.total()} of {all_of.total()} right ({share:.1%}); {stopped.total()} "
        "failures of infrastructure stop a job",
        holds=share >= _BOUND and not stopped.total(),
        details={"right": dict(right), "all": dict(all_of), "stopped": stopped.total()},
    )


def diagnosed(row, folder):
    """Returns the class, the cause and the action that the command tells of an excerpt."""
    (folder / "output.log").write_text(row["output"])
    argv = ["diagnose", "--json", "--output", str(folder / "output.log")]
    argv.append(f"--exit-code={row['exit_code']}")
    if row["kernel"]:
        (folder / "kernel.log").write_text(row["kernel"])
        argv += ["--kernel", str(folder / "kernel.log")]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        main(argv)
    if not out.getvalue().strip():
        return "unknown", "", "none"
    told = json.loads(out.getvalue())
    root, response = told["root_cause"], told["response"] or {"action": "none"}
    return root["failure_class"], root["cause"], response["action"]


def means(group, name, cause):
    """Whether a class, or a cause of it, is what a group of excerpts tells of."""
    if group == "peer-memory":
        return name in _PEER_CLASSES and any(word in cause for word in _PEER_CAUSES)
    return name in _MEANS[group]


def follows(wanted, action):
    """Whether an action is one that the excerpt asks for."""
    is_stop = "stop" in action
    return {
        "again": not is_stop and action != "none",
        "elsewhere": "node" in action,
        "stop": is_stop,
        "any": True,
    }[wanted]


if __name__ == "__main__":
    print(excerpts(False).figure)
