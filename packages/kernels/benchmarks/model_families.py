"""`replace` and `select` on small models of many families of transformers.

`python model_families.py PAGE` writes the table. Each family is built with few layers and
columns, in float32 and in bfloat16, and its output compared with what the same weights give
in float64: that of the model as it is, and that of the replaced one.
"""

import copy
import random
import sys
from pathlib import Path

import torch
import transformers
from transformers.models.auto import modeling_auto

from drivetrain_kernels import replace, select
from drivetrain_testing import Row

SMALL = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96, "d_model": 32,
    "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
    "max_position_embeddings": 64, "ffn_dim": 64, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "word_embed_proj_dim": 32,
    "head_dim": 8, "embedding_size": 32, "dim": 32, "hidden_dim": 64, "n_layers": 2,
    "n_heads": 4, "rotary_dim": 4, "image_size": 16, "patch_size": 4, "num_experts": 4,
    "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2,
    "decoder_start_token_id": 0, "hidden_dropout_prob": 0.0, "dropout": 0.0,
    "attention_probs_dropout_prob": 0.0, "attention_dropout": 0.0, "resid_pdrop": 0.0,
    "embd_pdrop": 0.0, "attn_pdrop": 0.0, "hidden_dropout": 0.0, "dropout_rate": 0.0,
    "activation_dropout": 0.0,
}  # fmt: skip
"""What makes a configuration small, of those that have the name."""

CAUSAL = (
    "llama mistral mixtral qwen2 qwen3 qwen2_moe gemma gemma2 gemma3_text phi phi3 granite "
    "granitemoe cohere cohere2 olmo olmo2 olmo3 stablelm starcoder2 gpt2 gpt_neox "
    "gptj opt bloom codegen persimmon glm glm4 exaone4 arcee apertus bitnet smollm3 "
    "seed_oss helium ernie4_5 biogpt"
)
MASKED = "bert roberta electra albert distilbert modernbert mpnet"
PAIRS = "mt5 umt5 bart mbart pegasus"
IMAGES = "vit deit dinov2 beit"
FAMILIES = {
    **dict.fromkeys(CAUSAL.split(), modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING),
    **dict.fromkeys(MASKED.split(), modeling_auto.MODEL_FOR_MASKED_LM_MAPPING),
    **dict.fromkeys(
        PAIRS.split(), modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
    ),
    **dict.fromkeys(
        IMAGES.split(), modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
    ),
}
FEW = ("llama",)

KINDS = ("rms_norm", "layer_norm", "swiglu", "geglu", "cross_entropy")
REFERENCE = dict.fromkeys(KINDS, "reference")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_FLOOR = 0.5  # in units of the dtype's rounding: of an output that is exact by chance


def family(name):
    """The small model of a family and a batch of named arguments."""
    kind = transformers.CONFIG_MAPPING[name]
    usual = kind()
    sizes = {n: v for n, v in SMALL.items() if getattr(usual, n, None) is not None}
    config = (
        kind(**sizes, pad_token_id=0) if "pad_token_id" not in sizes else kind(**sizes)
    )
    cls = FAMILIES[name][kind]
    torch.manual_seed(0)
    model = (cls[0] if isinstance(cls, tuple | list) else cls)(config).eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # grouped products know no float64
    for parameter in model.parameters():
        # Weights of ones and zeros would hide where they enter.
        parameter.data.add_(0.02 * torch.randn_like(parameter))
    if name in IMAGES.split():
        images = torch.randn(2, 3, 16, 16)
        return model, {"pixel_values": images, "labels": torch.tensor([0, 1])}
    ids = torch.randint(3, 96, (2, 12))
    return model, {"input_ids": ids, "labels": ids.clone()}


def output(model, batch, dtype):
    """The logits of a batch, in float64."""
    given = {n: t.to(dtype) if t.is_floating_point() else t for n, t in batch.items()}
    with torch.no_grad():
        return model(**given).logits.double()


def rounding(name, dtype):
    """How far a family is from float64 as it is and replaced, and what was replaced."""
    model, batch = family(name)
    model.to(dtype)
    exact = output(copy.deepcopy(model).double(), batch, torch.float64)
    own = output(model, batch, dtype)
    replacement = replace(model, REFERENCE)
    ours = output(model, batch, dtype)
    norm = exact.norm()
    found = [float((one - exact).norm() / norm) for one in (own, ours)]
    bound = 2 * max(found[0], _FLOOR * torch.finfo(dtype).eps)
    return {
        "own": found[0],
        "ours": found[1],
        "holds": found[1] <= bound,
        "replaced": sorted({one.op.partition("(")[0] for one in replacement.replaced}),
        "num_replaced": len(replacement.replaced),
        "left": sorted({f"{one.module}: {one.why}" for one in replacement.left}),
    }


def table(names):
    """Results by family and dtype."""
    return {
        (name, short): rounding(name, dtype)
        for name in names
        for short, dtype in DTYPES.items()
    }


def replaced_families(quick):
    found = table(FEW if quick else FAMILIES)
    wrong = [
        f"{name} in {dtype}" for (name, dtype), one in found.items() if not one["holds"]
    ]
    ratios = [one["ours"] / one["own"] for one in found.values() if one["own"]]
    number = sum(one["num_replaced"] for one in found.values())
    return Row(
        figure=f"{len(found)} models of {len(found) // 2} families, {number} modules "
        f"replaced, at most {max(ratios):.2f} x the own rounding; wrong: {wrong or 'none'}",
        holds=not wrong and number > 0,
        proven_on="cpu",
    )


def held(model):
    """All that a model holds, in a form that can be compared to the bit."""
    values = [*model.parameters(), *model.buffers()]
    attributes = [
        {n: v for n, v in vars(part).items() if isinstance(v, int | float | str | list)}
        for part in model.modules()
    ]
    grads = [parameter.grad for parameter in model.parameters()]
    bits = [
        value.detach().clone().view(torch.uint8)
        if value.ndim
        else value.detach().clone()
        for value in values
    ]
    return (
        bits,
        copy.deepcopy(attributes),
        grads,
        torch.get_rng_state(),
        random.getstate(),
    )


def is_same(before, after):
    tensors = all(map(torch.equal, before[0], after[0]))
    return (
        tensors
        and before[1:3] == after[1:3]
        and torch.equal(before[3], after[3])
        and before[4] == after[4]
    )


def selected(name):
    """Whether `select` ends, and leaves a family as it found it."""
    model, batch = family(name)
    before = held(model.train())
    select(
        model,
        [batch],
        candidates=["kernels", "backend:eager"],
        budget_s=30.0,
        cache=False,
    )
    return is_same(before, held(model))


def selected_families(quick):
    names = FEW if quick else FAMILIES
    wrong = [name for name in names if not selected(name)]
    return Row(
        figure=f"{len(names)} families end and are as before, but for {wrong or 'none'}",
        holds=not wrong,
        proven_on="cpu",
    )


def page(found):
    said = (
        f"Small models with random weights, transformers {transformers.__version__}, torch "
        f"{torch.__version__.partition('+')[0]}, on a CPU: `python "
        "packages/kernels/benchmarks/model_families.py PAGE`. The distance of the logits from "
        "those of the same weights in float64, relative: of the model as it is, and of the "
        "replaced one, which may be at most twice as large. Every kind of module by its "
        "reference implementation; what is not named was left, with a reason."
    )
    lines = [
        "# drivetrain-kernels: `replace` on families of transformers, November 2026",
        "",
        said,
        "",
        "| family | dtype | replaced | as it is | replaced | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for (name, dtype), one in found.items():
        ops = ", ".join(one["replaced"]) or "none"
        lines.append(
            f"| {name} | {dtype} | {one['num_replaced']}: {ops} | {one['own']:.1e} | "
            f"{one['ours']:.1e} | {'' if one['holds'] else 'WRONG'} |"
        )
    every = {why for one in found.values() for why in one["left"]}
    reasons = sorted(why for why in every if "attn_implementation" not in why)
    return "\n".join(
        [
            *lines,
            "",
            "Left, beside attention, which a model chooses itself:",
            "",
            *(f"- {why}" for why in reasons),
            "",
        ]
    )


TABLE = [
    ("replace-rounding", "rounds at most twice as far", replaced_families),
    ("select-families", "ends, and leaves each as it was", selected_families),
]

if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(table(FAMILIES)))
