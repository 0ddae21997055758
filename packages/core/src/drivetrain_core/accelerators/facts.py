"""The facts of one device: plain data that plans are judged against."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceleratorFacts:
    """What one device is and can do; what it cannot is a fact, not an error.

    Args:
        type: The torch device type, such as `cpu` or `cuda`.
        name: What it is, such as the name of the card.
        memory_bytes: Its memory; for a CPU, what this machine has.
        num_processors: Its multiprocessors; 0 where unknown.
        shared_memory_bytes: What a program of a kernel may have of its multiprocessor's
            memory; 0 where unknown.
        capability: The compute capability of a CUDA device, else (0, 0).
        dtypes: The floating-point formats that it computes in, by torch's names.
        streams: Whether work can be queued on several streams, ordered by events.
        event_timing: Whether events tell the time between them.
        graphs: Whether queued work can be captured and replayed.
        pinned_memory: Whether copies from page-locked memory run beside other work.
        collectives: The backend of `torch.distributed` for its tensors, or None.
        compiler: The backend of `torch.compile` for it; `aot_eager` traces a program, and
            makes nothing faster.
        compiler_needs: What that backend lacks on this machine, or nothing.
        triton: Whether kernels in Triton are compiled for it.
    """

    type: str
    name: str
    memory_bytes: int
    num_processors: int = 0
    shared_memory_bytes: int = 0
    capability: tuple[int, int] = (0, 0)
    dtypes: tuple[str, ...] = ("bfloat16", "float16", "float32", "float64")
    streams: bool = False
    event_timing: bool = False
    graphs: bool = False
    pinned_memory: bool = False
    collectives: str | None = "gloo"
    compiler: str = "inductor"
    compiler_needs: str = ""
    triton: bool = False

    @property
    def can_compile(self) -> bool:
        """Whether `torch.compile` makes code faster, and finds what it needs."""
        return self.compiler != "aot_eager" and not self.compiler_needs
