"""Small random-weight models of many families of transformers, with a batch each."""

import torch
import transformers

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
LLAMA = {**SIZES, "num_key_value_heads": 2, "vocab_size": 96, "pad_token_id": 0}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 64}
T5 = {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4}
T5 |= {"vocab_size": 96, "dropout_rate": 0.0, "decoder_start_token_id": 0}
IMAGES = {"image_size": 16, "patch_size": 4, "num_labels": 5}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
RESID = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

FAMILIES = {
    # name: (model class, configuration, the kinds of batch, modules replaced at least)
    "llama": ("LlamaForCausalLM", LLAMA, "text", 7),
    "mistral": ("MistralForCausalLM", LLAMA, "text", 7),
    "qwen2": ("Qwen2ForCausalLM", LLAMA, "text", 7),
    "qwen3": ("Qwen3ForCausalLM", {**LLAMA, "head_dim": 8}, "text", 11),
    "gemma": ("GemmaForCausalLM", {**LLAMA, "head_dim": 8}, "text", 7),
    "gemma2": ("Gemma2ForCausalLM", {**LLAMA, "head_dim": 8}, "text", 11),
    "phi3": ("Phi3ForCausalLM", {**LLAMA, **RESID}, "text", 7),
    "granite": ("GraniteForCausalLM", LLAMA, "text", 7),
    "gpt2": ("GPT2LMHeadModel", {**GPT2, **RESID}, "text", 5),
    "gpt_neox": ("GPTNeoXForCausalLM", {**SIZES, "vocab_size": 96}, "text", 5),
    "opt": (
        "OPTForCausalLM",
        {**LLAMA, "ffn_dim": 64, "dropout": 0.0, "word_embed_proj_dim": 32},
        "text",
        5,
    ),
    "bert": ("BertForMaskedLM", {**SIZES, **STILL, "vocab_size": 96}, "text", 6),
    "vit": ("ViTForImageClassification", {**SIZES, **STILL, **IMAGES}, "images", 5),
    "t5": (
        "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu"},
        "pairs",
        12,
    ),
}


def family(name):
    """Returns the model and a batch of named arguments, the same at each call."""
    kind, sizes, batch, _ = FAMILIES[name]
    cls = getattr(transformers, kind)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = cls(cls.config_class(**sizes)).train()
        for parameter in model.parameters():
            # Weights of ones and zeros would hide where they enter.
            parameter.data.add_(0.02 * torch.randn_like(parameter))
        return model, _batch(batch)


def _batch(kind):
    if kind == "images":
        return {
            "pixel_values": torch.randn(2, 3, 16, 16),
            "labels": torch.tensor([1, 4]),
        }
    ids = torch.randint(3, 96, (2, 12))
    batch = {"input_ids": ids, "labels": ids.clone()}
    if kind == "text":
        batch["attention_mask"] = torch.ones_like(ids)
    return batch
