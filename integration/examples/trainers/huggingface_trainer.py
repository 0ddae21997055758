"""A Hugging Face `Trainer` whose model and optimizer come from a search."""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from drivetrain_core import accelerate


class Counting(Dataset):
    """Sequences that count up, from a number that is drawn."""

    def __init__(self, length: int, vocab_size: int, size: int = 4096) -> None:
        generator = torch.Generator().manual_seed(0)
        starts = torch.randint(vocab_size, (size, 1), generator=generator)
        self.tokens = (starts + torch.arange(length)) % vocab_size

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--trials", type=int, default=24)
    options = parser.parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=options.dim,
        intermediate_size=3 * options.dim,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    dataset = Counting(length=64, vocab_size=256)
    accelerated = accelerate(
        LlamaForCausalLM(config),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        DataLoader(dataset, batch_size=options.batch, shuffle=True),
        own_loop=True,
        deny=["data_loading"],  # The Trainer makes its own loader.
        budget={"seconds": options.seconds, "trials": options.trials},
    )
    model, optimizer, _ = accelerated
    print(f"plan: {accelerated.plan}")
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                max_steps=options.steps,
                per_device_train_batch_size=options.batch,
                logging_steps=max(1, options.steps // 5),
                report_to=[],
                save_strategy="no",
                use_cpu=not torch.accelerator.is_available(),
            ),
            train_dataset=dataset,
            optimizers=(optimizer, None),
        )
        result = trainer.train()
    print(f"loss: {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
