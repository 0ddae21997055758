"""A run is recorded call by call, and its power is cut after each of them."""

import random
import re
import shutil

from faults.disk import (
    Chance,
    DataOnly,
    Disk,
    Fate,
    NamesAndSizes,
    NamesOnly,
    Nothing,
    Op,
)
from faults.oplog import Log, Promise, promise
from faults.shim import Action
from faults.stage import await_true
from faults.state import problems_of

_STEP = re.compile(r"/step-0*(\d+)-[^/]*/(?!.*\.tmp$)")


def record(stage, world_size=1, *, num_saves=4, keep=2, under=""):
    """Returns the log of a run, in which handles are asked before every call.

    Args:
        stage: Where it runs.
        world_size: The number of ranks.
        num_saves: How often they save.
        keep: How many checkpoints stay.
        under: The folder in that of the job that they save to.
    """
    control = stage.control
    control["record"] = 1
    trainers = stage.start(world_size, keep=keep, under=under)
    control.arm(Action.GATE, 0)
    promised = set()

    def let_one_through():
        if control["count"] > control["at"]:
            control["at"] += 1

    def advance():
        for _, steps in trainers.ask("durable"):
            for step in set(steps) - promised:
                promise(control.log, step)
                promised.add(step)
        let_one_through()

    for step in range(1, num_saves + 1):
        trainers.tell("save", step)
        for rank in range(world_size):
            await_true(lambda rank=rank: let_one_through() or trainers.has_said(rank))
            assert trainers.hear(rank) == ("saved", step)
        await_true(lambda step=step: advance() or step in promised)
    kept, folder = min(keep, num_saves), stage.folder / under
    await_true(lambda: advance() or len(list(folder.iterdir())) == kept)
    return Log(control.log).read()


def fates(seed, num_random):
    """Returns what may become of unsynced data: the extremes, and random mixtures."""
    extremes = [Fate(), Nothing(), NamesOnly(), NamesAndSizes(), DataOnly()]
    chances = [
        Chance(random.Random(f"{seed} {i}"), keeps=(0.5, 0.9, 0.1)[i % 3])
        for i in range(num_random)
    ]
    return extremes + chances


def cuts(log, root, num_random=0):
    """Gives every state that a power cut may leave, each once for what it must hold.

    Args:
        log: Changes and promises.
        root: The folder that was there before.
        num_random: How many random mixtures are tried after each change.

    Yields:
        The number of changes before the cut, what is left, and the steps that must be
        there: all that were promised and not yet deleted, and the newest in any case.
    """
    disk, promised, deleted, seen = Disk(str(root)), [], set(), set()
    for index, entry in enumerate([Op("sync", str(root)), *log]):
        if isinstance(entry, Promise):
            promised.append(entry.step)
        else:
            match = _STEP.search(entry.path)
            if match and entry.kind in {"unlink", "rmdir"}:
                deleted.add(int(match[1]))
            disk.apply(entry)
        required = {*promised} - deleted | {*promised[-1:]}
        for fate in fates(index, num_random):
            tree = disk.survivor(fate)
            key = hash((frozenset(tree.items()), frozenset(required)))
            if key not in seen:
                seen.add(key)
                yield index, tree, required


def restore_disk(tree, base):
    """Writes what is left of a disk into a folder, in place of what was there."""
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir()
    for name, content in tree.items():
        if content is None:
            (base / name).mkdir()
        else:
            (base / name).write_bytes(content)


def problems_after(tree, required, base, under=""):
    """Returns what is wrong with what is left of a disk of `Stage`."""
    restore_disk(tree, base)
    folder = base / "runs" / "one" / under
    # A folder in that of a job is looked for by its name: it has a checkpoint, or is not.
    committed = list(folder.glob("step-*/manifest.json"))
    is_early = bool(under) and folder.exists() and not committed
    return problems_of(folder, required) + ["it is there too early"] * is_early
