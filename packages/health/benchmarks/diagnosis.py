"""What the diagnosis finds of faults that were injected, and what watching costs.

Symptoms of the faults are in fault_lines.json, by where they are seen: in the kernel's log,
by NVML, by a network port, by a control group, in what a worker writes. They were written
down from how several versions of PyTorch, NCCL, CUDA and the kernel speak, with numbers
left open, and apart from the samples of the tests; no hardware was broken for them.
"""

import json
import random
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import psutil

from drivetrain_health.failures import (
    Evidence,
    FailureClass,
    Finding,
    GpuReading,
    Health,
    NicReading,
    diagnose,
    root_cause,
)
from drivetrain_testing import Row

_SEED = 20261123
LINES = json.loads(Path(__file__).with_name("fault_lines.json").read_text())
_KINDS = {
    "gpu-lost": (FailureClass.GPU_HARDWARE, LINES["gpu-lost"]),
    "gpu-memory": (FailureClass.GPU_HARDWARE, LINES["gpu-memory"]),
    "node-memory": (FailureClass.NODE_HARDWARE, LINES["node-memory"]),
    "pcie": (FailureClass.NODE_HARDWARE, LINES["pcie"]),
    "disk": (FailureClass.NODE_HARDWARE, LINES["disk"]),
    "node-lost": (FailureClass.NODE_LOST, {}),
    "nic": (FailureClass.INTERCONNECT, LINES["nic"]),
    "nvlink": (FailureClass.INTERCONNECT, LINES["nvlink"]),
    "fabric-text": (FailureClass.INTERCONNECT, LINES["fabric-text"]),
    "fabric-unknown": (FailureClass.INTERCONNECT, {}),
    "port-in-use": (FailureClass.RENDEZVOUS, LINES["meeting"]),
    "host-memory": (FailureClass.OUT_OF_MEMORY, LINES["host-memory"]),
    "host-memory-text": (FailureClass.OUT_OF_MEMORY, LINES["host-memory-text"]),
    "cuda-memory": (FailureClass.OUT_OF_MEMORY, LINES["cuda-memory"]),
    "storage": (FailureClass.STORAGE, LINES["storage"]),
    "store": (FailureClass.SERVICE, LINES["store"]),
    "program": (FailureClass.PROGRAM, LINES["program"]),
    "crash": (FailureClass.CRASH, LINES["crash"]),
    "cuda-crash": (FailureClass.CRASH, LINES["cuda-crash"]),
    "killed": (FailureClass.KILLED, {}),
    "hang": (FailureClass.HANG, {}),
    "corruption": (FailureClass.CORRUPTION, {}),
    "straggler": (FailureClass.STRAGGLER, {}),
    "exit": (FailureClass.UNKNOWN, {}),
}
_NOBODYS = {"fabric-unknown", "store", "program"}


def decision_layer(quick):
    """1,000 faults in jobs of 4 to 64 nodes: how many get their node and class."""
    num = 250 if quick else 1000
    right, named, confused = 0, 0, Counter()
    took_s = []
    for index in range(num):
        dice = random.Random(f"{_SEED}/{index}")
        kind = list(_KINDS)[index % len(_KINDS)]
        truth, evidence = job(dice, kind)
        began_s = time.perf_counter()
        findings = [Finding(at_s, diagnose(one)) for at_s, one in evidence]
        found = root_cause(findings)
        took_s.append(time.perf_counter() - began_s)
        answer = (found.failure_class, found.node)
        right += answer == truth
        is_answer = found.failure_class != FailureClass.UNKNOWN or kind == "exit"
        named += is_answer
        if answer != truth:
            confused[f"{kind}: {truth[0]} -> {found.failure_class}: {found.cause}"] += 1
    precision, recall = right / max(1, named), right / num
    for what, count in confused.most_common():
        print(f"{count:4d} {what}", file=sys.stderr)
    took_s.sort()
    return Row(
        figure=f"precision {precision:.1%}, recall {recall:.1%} of node and class in {num} "
        f"faults; {took_s[len(took_s) // 2] * 1e3:.1f} ms a job, p99 "
        f"{took_s[int(len(took_s) * 0.99)] * 1e3:.0f} ms",
        holds=precision >= 0.99 and recall >= 0.99,
        proven_on="simulation",
        details={"confused": dict(confused), "precision": precision, "recall": recall},
    )


def job(dice, kind):
    """Returns the true class and node of a fault, and the evidence of all who failed."""
    failure_class, symptoms = _KINDS[kind]
    num_nodes, per_node = dice.randint(4, 64), dice.choice((1, 2, 8))
    nodes = [f"n{at}" for at in range(num_nodes)]
    bad = dice.choice(nodes)
    all_workers = [(node, slot) for node in nodes for slot in range(per_node)]
    found = []
    slot = dice.randrange(per_node)
    if kind != "fabric-unknown":
        at_s = dice.uniform(0.0, 3.0)
        found.append((at_s, victim(dice, kind, symptoms, bad, slot)))
    others = [one for one in all_workers if one != (bad, slot)]
    dice.shuffle(others)
    # A straggler and wrong numbers are found by somebody who looks, without echoes.
    share = 0.0 if kind in {"corruption", "straggler"} else dice.choice((0.2, 0.6, 1.0))
    least = 2 if kind == "fabric-unknown" else 0
    for node, other in others[: max(least, int(share * len(others)))]:
        found.append(
            (dice.uniform(0.0, 3.0), echo(dice, kind, node, other, node == bad))
        )
    if kind == "node-lost":
        # Nothing is heard of the others there either.
        found = [
            (at_s, one if one.node != bad else lost(one.worker, bad))
            for at_s, one in found
        ]
    dice.shuffle(found)
    return (failure_class, "" if kind in _NOBODYS else bad), found


def lost(worker, node):
    return Evidence(worker=worker, node=node, is_node_lost=True)


def victim(dice, kind, symptoms, node, slot):
    """Returns the evidence of the worker that the fault hits."""
    worker = f"{node}/{slot}"
    match kind:
        case "node-lost":
            return lost(worker, node)
        case "corruption":
            probe = (
                f"GPU {slot}: digest {dice.randrange(1 << 16):04x} of the block differs"
            )
            return evidence(dice, worker, node, None, "", probe=probe)
        case "straggler":
            slow = f"{dice.uniform(1.3, 3):.2f} times the median in 5 of 6 windows"
            return evidence(dice, worker, node, None, "", slow=slow)
        case "hang":
            health = dice.choice((Health.FROZEN, Health.STUCK))
            why = dice.choice(
                ("stopped, and silent for 2.3 s", "computing for 600.1 s")
            )
            code = dice.choice((-9, None))
            return evidence(
                dice,
                worker,
                node,
                code,
                "",
                health=health,
                why_killed=why,
                silent_s=2.3,
            )
        case "killed":
            return evidence(dice, worker, node, dice.choice((-9, 137)), "")
        case "exit":
            return evidence(dice, worker, node, dice.choice((3, 17, 255)), "")
        case "crash":
            code = dice.choice(symptoms["code"])
            own = symptoms["text"]
            text = dice.choice(own) if code in (-6, 134) else dice.choice((own[0], ""))
            if code not in (-6, 134, -11, 139):
                text = ""
            return evidence(dice, worker, node, code, text)
    seen = {
        where: dice.choice(options)
        for where, options in symptoms.items()
        if where != "text"
    }
    # Of two that see it, one may not be there: no NVML, no right to read the kernel's log.
    if len(seen) > 1 and dice.random() < 0.5:
        del seen[dice.choice(sorted(seen))]
    code, text = ending(dice, kind, symptoms)
    more = {}
    if "nvml" in seen:
        seen["nvml"]["xids"] = tuple(seen["nvml"].get("xids", ()))
        more["gpus"] = (GpuReading(index=slot, **seen["nvml"]),)
    elif dice.random() < 0.5:
        more["gpus"] = (GpuReading(index=0, missing="Driver Not Loaded"),)
    if "port" in seen:
        more["network"] = (NicReading(name="mlx5_0/1", **seen["port"]),)
    if "group" in seen:
        more["oom_kills"] = seen["group"]
    kernel = [seen["kernel"]] if "kernel" in seen else []
    return evidence(dice, worker, node, code, text, kernel=kernel, **more)


def ending(dice, kind, symptoms):
    """Returns how the worker that is hit ends, and what it writes."""
    cuda = dice.choice(LINES["cuda"]).replace(
        "{what}", dice.choice(("unspecified launch failure", "unknown error"))
    )
    if "text" in symptoms:
        text = dice.choice(symptoms["text"])
        return (-6 if text.startswith("terminate") else 1), text
    match kind:
        case "gpu-lost" | "gpu-memory" | "pcie":
            text = dice.choice((cuda, dice.choice(LINES["echoes"])[1], ""))
            return dice.choice((1, -6)), text
        case "node-memory":
            return dice.choice((-7, -9, -11)), ""
        case "host-memory":
            return dice.choice((-9, 137)), ""
        case _:
            code, text = dice.choice([one for one in LINES["echoes"] if one[1]])
            return code, text


def echo(dice, kind, node, slot, is_there):
    """Returns the evidence of a worker that only lost the others."""
    code, text = dice.choice(LINES["echoes"])
    while code == -6 and not text:
        # An abort without a word is a crash of its own, as far as anybody can tell.
        code, text = dice.choice(LINES["echoes"])
    if kind == "port-in-use" and dice.random() < 0.5:
        text = "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients."
        code = 1
    return evidence(dice, f"{node}/{slot}", node, code, text)


def evidence(dice, worker, node, code, text, *, kernel=(), **more):
    """Fills in numbers, and puts what means nothing around what was seen."""
    fill = {
        "pid": dice.randrange(1000, 60000),
        "cpu": dice.randrange(8),
        "bus": f"{dice.randrange(256):02x}",
    }

    def filled(line):
        return (
            line.replace("{{", "{").replace("}}", "}")
            if "{{" in line
            else (line.format(**fill) if "{" in line else line)
        )

    noise = [
        filled(dice.choice(LINES["noise-text"])) for _ in range(dice.randrange(12))
    ]
    output = "\n".join([*noise, *framed(dice, filled(text))])
    seen = [filled(one) for one in kernel]
    seen += [
        filled(dice.choice(LINES["noise-kernel"])) for _ in range(dice.randrange(5))
    ]
    dice.shuffle(seen)
    # Clocks of nodes are wrong by up to an hour, and nobody minds.
    at_s = 1000.0 + dice.uniform(-3600, 3600)
    style = dice.choice(
        ("", f"[{at_s:12.6f}] ", f"Nov 23 1{dice.randrange(10)}:00:00 {node} kernel: ")
    )
    if "network" not in more and dice.random() < 0.3:
        more["network"] = (
            NicReading(name="eth0", missing="carrier: Invalid argument"),
        )
    return Evidence(
        worker=worker,
        node=node,
        exit_code=code,
        output=output,
        kernel=tuple(style + one for one in seen),
        **more,
    )


def framed(dice, text):
    """Returns an exception as Python, or torch on behalf of a rank, writes it."""
    name = text.split("\n")[0].split(": ")[0]
    if not name.endswith(("Error", "Unavailable")) or "(" in name:
        return text.splitlines()
    body = ["Traceback (most recent call last):",
            f'  File "/job/train.py", line {dice.randrange(1, 300)}, in step',
            "    loss = engine.step(batch)  # no retry on connection reset by peer",
            *text.splitlines()]  # fmt: skip
    if dice.random() < 0.3:
        rank = f"[rank{dice.randrange(64)}]: "
        body = [rank + line for line in body]
    return body


def network_overhead(quick):
    """What the sampler of network counters takes of a core, at 10 ms or less."""
    from drivetrain_health.diagnosis import NetworkSampler

    for_s = 3.0 if quick else 20.0
    with NetworkSampler() as sampler:
        if sampler.why_missing:
            return Row(figure=sampler.why_missing, holds=None)
        time.sleep(0.5)
        sampler.take()
        process, began = psutil.Process(), time.monotonic()
        before = process.cpu_times()
        time.sleep(for_s)
        after, wall_s = process.cpu_times(), time.monotonic() - began
        samples = sampler.take()
    used_s = after.user + after.system - before.user - before.system
    gaps = sorted(
        1e3 * (b[0] - a[0]) for one in samples.values() for a, b in pairwise(one)
    )
    within = sum(gap <= 10.0 for gap in gaps) / len(gaps)
    return Row(
        figure=f"{used_s / wall_s:.2%} of a core for {len(samples)} ports; a sample each "
        f"{sum(gaps) / len(gaps):.2f} ms, {within:.1%} within 10 ms, p99 "
        f"{gaps[int(len(gaps) * 0.99)]:.1f} ms",
        holds=used_s / wall_s <= 0.02 and gaps[len(gaps) // 2] <= 10.0,
        details={"share": used_s / wall_s, "within_10_ms": within},
    )


if __name__ == "__main__":
    print(decision_layer(False).figure)
    print(network_overhead(False).figure)
