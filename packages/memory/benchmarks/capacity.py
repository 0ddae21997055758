"""What traces need of a device, here and by models of PyTorch's allocators."""

import functools

from drivetrain_memory import replay, smallest_capacity
from drivetrain_memory.trace import WORKLOADS, pattern, workload
from drivetrain_testing import Row

SIMULATION = "simulation"
TIGHT, AMPLE = 1.05, 4
VARYING = [name for name in WORKLOADS if name.endswith("varlen")]
STATIC = [name for name in WORKLOADS if name not in VARYING]
# Few of them, for the quick form.
QUICK = ("llm-lora", "llm-lora-zero3-varlen", "resnet-50")


@functools.cache
def trace_of(name):
    return workload(name) if name in WORKLOADS else pattern(name)


def smallest(name, model="ours"):
    trace = trace_of(name)
    return smallest_capacity(trace, model) / trace.peak_live_bytes


def tight(name, model="ours"):
    trace = trace_of(name)
    return replay(trace, model, capacity_bytes=int(TIGHT * trace.peak_live_bytes))


def chosen(names, quick):
    return [name for name in names if not quick or name in QUICK]


def regular(quick):
    names = chosen(WORKLOADS, quick)
    found = {name: smallest(name) for name in names}
    flushes = sum(tight(name).flushes for name in names)
    worst = max(found, key=found.get)
    theirs = max(smallest(name, "expandable") for name in names)
    return Row(
        figure=f"at most {found[worst]:.4f}x ({worst}) of {len(names)}, {flushes} flushes; "
        f"expandable segments (model) at most {theirs:.4f}x",
        holds=found[worst] <= 1.005 and flushes == 0,
        proven_on=SIMULATION,
        details=found,
    )


def of_patterns(names, bound):
    found = {name: smallest(name) for name in names}
    theirs = {name: smallest(name, "expandable") for name in names}
    return Row(
        figure=", ".join(
            f"{name} {found[name]:.4f}x (expandable, model: {theirs[name]:.2f}x)"
            for name in names
        ),
        holds=max(found.values()) <= bound,
        proven_on=SIMULATION,
        details={"ours": found, "expandable": theirs},
    )


def checkerboards(quick):
    del quick
    return of_patterns([f"checkerboard-{size}" for size in (6, 16, 24)], 1.01)


def small_checkerboard(quick):
    del quick
    return of_patterns(["checkerboard-3"], 1.15)


def aging(quick):
    del quick
    return of_patterns(["aging"], 1.03)


def used(name, model="ours", headroom=None):
    trace = trace_of(name)
    capacity = AMPLE * trace.peak_live_bytes
    played = replay(trace, model, capacity_bytes=capacity, headroom=headroom)
    return played.peak_live_bytes / played.peak_reserved_bytes


def island(quick):
    del quick
    ours, theirs = used("island", headroom=0.0), used("island", "expandable")
    return Row(
        figure=f"{100 * ours:.1f}% (expandable, model: {100 * theirs:.1f}%)",
        holds=ours >= 0.99,
        proven_on=SIMULATION,
    )


def utilisation(quick):
    found = {name: used(name, headroom=0.0) for name in chosen(WORKLOADS, quick)}
    worst = min(found, key=found.get)
    theirs = min(used(name, "expandable") for name in found)
    return Row(
        figure=f"at least {100 * found[worst]:.1f}% ({worst}); expandable (model) at "
        f"least {100 * theirs:.1f}%",
        holds=found[worst] >= 0.98,
        proven_on=SIMULATION,
        details=found,
    )


def calls_of_static_shapes(quick, times):
    calls = {}
    for name in chosen(STATIC, quick):
        trace = trace_of(name)
        capacity = int(times * trace.peak_live_bytes)
        calls[name] = replay(trace, "ours", capacity_bytes=capacity).calls_by_step
    found = {name: sum(steps[4:]) for name, steps in calls.items()}
    return Row(
        figure=f"on {times:g} times what is live: "
        + ", ".join(f"{name} {calls}" for name, calls in found.items()),
        holds=not any(found.values()),
        proven_on=SIMULATION,
        details=calls,
    )


def static_shapes(quick):
    return calls_of_static_shapes(quick, AMPLE)


def static_shapes_tight(quick):
    return calls_of_static_shapes(quick, TIGHT)


def moved(quick):
    parts = {}
    for name in chosen(VARYING, quick):
        ours, theirs = tight(name), tight(name, "expandable")
        parts[name] = (ours.remapped_bytes, theirs.remapped_bytes)
    words = [
        f"{name} {ours / theirs:.2f}" if theirs else f"{name} {ours} bytes of 0"
        for name, (ours, theirs) in parts.items()
    ]
    return Row(
        figure=", ".join(words),
        holds=all(ours <= 0.5 * theirs for ours, theirs in parts.values()),
        proven_on=SIMULATION,
        details=parts,
    )
