"""Public programs that read text."""

from __future__ import annotations

import types
from typing import Any

import torch
from public_cases import (
    BATCH,
    EXAMPLES,
    LENGTH,
    TUTORIALS,
    VOCABULARY,
    adam,
    content,
    labels,
    likelihood,
    loader,
    package,
    program,
    quiet,
    script,
    second,
    text,
    time_first,
    told,
    using,
)
from small_decoder import Case
from torch.nn import functional


@program("karpathy/minGPT adder")
def _() -> Case:
    gpt = package("karpathy+minGPT", "mingpt.model").GPT
    config = gpt.get_default_config()
    config.model_type = None
    config.n_layer, config.n_head, config.n_embd = 2, 2, 16
    config.vocab_size, config.block_size = VOCABULARY, LENGTH
    config.embd_pdrop = config.resid_pdrop = config.attn_pdrop = 0.0
    model = gpt(config)
    train = types.SimpleNamespace(
        weight_decay=0.1, learning_rate=5e-4, betas=(0.9, 0.95)
    )
    return Case(
        model=model,
        optimizer=model.configure_optimizers(train),
        data=text(),
        loss=None,
        forward=second,
        max_grad_norm=1.0,
    )


@program("karpathy/nanoGPT")
def _() -> Case:
    source = script("karpathy+nanoGPT/model.py")
    config = source.GPTConfig(
        block_size=LENGTH, vocab_size=VOCABULARY, n_layer=2, n_head=2, n_embd=16
    )
    model = source.GPT(config)
    return Case(
        model=model,
        optimizer=model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cpu"),
        data=text(),
        loss=None,
        forward=second,
        max_grad_norm=1.0,
    )


@program("pytorch/examples word_language_model, Transformer")
def _() -> Case:
    source = script(f"{EXAMPLES}/word_language_model/model.py")
    model = source.TransformerModel(VOCABULARY, 16, 2, 32, 2, 0.0)
    return Case(
        model=quiet(model),
        optimizer=using(torch.optim.AdamW, lr=1e-3),
        data=time_first(),
        loss=lambda output, batch: functional.nll_loss(
            output.view(-1, VOCABULARY), batch[1]
        ),
        max_grad_norm=0.25,
        numbers=content,
    )


@program("pytorch/examples word_language_model, LSTM")
def _() -> Case:
    source = script(f"{EXAMPLES}/word_language_model/model.py")
    model = source.RNNModel("LSTM", VOCABULARY, 16, 16, 2, 0.0, tie_weights=True)

    def start(batch: Any) -> torch.Tensor:
        return torch.zeros(2, batch[0].shape[1], 16)

    return Case(
        model=model,
        optimizer=using(torch.optim.AdamW, lr=1e-3),
        data=time_first(),
        forward=lambda m, batch: m(batch[0], (start(batch), start(batch)))[0],
        loss=likelihood,
        max_grad_norm=0.25,
        numbers=content,
    )


@program("pytorch/examples language_translation")
def _() -> Case:
    source = script(f"{EXAMPLES}/language_translation/src/model.py")

    def forward(model: Any, batch: Any) -> torch.Tensor:
        texts, targets = batch[0], batch[1][:-1]
        long, count = len(targets), texts.shape[1]
        ahead = torch.ones(long, long, dtype=torch.bool).triu(1)
        around = torch.zeros(len(texts), len(texts), dtype=torch.bool)
        blank = torch.zeros(count, len(texts), dtype=torch.bool)
        padded = torch.zeros(count, long, dtype=torch.bool)
        return model(texts, targets, around, ahead, blank, padded, blank)

    def loss(output: Any, batch: Any) -> torch.Tensor:
        wanted = batch[1][1:].reshape(-1)
        return functional.cross_entropy(
            output.reshape(-1, VOCABULARY), wanted, ignore_index=1
        )

    texts, targets = labels(VOCABULARY, LENGTH, BATCH), labels(VOCABULARY, 6, BATCH)
    model = source.Translator(2, 2, 16, 2, VOCABULARY, VOCABULARY, 32, 0.0)
    return Case(
        model=quiet(model),
        optimizer=adam(1e-4, betas=(0.9, 0.98), eps=1e-9),
        data=list(zip(texts[:4], targets[:4], strict=True)),
        forward=forward,
        loss=loss,
        numbers=content,
    )


@program("transformers GPT2LMHeadModel, run_clm")
def _() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2
    )
    tokens = labels(VOCABULARY, LENGTH)
    return Case(
        model=quiet(GPT2LMHeadModel(config)),
        optimizer=using(torch.optim.AdamW, lr=5e-4),
        data=loader(tokens, tokens),
        forward=lambda m, batch: m(input_ids=batch[0], labels=batch[1]).loss,
        loss=None,
        max_grad_norm=1.0,
    )


@program("transformers BertForSequenceClassification, run_glue")
def _() -> Case:
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=LENGTH,
        )
    )
    named = dict(model.named_parameters())
    still = [p for n, p in named.items() if "bias" in n or "LayerNorm" in n]
    other = [p for n, p in named.items() if not ("bias" in n or "LayerNorm" in n)]
    groups = [
        {"params": other, "weight_decay": 0.01},
        {"params": still, "weight_decay": 0.0},
    ]
    return Case(
        model=quiet(model),
        optimizer=torch.optim.AdamW(groups, lr=5e-4),
        data=loader(labels(VOCABULARY, LENGTH), labels(2)),
        forward=lambda m, batch: m(input_ids=batch[0], labels=batch[1]).loss,
        loss=None,
        scheduler=lambda o: torch.optim.lr_scheduler.LambdaLR(
            o, lambda step: max(0.0, 1 - step / 20)
        ),
        max_grad_norm=1.0,
    )


def makemore(kind: str) -> Any:
    def make() -> Case:
        source = script("karpathy+makemore/makemore.py")
        config = source.ModelConfig(
            block_size=LENGTH,
            vocab_size=VOCABULARY,
            n_layer=2,
            n_embd=16,
            n_embd2=16,
            n_head=2,
        )
        cell = kind.lower() if kind in ("RNN", "GRU") else None
        model = source.RNN(config, cell) if cell else getattr(source, kind)(config)
        return Case(
            model=model,
            optimizer=using(
                torch.optim.AdamW,
                lr=5e-4,
                weight_decay=0.01,
                betas=(0.9, 0.99),
                eps=1e-8,
            ),
            data=text(),
            loss=None,
            forward=second,
        )

    return make


for kind in ("Transformer", "BoW", "RNN", "GRU", "MLP", "Bigram"):
    program(f"karpathy/makemore {kind}")(makemore(kind))


@program("karpathy/llama2.c")
def _() -> Case:
    source = script("karpathy+llama2.c/model.py")
    options = source.ModelArgs(
        dim=16,
        n_layers=2,
        n_heads=2,
        n_kv_heads=1,
        vocab_size=VOCABULARY,
        multiple_of=8,
        max_seq_len=LENGTH,
    )
    model = source.Transformer(options)

    def forward(wrapped: Any, batch: Any) -> torch.Tensor:
        wrapped(batch[0], batch[1])
        return model.last_loss  # as the program asks its raw model

    return Case(
        model=model,
        optimizer=model.configure_optimizers(0.1, 5e-4, (0.9, 0.95), "cpu"),
        data=text(),
        loss=None,
        forward=forward,
        max_grad_norm=1.0,
    )


@program("johnma2006/mamba-minimal")
def _() -> Case:
    source = script("johnma2006+mamba-minimal/model.py")
    options = source.ModelArgs(d_model=16, n_layer=2, vocab_size=VOCABULARY, d_state=4)
    return Case(model=source.Mamba(options), data=text(), loss=told)


@program("jadore801120/attention-is-all-you-need-pytorch")
def _() -> Case:
    models = package(
        "jadore801120+attention-is-all-you-need-pytorch", "transformer.Models"
    )
    model = models.Transformer(
        VOCABULARY,
        VOCABULARY,
        src_pad_idx=1,
        trg_pad_idx=1,
        d_word_vec=16,
        d_model=16,
        d_inner=32,
        n_layers=2,
        n_head=2,
        d_k=8,
        d_v=8,
        dropout=0.0,
    )

    def loss(output: Any, batch: Any) -> torch.Tensor:
        gold = batch[1][:, 1:].reshape(-1)
        return functional.cross_entropy(output, gold, ignore_index=1, reduction="sum")

    return Case(
        model=quiet(model),
        optimizer=adam(1e-3, betas=(0.9, 0.98), eps=1e-9),
        data=text(),
        forward=lambda m, batch: m(batch[0], batch[1][:, :-1]),
        loss=loss,
    )


@program("lucidrains/x-transformers decoder")
def _() -> Case:
    source = package("lucidrains+x-transformers", "x_transformers")
    model = source.TransformerWrapper(
        num_tokens=VOCABULARY,
        max_seq_len=LENGTH,
        attn_layers=source.Decoder(
            dim=16, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True
        ),
    )
    return Case(
        model=source.AutoregressiveWrapper(model),
        optimizer=adam(),
        data=text(),
        loss=None,
        max_grad_norm=0.5,
    )


@program("locuslab/TCN word_cnn")
def _() -> Case:
    package("locuslab+TCN", "TCN.tcn")
    source = script("locuslab+TCN/TCN/word_cnn/model.py")
    return Case(
        model=source.TCN(16, VOCABULARY, [16, 16], 2, 0.0, 0.0, tied_weights=True),
        optimizer=using(torch.optim.SGD, lr=0.5),
        data=text(),
        loss=told,
        max_grad_norm=0.35,
    )


@program("yunjey/pytorch-tutorial language_model")
def _() -> Case:
    model = script(f"{TUTORIALS}/language_model/main.py").RNNLM(VOCABULARY, 8, 16, 1)

    def forward(model: Any, batch: Any) -> torch.Tensor:
        start = torch.zeros(1, len(batch[0]), 16)
        return model(batch[0], (start, start))[0]

    return Case(
        model=model,
        optimizer=adam(2e-3),
        data=text(),
        forward=forward,
        loss=lambda output, batch: functional.cross_entropy(
            output, batch[1].reshape(-1)
        ),
        max_grad_norm=0.5,
    )
