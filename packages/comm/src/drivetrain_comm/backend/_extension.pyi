"""
The engine: one thread that moves and reduces.
"""
from __future__ import annotations
import collections.abc
import typing
__all__: list[str] = ['Engine', 'Program', 'Ticket']
class Program:
    """
    Steps of one rank, ready for the engine.
    """
    def __init__(self, steps: collections.abc.Sequence[typing.Annotated[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], "FixedSize(3)"]], num_chunks: typing.SupportsInt | typing.SupportsIndex, num_ranks: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Takes kind, peer and chunk of each step. Raises DistributedError for a rank or a chunk that there is not.
        """
class Ticket:
    """
    A collective that was handed over. Safe to use from any thread.
    """
    def ended_at_s(self) -> float:
        """
        When it ended, on the clock of `time.monotonic`.
        """
    def finish(self) -> None:
        """
        Waits for the end, and lets signals through meanwhile. Raises DistributedError where it failed on some rank.
        """
    def wait(self, timeout_s: typing.SupportsFloat | typing.SupportsIndex) -> str | None:
        """
        Returns why it failed, an empty string if it did not, or None if it has not ended.
        """
class Engine:
    """
    Listens, moves and reduces, until it is stopped.
    """
    def __init__(self, host: str, local_name: str) -> None:
        ...
    def add_group(self, token: bytes, rank: typing.SupportsInt | typing.SupportsIndex, num_ranks: typing.SupportsInt | typing.SupportsIndex, buffer_bytes: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    def fail_group(self, group: typing.SupportsInt | typing.SupportsIndex, why: str) -> None:
        ...
    def remove_group(self, group: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def set_address(self, group: typing.SupportsInt | typing.SupportsIndex, peer: typing.SupportsInt | typing.SupportsIndex, host: str, port: typing.SupportsInt | typing.SupportsIndex, local_name: str) -> None:
        ...
    def stop(self) -> None:
        ...
    def submit(self, group: typing.SupportsInt | typing.SupportsIndex, program: Program, plan: typing.SupportsInt | typing.SupportsIndex, pieces: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], type: typing.SupportsInt | typing.SupportsIndex, operation: typing.SupportsInt | typing.SupportsIndex, factor: typing.SupportsFloat | typing.SupportsIndex, num_channels: typing.SupportsInt | typing.SupportsIndex, segment_bytes: typing.SupportsInt | typing.SupportsIndex, timeout_s: typing.SupportsFloat | typing.SupportsIndex) -> Ticket:
        """
        Hands a collective over: address and size of each piece of its vector, which must live until the ticket's end.
        """
    @property
    def port(self) -> int:
        ...
