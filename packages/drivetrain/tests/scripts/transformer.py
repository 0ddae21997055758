"""A language model of transformers, built small, which computes its own loss."""

import torch
import transformers

from drivetrain_core import accelerate


def build():
    """Returns the model, with weights of its own."""
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


generator = torch.Generator().manual_seed(0)
tokens = torch.randint(0, 64, (32, 8, 16), generator=generator)
data = [{"input_ids": batch, "labels": batch} for batch in tokens]
accelerated = accelerate(
    build, lambda parameters: torch.optim.AdamW(parameters, lr=1e-3), data
)
for batch in accelerated.loader:
    accelerated.train_step(batch)
