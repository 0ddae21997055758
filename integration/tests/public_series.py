"""Public programs on series, graphs and rows of numbers."""

from __future__ import annotations

import types
from typing import Any

import torch
from public_cases import (
    EXAMPLES,
    LENGTH,
    SAMPLES,
    TUTORIALS,
    adam,
    classified,
    content,
    images,
    labels,
    likelihood,
    loader,
    noise,
    package,
    program,
    quiet,
    script,
    using,
)
from small_decoder import Case
from torch import nn
from torch.nn import functional


@program("pytorch/examples mnist_rnn")
def _() -> Case:
    return Case(
        model=quiet(script(f"{EXAMPLES}/mnist_rnn/main.py").Net()),
        optimizer=using(torch.optim.Adadelta, lr=0.1),
        data=images(28, channels=1),
        loss=likelihood,
    )


@program("pytorch/examples time_sequence_prediction")
def _() -> Case:
    # It trains by LBFGS, which calls a closure; here by Adam, as a step is.
    model = script(f"{EXAMPLES}/time_sequence_prediction/train.py").Sequence()
    return Case(
        model=model.double(),
        optimizer=adam(),
        data=loader(noise(12).double(), noise(12, seed=7).double()),
        loss=lambda output, batch: functional.mse_loss(output, batch[1]),
    )


def graph(nodes: int = 24, features: int = 12) -> Any:
    generator = torch.Generator().manual_seed(5)
    adjacency = (torch.rand(nodes, nodes, generator=generator) < 0.2).float()
    adjacency = (adjacency + adjacency.T + torch.eye(nodes)).clamp(max=1.0)
    some = torch.randn(nodes, features, generator=generator)
    return some, adjacency, torch.randint(4, (nodes,), generator=generator)


def on_nodes(output: Any, batch: Any) -> torch.Tensor:
    return functional.nll_loss(output[:16], batch[2][:16])


@program("pytorch/examples gcn")
def _() -> Case:
    features, adjacency, classes = graph()
    sparse = (adjacency / adjacency.sum(1, keepdim=True)).to_sparse()
    return Case(
        model=script(f"{EXAMPLES}/gcn/main.py").GCN(12, 8, 4, dropout_p=0.0),
        optimizer=adam(1e-2, weight_decay=5e-4),
        data=[(features, sparse, classes)],
        forward=lambda m, batch: m(batch[0], batch[1]),
        loss=on_nodes,
        numbers=content,
    )


@program("pytorch/examples gat")
def _() -> Case:
    return Case(
        model=script(f"{EXAMPLES}/gat/main.py").GAT(12, 8, 2, 4, True, 0.0),
        optimizer=adam(5e-3, weight_decay=5e-4),
        data=[graph()],
        forward=lambda m, batch: m(batch[0], batch[1]),
        loss=on_nodes,
        numbers=content,
    )


@program("tkipf/pygcn")
def _() -> Case:
    return Case(
        model=package("tkipf+pygcn", "pygcn.models").GCN(12, 8, 4, 0.0),
        optimizer=adam(1e-2, weight_decay=5e-4),
        data=[graph()],
        forward=lambda m, batch: m(batch[0], batch[1]),
        loss=on_nodes,
        numbers=content,
    )


@program("pytorch/examples regression")
def _() -> Case:
    x = noise(1)
    powers = torch.cat([x**n for n in range(1, 5)], 1)
    return Case(
        model=nn.Linear(4, 1),
        optimizer=using(torch.optim.SGD, lr=1e-3),
        data=loader(powers, powers @ torch.tensor([[4.0], [-3.0], [2.0], [1.0]])),
        loss=lambda output, batch: functional.smooth_l1_loss(output, batch[1]),
    )


@program("pytorch/examples mnist_forward_forward, a layer")
def _() -> Case:
    options = types.SimpleNamespace(lr=0.03, threshold=2, epochs=1)
    source = script(f"{EXAMPLES}/mnist_forward_forward/main.py", device="cpu")
    source.args = options

    def forward(layer: Any, batch: Any) -> Any:
        return layer.forward(batch[0]), layer.forward(batch[1])

    def loss(output: Any, _: Any) -> torch.Tensor:
        good, bad = (part.pow(2).mean(1) for part in output)
        return torch.log1p(torch.exp(torch.cat([2 - good, bad - 2]))).mean()

    return Case(
        model=source.Layer(64, 32),
        optimizer=adam(0.03),
        data=loader(noise(64), noise(64, seed=7)),
        forward=forward,
        loss=loss,
    )


@program("Lightning LitAutoEncoder")
def _() -> Case:
    folder = "Lightning-AI+pytorch-lightning/examples/pytorch/basics"
    return Case(
        model=script(f"{folder}/autoencoder.py").LitAutoEncoder(16),
        optimizer=adam(1e-2),
        data=images(28, channels=1),
        forward=lambda m, batch: m.training_step(batch[:2], 0),
        loss=None,
    )


@program("locuslab/TCN adding_problem")
def _() -> Case:
    package("locuslab+TCN", "TCN.tcn")
    model = script("locuslab+TCN/TCN/adding_problem/model.py").TCN(2, 1, [8, 8], 3, 0.0)
    return Case(
        model=model,
        optimizer=adam(4e-3),
        data=loader(noise(2, 12), noise(1)),
        loss=lambda output, batch: functional.mse_loss(output, batch[1]),
    )


@program("yunjey/pytorch-tutorial bidirectional RNN")
def _() -> Case:
    path = f"{TUTORIALS}/bidirectional_recurrent_neural_network/main.py"
    return Case(
        model=script(path, device="cpu").BiRNN(8, 16, 2, 10),
        optimizer=adam(3e-3),
        data=loader(noise(LENGTH, 8), labels(10)),
        loss=classified,
    )


@program("sooftware/conformer")
def _() -> Case:
    source = package("sooftware+conformer", "conformer.model")
    model = source.Conformer(
        num_classes=10,
        input_dim=16,
        encoder_dim=16,
        num_encoder_layers=2,
        num_attention_heads=2,
        conv_kernel_size=3,
    )

    def loss(output: Any, batch: Any) -> torch.Tensor:
        found, lengths = output
        return functional.ctc_loss(
            found.transpose(0, 1), batch[2] + 1, lengths, torch.full_like(lengths, 3)
        )

    return Case(
        model=quiet(model),
        optimizer=adam(),
        data=loader(noise(40, 16), torch.full((SAMPLES,), 40), labels(9, 3)),
        forward=lambda m, batch: m(batch[0], batch[1]),
        loss=loss,
    )
