"""Whether a device computes the same bits from the same input, again and again.

A processor that computes wrongly now and then raises no error: the loss gets worse, or does
not. A fixed computation tells, if it is repeated, and if nodes with the same device and the
same build of torch compare what they got: of many that agree, the one that differs is wrong.
Nothing is random here, also not the inputs, which follow from whole numbers.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from drivetrain_core import ProgramError
from drivetrain_core.accelerators import accelerator_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_BATCH, _LENGTH, _WIDTH, _HEADS = 4, 64, 128, 4
_NUM_WORDS = 1 << 20
# As 64-bit words: all zeros, all ones, and each bit unlike its neighbours.
_PATTERNS = (0, -1, 0x5555555555555555, -0x5555555555555556)
_ODD = 2654435761


class BitReport(NamedTuple):
    """What a device has computed.

    Attributes:
        build: What has computed it: digests of the same build can be compared.
        digest: Of all that was computed.
        differs: In which parts repetitions differ, or what memory gave back wrong; empty
            if all is well.
        num_repeats: How often it was computed.
    """

    build: str
    digest: str
    differs: str
    num_repeats: int


def probe_bits(
    device: str | torch.device = "cpu", *, repeats: int = 2, measure_s: float = 0.0
) -> BitReport:
    """Computes a block of a transformer forward and backward, and moves bits in memory.

    It takes one thread and some 50 MB, changes nothing of the process's settings, and
    draws no random number.

    Args:
        device: Where to compute.
        repeats: How often, at least; two to compare.
        measure_s: For how long, at least.

    Raises:
        ProgramError: It is to be computed less than twice.

    Example:
        >>> first, second = probe_bits(), probe_bits()
        >>> first.differs, first.digest == second.digest
        ('', True)
    """
    if repeats < 2:
        message = f"repeats must be at least 2, to compare, got {repeats}"
        raise ProgramError(message)
    device = torch.device(device)
    first: dict[str, str] = {}
    faults: list[str] = []
    num = 0
    end_s = time.monotonic() + measure_s
    with _fixed_settings(device):
        while num < repeats or time.monotonic() < end_s:
            parts = {**_transformer(device), **_integers(device)}
            first = first or parts
            faults += [f"{n} differs" for n in parts if parts[n] != first[n]]
            faults += _patterns(device)
            num += 1
    differs = "; ".join(dict.fromkeys(faults))
    if differs:
        differs = f"{differs} ({num} repetitions on {device})"
    digest = _digest(*(value.encode() for value in first.values()))
    return BitReport(_build(device), digest, differs, num)


@contextlib.contextmanager
def _fixed_settings(device: torch.device) -> Iterator[None]:
    """Sets what the order of additions and their precision depend on, and restores it."""
    threads = torch.get_num_threads()
    precision = torch.get_float32_matmul_precision()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)


class _Linear(nn.Linear):
    """A linear layer that draws no random numbers, of which the caller may need its own."""

    def reset_parameters(self) -> None:
        """Leaves the weights to whoever sets them."""


class _Block(nn.Module):
    """A block of a transformer, of plain products whose order of additions is fixed."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        kind: dict[str, Any] = {"device": device, "dtype": torch.float32}
        self.norm = nn.LayerNorm(_WIDTH, **kind)
        self.inward = _Linear(_WIDTH, 3 * _WIDTH, **kind)
        self.outward = _Linear(_WIDTH, _WIDTH, **kind)
        self.up = _Linear(_WIDTH, 4 * _WIDTH, **kind)
        self.down = _Linear(4 * _WIDTH, _WIDTH, **kind)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = (batch, length, _HEADS, width // _HEADS)
        q, k, v = (
            part.reshape(heads).transpose(1, 2)
            for part in self.inward(self.norm(x)).chunk(3, dim=-1)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) * heads[-1] ** -0.5, dim=-1)
        x = x + self.outward((weights @ v).transpose(1, 2).reshape(x.shape))
        moved: Tensor = self.down(functional.gelu(self.up(x)))
        return x + moved


def _transformer(device: torch.device) -> dict[str, str]:
    """Returns digests of the output, of the weights, and of all gradients."""
    block = _Block(device)
    with torch.no_grad():
        for number, weight in enumerate(block.parameters()):
            weight.copy_(_fixed(weight.shape, number))
    x = _fixed((_BATCH, _LENGTH, _WIDTH), 100).to(device).requires_grad_()
    output = block(x)
    output.square().mean().backward()
    found = {"the output": _digest_of(output)}
    for name, weight in block.named_parameters():
        assert weight.grad is not None
        found[f"the weight {name}"] = _digest_of(weight)
        found[f"the gradient of {name}"] = _digest_of(weight.grad)
    assert x.grad is not None
    found["the gradient of the input"] = _digest_of(x.grad)
    return found


def _fixed(shape: tuple[int, ...], number: int) -> Tensor:
    """Returns values from -1/8 to 1/8, which are whole numbers of 2**-18 each."""
    count = torch.Size(shape).numel()
    words = (torch.arange(count, dtype=torch.int64) + number * 7919) * _ODD
    return (((words >> 8) % 65536 - 32768).to(torch.float32) / (1 << 18)).view(shape)


def _integers(device: torch.device) -> dict[str, str]:
    """Returns a digest of whole numbers that were multiplied and shifted."""
    words = torch.arange(_NUM_WORDS // 4, dtype=torch.int64, device=device)
    for shift in (7, 13, 29):
        words = (words * _ODD) ^ (words >> shift)
    return {"the integers": _digest_of(words)}


def _patterns(device: torch.device) -> list[str]:
    """Returns which bit patterns memory has given back wrong."""
    found = []
    words = torch.empty(_NUM_WORDS, dtype=torch.int64, device=device)
    for pattern in _PATTERNS:
        words.fill_(pattern)
        num = int((words != pattern).sum())
        if num:
            found.append(
                f"memory gave back {num} words wrong of {pattern & (1 << 64) - 1:x}"
            )
    addresses = torch.arange(_NUM_WORDS, dtype=torch.int64, device=device)
    words.copy_(addresses)
    num = int((words != addresses).sum())
    if num:
        found.append(f"memory gave back {num} words of other places")
    return found


def _digest_of(tensor: Tensor) -> str:
    return _digest(tensor.detach().cpu().contiguous().numpy().tobytes())


def _digest(*parts: bytes) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:32]


def _build(device: torch.device) -> str:
    """Returns what the bits depend on: torch, and the kind of device."""
    if device.type != "cpu":
        accelerator = accelerator_of(device)
        name = accelerator.facts(device.index or 0).name
        return f"{name}, torch {torch.__version__}, {accelerator.version()}"
    capability = torch.backends.cpu.get_cpu_capability()
    library = "oneDNN" if torch._C._get_mkldnn_enabled() else "no oneDNN"
    return f"{_processor()}, torch {torch.__version__}, {capability}, {library}"


def _processor() -> str:
    """Returns the processor's model, by which libraries choose how they add."""
    facts: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    parts = [
        facts.get(n, "") for n in ("model name", "cpu family", "model", "stepping")
    ]
    return " ".join(part for part in parts if part) or platform.machine()
