"""Ten ways to lay a model over a mesh that run, and train something else: all are caught.

Each is what somebody writes by hand, or a plan with the part left out that makes it right.
What is caught is told by its reason; `python mesh_bugs.py` prints them.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from pathlib import Path

import torch
from guarded_programs import (
    choices_of,
    judged,
    look,
    on_rank,
    payload_of,
    programs,
)
from planted_rank_bugs import RANK_BUGS

# The families are those of the package that lays models out.
sys.path.append(str(Path(__file__).resolve().parents[2] / "parallel" / "benchmarks"))

from model_families import FAMILIES, loss_of

from drivetrain_core import register, unregister
from drivetrain_core._compose import complete
from drivetrain_core._errors import PlanError
from drivetrain_testing import Row, run_ranks


def loss_function(family):
    def loss(model, batch):
        return loss_of(family, model, batch)

    return loss


def model_of(name):
    torch.manual_seed(0)
    return FAMILIES[name].build()


def on_two_ranks(name):
    """The guard's reason against a bug of the averaging, or of its construction."""
    payload = on_rank(payload_of(programs()["residual"]))
    reference = look(payload, complete((), payload.context), baseline=True)
    (bug,) = (one for one in RANK_BUGS if one.name == name)
    register(bug)
    try:
        choices = choices_of([bug.name], payload.context)
        return getattr(judged(payload, choices, reference), "because", "")
    finally:
        unregister(bug.name)


def planted_on_ranks(name):
    return all_of(run_ranks(on_two_ranks, 2, name, timeout_s=120))


def tensor_plan(name):
    from drivetrain_parallel.tensor import plan_tensor_parallel

    family = FAMILIES[name]
    model, batch = model_of(name), family.batch(4)
    return model, batch, plan_tensor_parallel(model, batch, loss_function(family), 2)


def verdict_of(name, change):
    """Leaves a part of a right plan out, and asks the simulation."""
    from drivetrain_parallel.tensor import verify_tensor_plan

    model, batch, plan = tensor_plan(name)
    wrong = change(plan)
    assert wrong != plan
    loss = loss_function(FAMILIES[name])
    found = verify_tensor_plan(model, batch, loss, wrong)
    return "" if found.is_exact else found.because


def query_norm():
    def change(plan):
        modules = {n: s for n, s in plan.modules.items() if "q_norm" not in n}
        return dataclasses.replace(plan, modules=modules)

    return verdict_of("qwen3", change)


def folded_heads():
    return verdict_of("opt", lambda plan: dataclasses.replace(plan, attributes={}))


def naive_pipeline(name, container, norm, embed):
    """Splits by hand: later stages get the state as `inputs_embeds`, and no more."""
    from drivetrain_parallel.proof.outputs import StepOutput, compare, step_output

    family = FAMILIES[name]
    model, batch = model_of(name), family.batch(4)
    expected = step_output(model, batch, loss_function(family))
    first, last = copy.deepcopy(model), copy.deepcopy(model)
    for half, keep in ((first, slice(0, 2)), (last, slice(2, 4))):
        blocks = half.get_submodule(container)
        parent, _, child = container.rpartition(".")
        setattr(half.get_submodule(parent), child, blocks[keep])
    owner, _, child = norm.rpartition(".")
    setattr(first.get_submodule(owner), child, torch.nn.Identity())
    ids = batch["input_ids"]
    state = first.get_submodule(embed)(input_ids=ids, use_cache=False)[0]
    sent = state.detach().requires_grad_()
    rest = {k: v for k, v in batch.items() if k != "input_ids"}
    loss = last(inputs_embeds=sent, **rest).loss
    loss.backward()
    state.backward(sent.grad)
    gradients = {}
    for half, offset in ((first, 0), (last, 2)):
        for each, parameter in half.named_parameters():
            if parameter.grad is None:
                continue
            _prefix, _, tail = each.partition(f"{container}.")
            if tail:
                index, _, inner = tail.partition(".")
                each = f"{container}.{int(index) + offset}.{inner}"
            before = gradients.get(each, 0.0)
            gradients[each] = parameter.grad + before
    return compare(expected, StepOutput(float(loss.detach()), gradients))


def untied():
    from drivetrain_parallel.pipeline import plan_pipeline
    from drivetrain_parallel.pipeline.sequential import prove

    family = FAMILIES["gpt2"]
    model, batch, loss = model_of("gpt2"), family.batch(4), loss_function(family)
    plan = plan_pipeline(model, batch, loss, 2)
    assert plan.shared
    wrong = dataclasses.replace(plan, shared=())
    return prove(model, wrong, batch, loss)


def on_stages(change, error_is):
    """Runs a pipeline of two ranks with something wrong in it; all must refuse it."""
    from drivetrain_core import accelerate

    family = FAMILIES["llama"]
    accelerated = accelerate(
        family.build,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        [family.batch(8)],
        strategy=[("mesh", {"pipeline": 2}), ("micro_batch", 4)],
        progress=False,
    )
    try:
        change(accelerated, family)
    except PlanError as error:
        return str(error)
    return ""


def uneven():
    def change(accelerated, family):
        parts = [family.batch(3), family.batch(3), family.batch(2)]
        accelerated.train_step._pipeline.run(parts, [0.375, 0.375, 0.25])

    return all_of(run_ranks(on_stages, 2, change, None, timeout_s=90))


def ddp_inside():
    def change(accelerated, family):
        from torch.nn.parallel import DistributedDataParallel

        from drivetrain_parallel.pipeline import PipelineStep

        layout = accelerated.layout
        stage = layout.stages[0]
        group = torch.distributed.new_group([torch.distributed.get_rank()])
        stage.model = DistributedDataParallel(stage.model, process_group=group)
        PipelineStep(
            layout.stages,
            layout.plan.pipeline,
            schedule="1f1b",
            group=layout.mesh.group("pipeline"),
            device=accelerated.device,
        ).run([family.batch(2)] * 4, [0.25] * 4)

    return all_of(run_ranks(on_stages, 2, change, None, timeout_s=90))


def all_of(reasons):
    return reasons[0] if all(reasons) else ""


BUGS = {
    "stale optimizer": lambda: planted_on_ranks("bug_optimizer_before_sharding"),
    "root not wrapped": lambda: planted_on_ranks("bug_root_not_sharded"),
    "norm of heads without its sum": query_norm,
    "heads folded into the sequence": folded_heads,
    "positions added twice (GPT-2)": lambda: naive_pipeline(
        "gpt2", "transformer.h", "transformer.ln_f", "transformer"
    ),
    "positions added twice (OPT)": lambda: naive_pipeline(
        "opt", "model.decoder.layers", "model.decoder.final_layer_norm", "model.decoder"
    ),
    "embedding norm twice (BLOOM)": lambda: naive_pipeline(
        "bloom", "transformer.h", "transformer.ln_f", "transformer"
    ),
    "tie across stages not summed": untied,
    "uneven micro-batches": uneven,
    "DDP inside a pipeline": ddp_inside,
}


def measure(quick):
    """Plants each bug; the quick form takes those of one process."""
    taken = list(BUGS)[2:8] if quick else list(BUGS)
    reasons = {}
    for name in taken:
        reasons[name] = BUGS[name]()
    caught = sum(bool(reason) for reason in reasons.values())
    return Row(
        figure=f"{caught} of {len(reasons)} caught",
        holds=caught == len(reasons),
        proven_on="cpu-gloo",
        details={name: reason[:300] for name, reason in reasons.items()},
    )


if __name__ == "__main__":
    row = measure(False)
    for name, reason in row.details.items():
        sys.stdout.write(f"{name}: {reason or 'NOT CAUGHT'}\n")
    sys.stdout.write(f"{row.figure}\n")
