"""Training steps that are recorded into the traces that ship.

The models run on tensors without values, on a stream 0; what is gathered for them comes on
a stream 1. `python -m recordings.workloads NAME FILE` records one anew, which takes minutes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import random
import sys
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from drivetrain_memory import scalable
from drivetrain_memory.trace import Recorder
from recordings.models import Decoder, LanguageModel, ResNet50

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drivetrain_memory.trace._format import Trace

_GATHER_STREAM = 1


def _record_language_model(name: str, model: LanguageModel) -> Trace:
    """Records the steps of a decoder."""
    draw = random.Random(11)
    with FakeTensorMode(allow_non_fake_inputs=True):
        recorder = Recorder(name)
        if model.shards > 1:
            decoder = Decoder(model, draw)
            states = _Sharded(recorder, decoder, model.shards)
            with recorder:
                states.begin()
                _steps(recorder, decoder, model, draw, states.update)
        else:
            with recorder:
                decoder = Decoder(model, draw)
                trained = [p for p in decoder.parameters() if p.requires_grad]
                optimizer = torch.optim.AdamW(trained, foreach=True)

                def update() -> None:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)

                _steps(recorder, decoder, model, draw, update)
    return recorder.trace()


def _language_model(name: str, model: LanguageModel) -> Trace:
    double = dataclasses.replace(model, batch=2 * model.batch)
    return scalable(
        _record_language_model(name, model),
        model.batch,
        _record_language_model(name, double),
        double.batch,
    )


def _steps(
    recorder: Recorder,
    decoder: nn.Module,
    model: LanguageModel,
    draw: random.Random,
    update: Callable[[], None],
) -> None:
    for _ in range(model.steps):
        gc.collect()
        recorder.step()
        length = model.length
        if model.varies:
            length = min(length, max(128, int(length * draw.betavariate(4, 2))))
        ids = torch.zeros(model.batch, length, dtype=torch.int64)
        loss: torch.Tensor = decoder(ids)
        loss.backward()  # type: ignore[no-untyped-call]
        update()


class _Sharded:
    """Weights that are gathered for their block on a stream of their own, as in ZeRO-3."""

    def __init__(self, recorder: Recorder, decoder: Decoder, shards: int) -> None:
        """Watches every block; its own weights are not recorded."""
        self._recorder = recorder
        self._shards = shards
        self._decoder = decoder
        self._gathered: dict[nn.Module, torch.Tensor] = {}
        self._gradients: list[torch.Tensor] = []
        self._states: list[torch.Tensor] = []
        # The backward of an embedding does not read its weight.
        for unit in (*decoder.blocks, decoder.embedding, decoder.head):
            unit.register_forward_pre_hook(self._gather)
            unit.register_forward_hook(self._let_go)
            if unit is not decoder.embedding:
                unit.register_full_backward_pre_hook(self._gather)
                unit.register_full_backward_hook(self._let_go)
        for parameter in decoder.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._reduce)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Makes this rank's part of weights and states."""
        for parameter in self._decoder.parameters():
            part = -(-parameter.numel() // self._shards)
            self._states.append(torch.empty(part, dtype=torch.bfloat16))
            if parameter.requires_grad:
                self._states += [torch.empty(part) for _ in range(3)]

    def update(self) -> None:
        """Steps the optimizer on this rank's part."""
        for gradient in self._gradients:
            gradient.float().mul(0.1)
        self._gradients.clear()

    def _gather(self, unit: nn.Module, *_: object) -> None:
        if unit not in self._gathered:
            size = sum(p.numel() for p in unit.parameters())
            with self._recorder.stream(_GATHER_STREAM):
                self._gathered[unit] = torch.empty(size, dtype=torch.bfloat16)
            self._recorder.record_stream(self._gathered[unit], 0)

    def _let_go(self, unit: nn.Module, *_: object) -> None:
        self._gathered.pop(unit, None)

    def _reduce(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        part = -(-parameter.numel() // self._shards)
        self._recorder.record_stream(parameter.grad, _GATHER_STREAM)
        with self._recorder.stream(_GATHER_STREAM):
            self._gradients.append(torch.empty(part, dtype=torch.bfloat16))
        parameter.grad = None


def _resnet(name: str, batch: int = 192) -> Trace:
    return scalable(
        _record_resnet(name, batch), batch, _record_resnet(name, 2 * batch), 2 * batch
    )


def _record_resnet(name: str, batch: int, steps: int = 5) -> Trace:
    """Records the steps of a ResNet-50."""
    with FakeTensorMode(allow_non_fake_inputs=True), Recorder(name) as recorder:
        model = ResNet50()
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, foreach=True)
        for _ in range(steps):
            gc.collect()
            recorder.step()
            images = torch.empty(batch, 3, 224, 224)
            labels = torch.zeros(batch, dtype=torch.int64)
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return recorder.trace()


_SMALL = functools.partial(LanguageModel, dim=2048, depth=24, heads=16)
_LARGE = functools.partial(LanguageModel, dim=4096, depth=32, heads=32, vocab=32_000)

_MODELS = {
    "llm-full": _SMALL(),
    "llm-full-varlen": _SMALL(varies=True, steps=10),
    "llm-lora": _SMALL(lora_rank=16, batch=8),
    "llm-lora-zero3": _SMALL(lora_rank=16, batch=8, recompute=True, shards=8),
    "llm-lora-zero3-varlen": _SMALL(
        lora_rank=16, batch=8, recompute=True, shards=8, varies=True, steps=10
    ),
    "llm-zero3-varlen": _SMALL(
        recompute=True, shards=8, varies=True, batch=8, steps=10
    ),
    "llm-7b-lora-zero3-varlen": _LARGE(
        lora_rank=16, recompute=True, shards=8, varies=True, steps=8
    ),
    "math-attention-varlen": _SMALL(
        depth=12, math_attention=True, varies=True, batch=2, steps=10
    ),
    "moe": _SMALL(depth=8, experts=8, batch=4, steps=8),
}

_RECORDERS: dict[str, Callable[[], Trace]] = {
    **{
        name: functools.partial(_language_model, name, model)
        for name, model in _MODELS.items()
    },
    "resnet-50": functools.partial(_resnet, "resnet-50"),
}


def record_workload(name: str) -> Trace:
    """Records a workload anew, as the trace that ships was recorded.

    Args:
        name: One of `WORKLOADS`.

    Raises:
        KeyError: There is none of that name.
    """
    with _own_collections():
        return _RECORDERS[name]()


@contextlib.contextmanager
def _own_collections() -> Iterator[None]:
    """Leaves what is found by no count to the steps, so that recordings are the same."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


if __name__ == "__main__":
    record_workload(sys.argv[1]).save(sys.argv[2])
