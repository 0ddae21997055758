"""Fifteen families of models on ten meshes, each against one process.

A cell runs where the loss of three steps and every gradient of the first are those of a
single process, and at least 70% of each block's parameters are really shared along the
axis; otherwise it must be refused with a reason. `python matrix.py llama bert` runs some
families; `--columns "tp 2" "pp 2"` some meshes; `--markdown` prints the table of the docs.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings

import torch
from model_families import FAMILIES, loss_of

from drivetrain_testing import Row, run_ranks

NUM_STEPS, BATCH = 3, 8
LOSS, GRADIENT, SHARED, CELLS = 1e-5, 1e-3, 0.7, 0.85
# Of gradients that are zero but for rounding, nothing can be said.
FLOOR = 1e-4
MIXTURES = ("qwen3_moe", "mixtral")

COLUMNS = {
    "tp 2": {"tensor": 2},
    "tp 4": {"tensor": 4},
    "pp 2": {"pipeline": 2},
    "pp 4": {"pipeline": 4},
    "fsdp 4": {"shard": 4},
    "cp 2": {"context": 2},
    "ep 2": {"expert": 2},
    "tp2 x fsdp2": {"tensor": 2, "shard": 2},
    "pp2 x tp2": {"pipeline": 2, "tensor": 2},
    "pp2 x fsdp2 x tp2": {"pipeline": 2, "shard": 2, "tensor": 2},
}


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def size_of(mesh):
    size = 1
    for number in mesh.values():
        size *= number
    return size


def reference(name):
    """Returns losses and gradients of a plain loop on one process."""
    family = FAMILIES[name]
    torch.manual_seed(0)
    model = family.build()
    optimizer = sgd(model.parameters())
    losses, gradients = [], {}
    for step in range(NUM_STEPS):
        loss = loss_of(family, model, family.batch(BATCH, seed=step))
        loss.backward()
        if step == 0:
            gradients = {
                n: p.grad.clone()
                for n, p in model.named_parameters()
                if p.grad is not None
            }
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    blocks = {n: p.numel() for n, p in model.named_parameters()}
    return losses, gradients, blocks


def on_ranks(names, mesh):
    """Runs families on a mesh, on this rank; returns what each came to."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    return {name: cell(name, mesh) for name in names}


def cell(name, mesh):
    from drivetrain_core import PlanError, accelerate

    family = FAMILIES[name]
    batches = [family.batch(BATCH, seed=step) for step in range(NUM_STEPS)]
    try:
        accelerated = accelerate(
            family.build,
            sgd,
            batches,
            family.loss,
            strategy=[("mesh", mesh)],
            progress=False,
        )
    except PlanError as error:
        return {"refused": str(error), "code": error.code.value}
    losses, gradients, shared = [], [], {}
    for step, batch in enumerate(accelerated.loader):
        loss = accelerated.train_step.accumulate(batch)
        if step == 0:
            gradients, shared = parts_of(accelerated)
        accelerated.train_step.optimizer_step()
        loss = loss.clone()
        torch.distributed.all_reduce(loss)
        losses.append(float(loss) / torch.distributed.get_world_size())
    accelerated.close()
    return {"losses": losses, "gradients": gradients, "shared": shared}


def parts_of(accelerated):
    """Returns this rank's part of each gradient, and the axes that it is shared along."""
    from drivetrain_parallel.state.canonical import aliases_of

    aliases = aliases_of(accelerated.parallel_plan)
    parts, shared = [], {}
    for model in accelerated.models():
        named = dict(model.named_parameters())
        gradients = {n: p.grad for n, p in named.items() if p.grad is not None}
        for part in canonical_parts(model, gradients, aliases):
            local = part.local.clone()
            parts.append((part.name, part.global_shape, part.offset, local))
        for part, parameter in zip(
            canonical_parts(model, named, aliases), named.values(), strict=True
        ):
            placements = getattr(parameter, "placements", ())
            mesh = getattr(parameter, "device_mesh", None)
            axes = [] if mesh is None else mesh.mesh_dim_names
            where = zip(axes, placements, strict=True)
            cut = [axis for axis, p in where if not p.is_replicate()]
            shared[part.name] = "_".join(cut)
    return parts, shared


def canonical_parts(model, tensors, aliases):
    """Returns what a rank has of tensors that belong to the parameters of a model.

    Args:
        model: This rank's model, or a stage of it.
        tensors: One for each of some parameters, such as its gradient, of its shape
            and layout, by the parameter's name in the model.
        aliases: The first name of parameters that a stage holds under another one.
    """
    from torch.distributed.tensor import DTensor

    from drivetrain_core.services.tensor_spec import TensorPart
    from drivetrain_parallel.tensor.canonical import canonical_slices

    slices, found = canonical_slices(model), []
    for name, tensor in tensors.items():
        local, offset = tensor, (0,) * tensor.dim()
        if isinstance(tensor, DTensor):
            local = tensor.to_local()
            offset = tuple(tensor.__create_chunk_list__()[0].offsets)
        whole = slices[name]
        found.append(
            TensorPart(
                name=aliases.get(whole.name, whole.name),
                global_shape=tuple(whole.global_shape),
                dtype=tensor.dtype,
                offset=tuple(a + b for a, b in zip(whole.offset, offset, strict=True)),
                local=local,
            )
        )
    return found


def whole_gradients(results, name):
    """Returns each gradient put together from the parts of all ranks."""
    found = {}
    for rank in results:
        for each, shape, offset, local in rank[name]["gradients"]:
            whole = found.setdefault(each, torch.full(shape, float("nan")))
            where = tuple(
                slice(o, o + n) for o, n in zip(offset, local.shape, strict=True)
            )
            whole[where] = local
    return found


def judge(name, mesh, results):
    """Returns the verdict of a cell, its worst gradient and its coverage."""
    refused = [rank[name].get("refused") for rank in results]
    if all(refused):
        return "refused", results[0][name]
    if any(refused):
        return "wrong", {"because": "some ranks refuse it"}
    losses, gradients, numbers = reference(name)
    found = results[0][name]["losses"]
    away = max(abs(a - b) / abs(a) for a, b in zip(losses, found, strict=True))
    whole = whole_gradients(results, name)
    missing = gradients.keys() ^ whole.keys()
    largest = max(float(g.norm()) for g in gradients.values())
    worst, at = 0.0, ""
    for each in gradients.keys() & whole.keys():
        norm = max(float(gradients[each].norm()), FLOOR * largest)
        gap = float((whole[each] - gradients[each]).norm()) / norm
        if not gap <= worst:
            worst, at = gap, each
    facts = {"loss": away, "gradient": worst, "at": at}
    if missing or not away <= LOSS or not worst <= GRADIENT:
        return "wrong", {**facts, "missing": sorted(missing)[:3]}
    facts["shared"] = coverage(name, mesh, results, numbers)
    verdict = "runs" if facts["shared"] >= SHARED else "wrong"
    return verdict, facts


def coverage(name, mesh, results, numbers):
    """Returns the part of a block's parameters that is shared, where it is least."""
    model = FAMILIES[name].build()
    from drivetrain_core._model.blocks import find_blocks

    container = find_blocks(model).container
    least = 1.0
    for axis in mesh:
        if axis == "context":
            # The sequence is shared, and no parameter.
            continue
        shared = {}
        for rank in results:
            shared.update(rank[name]["shared"])
        for index in range(find_blocks(model).count):
            block = f"{container}.{index}."
            mine = {n: k for n, k in numbers.items() if n.startswith(block)}
            if axis == "pipeline":
                holders = [
                    any(n.startswith(block) for n in rank[name]["shared"])
                    for rank in results
                ]
                part = 1.0 if sum(holders) * mesh[axis] == len(holders) else 0.0
            else:
                cut = sum(
                    k for n, k in mine.items() if axis in shared.get(n, "").split("_")
                )
                part = cut / sum(mine.values())
            least = min(least, part)
    return least


def cells(names, columns):
    """Yields family, column, verdict and facts of each cell."""
    for column in columns:
        mesh = COLUMNS[column]
        wanted = [n for n in names if (n in MIXTURES) == (column == "ep 2")]
        if not wanted:
            continue
        results = run_ranks(on_ranks, size_of(mesh), wanted, mesh, timeout_s=900)
        for name in wanted:
            yield name, column, *judge(name, mesh, results)


def measure(quick):
    """Measures the matrix; the quick form takes three families on two meshes."""
    names = ["llama", "gpt2", "dit"] if quick else list(FAMILIES)
    columns = ["tp 2", "pp 2"] if quick else list(COLUMNS)
    found = list(cells(names, columns))
    counts = {kind: sum(v == kind for *_, v, _ in found) for kind in KINDS}
    part = counts["runs"] / len(found)
    return Row(
        figure=f"{counts['runs']} of {len(found)} run ({part:.0%}), "
        f"{counts['refused']} refused, {counts['wrong']} wrong and accepted",
        holds=part >= CELLS and not counts["wrong"],
        proven_on="cpu-gloo",
        details={f"{n}, {c}": [v, told(v, facts)] for n, c, v, facts in found},
    )


KINDS = ("runs", "refused", "wrong")


def told(verdict, facts):
    if verdict == "refused":
        return facts["refused"]
    if verdict == "runs":
        return f"{facts['shared']:.0%} shared, gradients {facts['gradient']:.0e}"
    return str(facts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--columns", nargs="*", default=list(COLUMNS))
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    names = options.families or list(FAMILIES)
    table, started = {}, time.monotonic()
    for name, column, verdict, facts in cells(names, options.columns):
        table[name, column] = verdict, facts
        sys.stdout.write(f"{name:12} {column:18} {verdict:8} {told(verdict, facts)}\n")
        sys.stdout.flush()
    if options.markdown:
        write_markdown(table, names, options.columns)
    sys.stdout.write(f"{time.monotonic() - started:.0f} s\n")
    return int(any(verdict == "wrong" for verdict, _ in table.values()))


def write_markdown(table, names, columns):
    lines = [
        "| family | " + " | ".join(columns) + " |",
        "| --- |" + " --- |" * len(columns),
    ]
    for name in names:
        row = []
        for column in columns:
            verdict, facts = table.get((name, column), ("", {}))
            shown = {"runs": "yes", "wrong": "WRONG", "": ""}
            row.append(shown.get(verdict, facts.get("code", "")))
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
