"""One way to save in a process of its own, and what happened, as JSON."""

import json
import os
import signal
import sys
import threading
import time

import torch
from methods import method_of
from programs import add_place, parser_of, place_of
from workload import MIB, NUM_THREADS, make_state, settle, timed


def times(method, num_saves):
    """The stall and the time until complete of some saves, the first one apart."""
    stalls, totals = [], []
    for step in range(num_saves):
        start = time.perf_counter()
        stalls.append(timed(lambda step=step: method.save(step)))
        method.wait()
        totals.append(time.perf_counter() - start)
        settle()
        _remove(method.path(step))
    method.close()
    return {"stalls_s": stalls, "totals_s": totals}


def memory(method):
    """Two saves, for whoever watches from outside."""
    for step in range(2):
        method.save(step)
        method.wait()
    method.close()


def killed(method, delay_s):
    """Saves two states, and is killed soon after the second save has returned."""
    method.save(0)
    method.wait()
    for tensor in method.state.values():
        tensor.fill_(2.0)
    method.save(1)
    if delay_s == 0.0:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Timer(delay_s, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    # Training goes on, and changes what it trains.
    while True:
        for tensor in method.state.values():
            tensor.fill_(3.0)


def loaded(method, step):
    """Whether a step comes back as it was saved, or why not."""
    try:
        method.load(step)
    except Exception as error:  # noqa: BLE001
        # What a peer raises for what is not there is its own affair.
        return {"whole": False, "reason": f"{type(error).__name__}: {error}"[:200]}
    wanted = float(step + 1)
    whole = all(bool((t == wanted).all()) for t in method.state.values())
    return {"whole": whole, "reason": "" if whole else "other values"}


def _remove(path):
    """Deletes what was written, so that no method pays for another's files."""
    if path.is_dir():
        for file in path.rglob("*"):
            if file.is_file():
                file.unlink()
    else:
        path.unlink(missing_ok=True)


def main():
    parser = parser_of(__doc__)
    parser.add_argument("task", choices=["times", "memory", "killed", "loaded"])
    parser.add_argument("name")
    add_place(parser)
    parser.add_argument("--mib", type=int, required=True)
    parser.add_argument("--num-saves", type=int, default=5)
    parser.add_argument("--delay-s", type=float, default=0.0)
    parser.add_argument("--step", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(NUM_THREADS)
    state = make_state(arguments.mib * MIB)
    place = place_of(arguments)
    kind = method_of(arguments.name)
    if arguments.task == "memory":
        print("state", flush=True)
        sys.stdin.readline()
    method = kind(place, state)
    match arguments.task:
        case "times":
            result = times(method, arguments.num_saves)
        case "memory":
            result = memory(method)
        case "killed":
            killed(method, arguments.delay_s)
        case "loaded":
            result = loaded(method, arguments.step)
    # Libraries print too; the result is the last line.
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
