"""Checkpoints of the Hugging Face Trainer, in two stages.

Import this module to use it: it imports transformers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import drivetrain_checkpoint  # noqa: TC001 (annotations are resolved for the reference)
from drivetrain_checkpoint._rank_group import RankGroup
from drivetrain_checkpoint.adapters._random import random_states, set_random_states

try:
    from transformers import Trainer
    from transformers.trainer import TRAINER_STATE_NAME
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    message = "needs transformers: pip install 'drivetrain-checkpoint[transformers]'"
    raise ImportError(message) from error

__all__ = ["TwoStageMixin", "TwoStageTrainer"]

_REFUSED = {
    "load_best_model_at_end": "keep the best model with a callback of your own",
    "save_total_limit": "say Checkpointer(keep=...)",
    "save_only_model": "call save_model",
    "push_to_hub": "call save_model, and upload that",
    "deepspeed": "its states are held by its own checkpoints only",
}


class TwoStageMixin:
    """Lets a trainer save into memory first, and then to storage.

    When it is time to save (`save_strategy`, `save_steps`), models, optimizer,
    scheduler, scaler, random numbers of every rank and the trainer's state are copied
    into memory, and the training goes on. `train(resume_from_checkpoint=True)` goes on
    from the newest checkpoint that is whole, in memory or on storage; one that was
    never committed is not seen. A path is a checkpoint of transformers' own. `train`
    returns when all is durable. `save_model` writes what it always does.

    Args:
        checkpointer: Where checkpoints go; it says how many are kept.
        arguments: Those of the trainer.
        options: Likewise.

    Raises:
        ValueError: An argument of the trainer asks for what is not offered here.

    Example:
        >>> from transformers import Seq2SeqTrainer
        >>> class Seq2SeqTwoStageTrainer(TwoStageMixin, Seq2SeqTrainer): ...
    """

    def __init__(
        self,
        *arguments: Any,
        checkpointer: drivetrain_checkpoint.Checkpointer,
        **options: Any,
    ) -> None:
        """Makes the trainer, and checks what it was asked for."""
        super().__init__(*arguments, **options)
        self.checkpointer = checkpointer
        self._resumed: tuple[str, int] | None = None
        self._random_states: dict[str, Any] | None = None
        trainer: Any = self
        for name, instead in _REFUSED.items():
            if getattr(trainer.args, name, None):
                message = f"{name} is not offered with a checkpointer: {instead}"
                raise ValueError(message)

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        """Trains as ever.

        Args:
            resume_from_checkpoint: True for the newest whole checkpoint; a path for one
                of transformers' own.
            arguments: Those of the trainer.
            options: Likewise.

        Raises:
            CheckpointError: There is no checkpoint, or it does not fit.
            StorageError: A save has failed.
        """
        parent: Any = super()
        with contextlib.ExitStack() as stack:
            if resume_from_checkpoint is True:
                state: dict[str, Any] = {"trainer": ""}
                step = self.checkpointer.restore(state)
                # The trainer reads from a folder how far it was.
                resume_from_checkpoint = stack.enter_context(
                    tempfile.TemporaryDirectory()
                )
                Path(resume_from_checkpoint, TRAINER_STATE_NAME).write_text(
                    state["trainer"]
                )
                self._resumed = (resume_from_checkpoint, step)
            try:
                found = parent.train(resume_from_checkpoint, *arguments, **options)
            finally:
                self._resumed = None
        self.checkpointer.flush()
        return found

    def _save_checkpoint(self, _model: Any, _trial: Any) -> None:
        trainer: Any = self
        trainer.store_flos()
        for part in [*trainer.callback_handler.callbacks, trainer.control]:
            if isinstance(part, ExportableState):
                found, name = trainer.state.stateful_callbacks, type(part).__name__
                # Several callbacks of one class stand in a list.
                if isinstance(found[name], list):
                    found[name].append(part.state())
                else:
                    found[name] = part.state()
        own = {
            "random": random_states(),
            "trainer": json.dumps(dataclasses.asdict(trainer.state)),
        }
        ranks = RankGroup().all_gather(own)
        state = {
            **self._parts(),
            "random": {str(rank): one["random"] for rank, one in enumerate(ranks)},
            "trainer": ranks[0]["trainer"],
        }
        self.checkpointer.save(trainer.state.global_step, state)

    def _load_from_checkpoint(self, checkpoint: str, *arguments: Any) -> None:
        if not self._is_ours(checkpoint):
            parent: Any = super()
            parent._load_from_checkpoint(checkpoint, *arguments)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if not self._is_ours(checkpoint):
            parent: Any = super()
            parent._load_optimizer_and_scheduler(checkpoint)
            return
        assert self._resumed is not None
        state: dict[str, Any] = {**self._parts(), "random": {}}
        self.checkpointer.restore(state, self._resumed[1])
        self._random_states = state["random"].get(str(RankGroup().rank))

    def _load_scaler(self, checkpoint: str | None) -> None:
        if not self._is_ours(checkpoint):
            parent: Any = super()
            parent._load_scaler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if not self._is_ours(checkpoint):
            parent: Any = super()
            parent._load_rng_state(checkpoint)
        elif self._random_states is not None:
            set_random_states(self._random_states)

    def _is_ours(self, checkpoint: str | None) -> bool:
        return self._resumed is not None and self._resumed[0] == checkpoint

    def _parts(self) -> dict[str, Any]:
        trainer: Any = self
        parts = {
            "model": trainer.model,
            # What wraps an optimizer has no state of its own.
            "optimizer": getattr(trainer.optimizer, "optimizer", trainer.optimizer),
            "scheduler": trainer.lr_scheduler,
        }
        scaler = getattr(trainer.accelerator, "scaler", None)
        return parts | ({} if scaler is None else {"scaler": scaler})


class TwoStageTrainer(TwoStageMixin, Trainer):  # type: ignore[misc]
    """The Hugging Face Trainer with `TwoStageMixin`."""
