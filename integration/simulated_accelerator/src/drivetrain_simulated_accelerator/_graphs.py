"""Graphs of `torch.sim`: work that is captured once and replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_simulated_accelerator import _native
from drivetrain_simulated_accelerator._devices import synchronize
from drivetrain_simulated_accelerator._streams import Stream, StreamContext

if TYPE_CHECKING:
    from types import TracebackType

    import torch


class Graph:
    """Work that was captured on a stream, with memory of its own.

    Run the code once before it is captured: an op whose results' shapes are not known
    yet cannot be captured.
    """

    def __init__(self) -> None:
        """Makes a graph that holds nothing yet."""
        self._captured = _native.CapturedGraph()

    def capture_begin(self, pool: tuple[int, int] | None = None) -> None:
        """Captures what the current stream is given from now on.

        Args:
            pool: The memory of another graph, to share it.
        """
        self._captured.capture_begin(0 if pool is None else pool[0])

    def capture_end(self) -> None:
        """Ends the capture."""
        self._captured.capture_end()

    def replay(self) -> None:
        """Queues the captured work on the current stream."""
        self._captured.replay()

    def reset(self) -> None:
        """Gives back the work and the memory."""
        self._captured.reset()

    def pool(self) -> tuple[int, int]:
        """Returns what names the memory of this graph."""
        return self._captured.pool(), 0


class graph:  # noqa: N801 - as torch.cuda.graph
    """Captures a graph on a side stream.

    Args:
        sim_graph: The graph.
        pool: The memory of another graph, to share it.
        stream: The stream; a new one by default.
    """

    def __init__(
        self,
        sim_graph: Graph,
        pool: tuple[int, int] | None = None,
        stream: torch.Stream | None = None,
    ) -> None:
        """Takes the graph."""
        self._graph = sim_graph
        self._pool = pool
        self._stream = StreamContext(Stream() if stream is None else stream)

    def __enter__(self) -> None:
        """Begins the capture."""
        synchronize()
        self._stream.__enter__()
        self._graph.capture_begin(self._pool)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends it."""
        self._graph.capture_end()
        self._stream.__exit__(kind, error, trace)


def is_current_stream_capturing() -> bool:
    """Returns whether a graph is being captured on the current stream."""
    return _native.is_capturing(_native.current_device())
