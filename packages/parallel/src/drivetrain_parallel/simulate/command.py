"""`drivetrain simulate`: what training on a cluster would reach."""

from __future__ import annotations

import dataclasses
import difflib
import json
import sys
from typing import TYPE_CHECKING, Any

from drivetrain_core import Code, PlanError
from drivetrain_core.commands import as_wrong_use
from drivetrain_core.mesh_shape import AXES, MeshShape
from drivetrain_core.services.cluster_spec import ClusterSpec
from drivetrain_parallel.cost import (
    SCHEDULES,
    Hardware,
    Ranking,
    StepOptions,
    rank_meshes,
)
from drivetrain_parallel.cost.step_options import CHECKPOINTING
from drivetrain_parallel.simulate.ablation import best_at_scale, predict_ablation
from drivetrain_parallel.simulate.clusters import is_cluster_file, load_cluster
from drivetrain_parallel.simulate.models import load_model
from drivetrain_parallel.simulate.published import predict_row, published_rows
from drivetrain_parallel.simulate.tables import (
    ablation_table,
    outcome_dict,
    ranking_dict,
    ranking_table,
    rows_table,
    summary_table,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from drivetrain_parallel.cost.model_profile import ModelProfile


def run(arguments: argparse.Namespace) -> int:
    """Prints what training on a cluster would reach."""
    if arguments.published or arguments.ablation:
        with as_wrong_use(arguments):
            _refuse_mixture(arguments)
        text = _published(arguments) if arguments.published else _ablation(arguments)
    else:
        ranking = simulate(arguments)
        text = _shown(ranking, arguments)
    sys.stdout.write(f"{text}\n")
    return 0


def simulate(arguments: argparse.Namespace) -> Ranking:
    """Returns the meshes for what the options describe, the fastest first.

    Args:
        arguments: The options of `drivetrain simulate`.

    Raises:
        UsageError: They describe no job, or the cluster is unknown.
        PlanError: No mesh can run it.
    """
    spec = _cluster(arguments)
    with as_wrong_use(arguments):
        what, choices = _described(arguments, spec)
    return rank_meshes(*what, **choices)


def _cluster(arguments: argparse.Namespace) -> ClusterSpec:
    """Returns the cluster; what is wrong with a file of one is no wrong use."""
    if is_cluster_file(arguments.cluster):
        return ClusterSpec.load(arguments.cluster)
    with as_wrong_use(arguments, "--cluster"):
        return load_cluster(arguments.cluster)


def _described(
    arguments: argparse.Namespace, spec: ClusterSpec
) -> tuple[tuple[ModelProfile, Hardware, int, int], dict[str, Any]]:
    """Returns what `rank_meshes` is asked: what trains where, and what is chosen."""
    if arguments.model is None:
        raise PlanError(
            Code.CONFIG,
            "simulate",
            because="--model is missing",
            fix="name one, such as --model llama3-8b, or give its sizes",
        )
    if len(spec.nodes) > 1:
        names = ", ".join(group.name for group in spec.nodes)
        raise PlanError(
            Code.NOT_APPLICABLE,
            "simulate",
            because=f"--cluster {spec.name} has several groups of nodes ({names}), and a mesh is "
            "predicted on equal nodes",
            fix="describe one group in a file of its own",
        )
    hardware = Hardware.of(spec.nodes[0])
    with as_wrong_use(arguments, "--model"):
        profile = load_model(arguments.model, seq=arguments.seq)
    with as_wrong_use(arguments, "--mesh"):
        shape, num_devices = _mesh(arguments)
    _require_axes(arguments, shape)
    global_batch = arguments.global_batch
    if global_batch is None:
        global_batch = 4 * num_devices
    with as_wrong_use(arguments, "--set"):
        template = _template(arguments, global_batch)
    choices: dict[str, Any] = {
        "template": template,
        "shapes": None if shape is None else [shape],
        "micro_batches": _given(arguments.micro_batch),
        "stages_per_rank": _given(arguments.stages_per_rank),
    }
    if arguments.schedule is not None:
        choices["schedules"] = (_of("--schedule", arguments.schedule, SCHEDULES),)
        _require_stages(arguments.schedule, arguments.stages_per_rank)
    if arguments.checkpointing is not None:
        choices["checkpointing"] = (
            _of("--checkpointing", arguments.checkpointing, CHECKPOINTING),
        )
    if arguments.zero is not None:
        choices["zero"] = (template.zero,)
    return (profile, hardware, num_devices, global_batch), choices


def _require_axes(arguments: argparse.Namespace, shape: MeshShape | None) -> None:
    """Refuses options of an axis that the named mesh has not."""
    if shape is None:
        return
    for name, axis, size, is_idle in (
        ("schedule", "pipeline", shape.pipeline, None),
        ("stages_per_rank", "pipeline", shape.pipeline, 1),
        ("zero", "shard", shape.shard, 0),
    ):
        value = getattr(arguments, name)
        if size == 1 and value is not None and value != is_idle:
            raise PlanError(
                Code.CONFLICT,
                "simulate",
                because=f"{_option(name)} {value} is about the {axis} axis, and the mesh "
                f"{shape} has none",
                fix=f"leave {_option(name)} out, or name {axis} in --mesh",
            )


def _require_stages(schedule: str, stages_per_rank: int | None) -> None:
    """Refuses a number of stages that a named schedule never has."""
    chunks = SCHEDULES[schedule].chunks
    if chunks and stages_per_rank not in (None, chunks):
        raise PlanError(
            Code.CONFLICT,
            "simulate",
            because=f"--schedule {schedule} has {chunks} stages a rank, and "
            f"--stages-per-rank is {stages_per_rank}",
            fix="leave --stages-per-rank out, or name another schedule, such as "
            "interleaved_1f1b",
        )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _given(number: int | None) -> tuple[int, ...] | None:
    return None if number is None else (number,)


def _mesh(arguments: argparse.Namespace) -> tuple[MeshShape | None, int]:
    """Returns the mesh that was named, if any, and the number of devices."""
    if arguments.mesh is None:
        if arguments.gpus is None:
            raise PlanError(
                Code.CONFIG,
                "simulate",
                because="neither --gpus nor --mesh is given",
                fix="say how many GPUs to use: --gpus 64",
            )
        return None, arguments.gpus
    axes: dict[str, object] = {}
    for item in arguments.mesh.split(","):
        axis, _, number = (part.strip() for part in item.partition("="))
        _of("--mesh", axis, AXES)
        if axis in axes:
            raise PlanError(
                Code.CONFLICT,
                "mesh",
                because=f"--mesh names {axis} twice",
                fix="name each axis once",
            )
        try:
            axes[axis] = int(number)
        except ValueError:
            raise PlanError(
                Code.CONFIG,
                "mesh",
                because=f"{axis} must be an integer, got {number!r}",
                fix="write --mesh pipeline=8,tensor=8",
            ) from None
    if arguments.gpus is None:
        shape = MeshShape(**axes)  # type: ignore[arg-type]
    else:
        shape = MeshShape.of(axes, arguments.gpus)
    return shape, shape.size


def _template(arguments: argparse.Namespace, global_batch: int) -> StepOptions:
    fields = {f.name: f for f in dataclasses.fields(StepOptions)}
    values: dict[str, Any] = {"global_batch": global_batch}
    if arguments.zero is not None:
        values["zero"] = arguments.zero
    named = set()
    for item in arguments.set:
        name, _, text = (part.strip() for part in item.partition("="))
        _of("--set", name, fields)
        if hasattr(arguments, name):
            raise PlanError(
                Code.CONFLICT,
                "simulate",
                because=f"{name} has an option of its own, and would be searched over in "
                "spite of --set",
                fix=f"use {_option(name)} {text}".rstrip(),
            )
        if name in named:
            raise PlanError(
                Code.CONFLICT,
                "simulate",
                because=f"--set names {name} twice",
                fix="name each option once",
            )
        named.add(name)
        values[name] = _parsed(name, text, fields[name].type)
    return StepOptions(**values)


def _parsed(name: str, text: str, kind: object) -> object:
    if kind == "bool":
        flags = {"true": True, "false": False}
        if text.lower() in flags:
            return flags[text.lower()]
    elif kind == "str":
        return text
    else:
        try:
            return int(text) if kind == "int" else float(text)
        except ValueError:
            pass
    what = {"bool": "true or false", "int": "an integer"}.get(str(kind), "a number")
    raise PlanError(
        Code.CONFIG, "simulate", because=f"{name} must be {what}, got {text!r}"
    )


def _of(option: str, name: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    if name in known:
        return name
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"; nearest: {near[0]}" if near else ""
    raise PlanError(
        Code.UNKNOWN,
        "simulate",
        because=f"{option} has {name!r}, which is none of {', '.join(known)}{hint}",
    )


def _refuse_mixture(arguments: argparse.Namespace) -> None:
    if arguments.published and arguments.ablation:
        raise PlanError(
            Code.CONFLICT,
            "simulate",
            because="--published and --ablation are two tables",
            fix="ask for one of them",
        )
    for name in (
        *("model", "gpus", "mesh", "global_batch", "micro_batch", "seq", "schedule"),
        *("stages_per_rank", "checkpointing", "zero", "set", "refused"),
    ):
        if getattr(arguments, name) not in (None, False, []):
            raise PlanError(
                Code.CONFLICT,
                "simulate",
                because="--published and --ablation bring their own models and "
                f"meshes, and {_option(name)} was given",
                fix=f"leave {_option(name)} out",
            )


def _shown(ranking: Ranking, arguments: argparse.Namespace) -> str:
    if arguments.json:
        return json.dumps(ranking_dict(ranking, arguments.top), indent=2)
    lines = [
        ranking_table(ranking, arguments.top),
        "",
        (
            f"meshes that can run: {len(ranking.candidates)}, that cannot: "
            f"{len(ranking.refused)}; ways to run a step that were predicted: "
            f"{ranking.num_predictions} (simulation)"
        ),
    ]
    if arguments.refused:
        lines += [f"- {r.shape}: {r.because} ({r.code})" for r in ranking.refused]
    return "\n".join(lines)


def _published(arguments: argparse.Namespace) -> str:
    outcomes = [predict_row(row) for row in published_rows()]
    if arguments.json:
        return json.dumps([outcome_dict(each) for each in outcomes], indent=2)
    return f"{rows_table(outcomes)}\n\n{summary_table(outcomes)}"


def _ablation(arguments: argparse.Namespace) -> str:
    outcomes = predict_ablation()
    ranking, own = best_at_scale()
    if arguments.json:
        plain = {
            "steps": [
                {
                    "name": each.step.name,
                    "measured": each.step.measured,
                    "predicted": each.predicted,
                    "error": each.error,
                }
                for each in outcomes
            ],
            "at_scale": {"own_mfu": own.mfu, **ranking_dict(ranking, arguments.top)},
        }
        return json.dumps(plain, indent=2)
    return (
        f"{ablation_table(outcomes)}\n\n12,288 GPUs, a batch of 6,144: MegaScale's own "
        f"mesh is predicted to reach {own.mfu:.1%}\n\n"
        f"{ranking_table(ranking, arguments.top)}"
    )
