"""Rows that come and go in chunks, while what is there already is worked on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist

from drivetrain_parallel.overlap._errors import OverlapError
from drivetrain_parallel.overlap._messages import Messages, Round, place_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drivetrain_parallel.overlap._rows import Rows

Path = Literal["direct", "ring"]
"""How rows travel: from each rank to each, or from neighbour to neighbour."""

PATHS: tuple[Path, ...] = ("direct", "ring")

# Rounds are started a few ahead of what has been received, not all at once: so mostly
# one rank sends to another at a time, chunks come one by one, and the last ones do not
# all come together at the end, when nothing is left to hide them.
_SENDS_AHEAD = 3

_Move = tuple[slice | None, int, slice | None, int]


class RowExchange:
    """All-gathers and reduce-scatters of rows by chunks, point to point.

    All ranks call the same methods in the same order. Not thread-safe: one operation of
    a group at a time.

    Args:
        group: The ranks; None for all.
        rows: Which rows each rank owns; equal on all ranks.
        path: "direct" sends from each rank to each; "ring" to the next one only, which
            passes it on.
        what: The operation, for messages of errors.
        in_batches: Whether messages go in rounds, each one batch, as NCCL needs; by
            default for tensors that are not on the CPU.

    Raises:
        OverlapError: The path is unknown, or the rows are for another number of ranks.
        DistributedError: This rank is not in the group.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        rows: Rows,
        path: Path = "direct",
        *,
        what: str = "row exchange",
        in_batches: bool | None = None,
    ) -> None:
        """Finds this rank's place."""
        if path not in PATHS:
            message = f"{what}: path must be one of {', '.join(PATHS)}, got {path!r}"
            raise OverlapError(message)
        self.rank, self.size = place_in(group, what)
        if len(rows.counts) != self.size:
            message = (
                f"{what}: rows must be given for each of the {self.size} ranks of the "
                f"group, got {len(rows.counts)}: {rows.counts}"
            )
            raise OverlapError(message)
        self.rows = rows
        self._group = group
        self._path = path
        self._in_batches = in_batches
        self._what = what

    def gather(
        self, block: torch.Tensor, into: torch.Tensor | None = None
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yields all chunks of all ranks: this rank's at once, others as they come.

        What is done between two chunks goes on while further ones travel. The order is
        the same at each call.

        Args:
            block: This rank's rows, contiguous and of two dimensions; left alone until
                the last chunk is taken.
            into: Receives the whole; by default memory that lasts as long as the
                chunks.

        Yields:
            Where a chunk lies in the whole, and its rows.

        Raises:
            DistributedError: A rank is gone.
        """
        whole = into
        if whole is None:
            whole = block.new_empty(self.rows.total, block.shape[1])
        mine = self.rows.block(self.rank)
        if into is not None:
            whole[mine] = block
        moves = self._gather_moves() if block.shape[1] else []
        messages = self._messages(
            [
                Round(target, source, None if got is None else whole[got])
                for _, target, got, source in moves
            ],
            block,
        )

        come = {chunk.start for chunk in self.rows.chunks(self.rank)}
        started = 0

        def start(until: int) -> None:
            """Starts rounds in order, up to one that passes on what is not there yet."""
            nonlocal started
            # A device's stream has received what it sends by the time that it sends.
            on_cpu = _on_cpu(block)
            while started < (min(until, len(moves)) if on_cpu else len(moves)):
                sent = moves[started][0]
                if on_cpu and sent is not None and sent.start not in come:
                    return
                part = None
                if sent is not None and mine.start <= sent.start < mine.stop:
                    part = _within(block, sent, mine)
                elif sent is not None:
                    part = whole[sent]
                messages.send(started, part)
                started += 1

        start(_SENDS_AHEAD)
        for done, chunk in enumerate(self.rows.chunks(self.rank), 1):
            yield chunk, _within(block, chunk, mine)
            start(_SENDS_AHEAD + done)
        for at, (_, _, got, _) in enumerate(moves):
            if got is not None:
                messages.wait(at)
                come.add(got.start)
            start(at + 1 + _SENDS_AHEAD)
            if got is not None:
                yield got, whole[got]
        if not block.shape[1]:
            for other in range(self.size):
                if other != self.rank:
                    yield from ((c, whole[c]) for c in self.rows.chunks(other))
        messages.finish()

    def reduce_scatter(
        self, product: Callable[[slice], torch.Tensor], like: torch.Tensor
    ) -> torch.Tensor:
        """Returns the sum over the ranks of this rank's rows of a product.

        A chunk of the product travels while the next one is made; this rank's own are
        made last. On the direct path terms are added in the order of the ranks, in
        float32 for 16-bit types; on the ring, in the order of the ring and in the type
        of the product.

        Args:
            product: Given where a chunk lies in the whole, returns its rows.
            like: A tensor with the device, the type and the columns of the product.

        Raises:
            DistributedError: A rank is gone.
        """
        shape = (self.rows.counts[self.rank], like.shape[-1])
        result = like.new_empty(shape)
        if not shape[1]:
            return result
        if self._path == "ring":
            self._reduce_along_ring(product, result)
        else:
            self._reduce_directly(product, result)
        return result

    def _reduce_directly(
        self, product: Callable[[slice], torch.Tensor], result: torch.Tensor
    ) -> None:
        mine = self.rows.block(self.rank)
        own = self.rows.chunks(self.rank)
        terms = {
            source: torch.empty_like(result)
            for source in range(self.size)
            if source != self.rank
        }
        rounds, sent = [], []
        for step in range(1, self.size):
            target = (self.rank + step) % self.size
            source = (self.rank - step) % self.size
            for out, got in self._pairs(self.rows.chunks(target), own):
                into = None if got is None else _within(terms[source], got, mine)
                rounds.append(Round(target, source, into))
                sent.append(out)
        messages = self._messages(rounds, result)
        for at, out in enumerate(sent):
            messages.send(at, None if out is None else _message(product(out)))
        own_term = torch.empty_like(result)
        for chunk in own:
            _within(own_term, chunk, mine).copy_(product(chunk))
        terms[self.rank] = own_term
        for at in range(len(rounds)):
            messages.wait(at)
        total = terms[0].to(sum_dtype(result.dtype))
        for source in range(1, self.size):
            total += terms[source]
        result.copy_(total)
        messages.finish()

    def _reduce_along_ring(
        self, product: Callable[[slice], torch.Tensor], result: torch.Tensor
    ) -> None:
        """Block by block: the next rank's travels first, and all end at their owner."""
        mine = self.rows.block(self.rank)
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        rounds, sent = [], []
        for step in range(1, self.size):
            outgoing = self.rows.chunks((self.rank - step) % self.size)
            incoming = self.rows.chunks((self.rank - step - 1) % self.size)
            for out, got in self._pairs(outgoing, incoming):
                into = None
                if got is not None:
                    into = result.new_empty(got.stop - got.start, result.shape[1])
                rounds.append(Round(after, before, into))
                sent.append((out, got))
        came = {got.start: at for at, (_, got) in enumerate(sent) if got is not None}
        messages = self._messages(rounds, result)

        def summed(chunk: slice) -> torch.Tensor:
            term = _message(product(chunk))
            at = came.get(chunk.start)
            if at is None:
                return term
            messages.wait(at)
            into = rounds[at].into
            assert into is not None
            return into.add_(term)

        for at, (out, _) in enumerate(sent):
            messages.send(at, None if out is None else summed(out))
        for chunk in self.rows.chunks(self.rank):
            _within(result, chunk, mine).copy_(summed(chunk))
        messages.finish()

    def _gather_moves(self) -> list[_Move]:
        """Returns what is sent, to whom, what is received, and from whom, in order."""
        rank, size, chunks = self.rank, self.size, self.rows.chunks
        moves: list[_Move] = []
        if self._path == "ring":
            after, before = (rank + 1) % size, (rank - 1) % size
            for step in range(size - 1):
                sent, got = chunks((rank - step) % size), chunks((before - step) % size)
                moves += [(out, after, g, before) for out, g in self._pairs(sent, got)]
            return moves
        for step in range(1, size):
            target, source = (rank + step) % size, (rank - step) % size
            pairs = self._pairs(chunks(rank), chunks(source))
            moves += [(out, target, got, source) for out, got in pairs]
        return moves

    def _pairs(
        self, sent: list[slice], got: list[slice]
    ) -> list[tuple[slice | None, slice | None]]:
        """Returns the chunks of two blocks side by side, in as many rounds on all ranks.

        In some of them a rank may have nothing to do.
        """
        parts = range(min(self.rows.num_chunks, max(self.rows.counts)))
        return [(_nth(sent, part), _nth(got, part)) for part in parts]

    def _messages(self, rounds: list[Round], like: torch.Tensor) -> Messages:
        in_batches = self._in_batches
        if in_batches is None:
            in_batches = not _on_cpu(like)
        return Messages(self._group, rounds, in_batches=in_batches, what=self._what)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the type that terms are added in: float32 for 16-bit types."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _on_cpu(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def _message(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous()


def _within(block: torch.Tensor, chunk: slice, whole: slice) -> torch.Tensor:
    return block[chunk.start - whole.start : chunk.stop - whole.start]


def _nth(chunks: list[slice], part: int) -> slice | None:
    return chunks[part] if part < len(chunks) else None
