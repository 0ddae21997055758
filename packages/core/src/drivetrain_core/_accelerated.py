"""What `accelerate` returns: ordinary PyTorch objects, and a step that drives them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from drivetrain_core._data.cycle import cycle
from drivetrain_core._watch import Promise, Watch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

    from drivetrain_core._context import Context
    from drivetrain_core._plan import Plan
    from drivetrain_core._state import TrainingState
    from drivetrain_core._step import TrainStep
    from drivetrain_core.services.model_layout import AppliedLayout, LayoutPlan
    from drivetrain_core.services.plan_search import SearchReport


class Accelerated:
    """The program with a plan applied; unpacks to model, optimizer and loader.

    Drive it with `train_step`, or with a loop of your own:

        model, optimizer, loader = accelerated
        for batch in loader:
            accelerated.backward(accelerated.loss_of(batch))
            accelerated.optimizer_step()

    Not thread-safe: one loop drives it.

    Attributes:
        model: What to call: the module, or a wrapper such as DDP around it.
        module: The user's module, with its own parameter names.
        optimizer: The optimizer.
        loader: Yields this rank's batches, on the device.
        scheduler: The learning-rate scheduler, or None.
        plan: The plan that was applied, with its reasons.
        report: Every trial of the search, or None when the plan was given.
        context: The facts that the plan was checked against.
        device: The device of the model.
        mesh: The device mesh, or None.
    """

    def __init__(
        self,
        state: TrainingState,
        optimizer: torch.optim.Optimizer,
        step: TrainStep,
        plan: Plan,
        scheduler: Any = None,
    ) -> None:
        """Holds what `build` made."""
        self.model = state.model
        self.module = state.module
        self.optimizer = optimizer
        self.loader = state.loader
        self.scheduler = scheduler
        self.plan = plan
        self.report: SearchReport | None = None
        self.context: Context = state.context
        self.device = state.device
        self.mesh = state.mesh
        self.train_step = step
        self._state = state
        self._set_gradient_sync = state.set_gradient_sync
        self._undo = state.undo
        self._watch: Watch | None = None

    def __iter__(self) -> Iterator[Any]:
        """Yields model, optimizer and loader."""
        return iter((self.model, self.optimizer, self.loader))

    def models(self) -> list[torch.nn.Module]:
        """Returns what this rank has of the model.

        That is the module, or under a pipeline one module for each stage of this rank,
        with the names of the model and without the blocks of other stages.
        """
        return self._state.models()

    @property
    def data_size(self) -> int:
        """Returns how many parts a global batch is split into over the ranks."""
        return self._state.data_size

    @property
    def data_rank(self) -> int:
        """Returns which part of a global batch this rank reads."""
        return self._state.data_rank

    @property
    def is_meshed(self) -> bool:
        """Returns whether the model is laid over a mesh of several axes."""
        return self._state.layout is not None

    @property
    def is_staged(self) -> bool:
        """Returns whether this rank has stages of a pipeline."""
        return self._state.layout is not None and self._state.layout.is_staged

    @property
    def parallel_plan(self) -> LayoutPlan | None:
        """Returns what each axis of a mesh does to the model; None without one."""
        return self._state.layout_plan

    @property
    def layout(self) -> AppliedLayout | None:
        """Returns what this rank has of a model over a mesh; None without one."""
        return self._state.layout

    def ties_of_stages(self) -> tuple[tuple[str, ...], ...]:
        """Returns the groups of names that share a parameter across stages."""
        return () if self.layout is None else self.layout.ties_of_stages()

    def hold_to_promise(self) -> None:
        """Times the first steps of `train_step` beside what the plan promised."""
        self._watch = self.train_step.watch = Watch.of(self.plan)

    @property
    def promise(self) -> Promise | None:
        """What the plan promised and what training showed.

        None until enough steps have run, and where the plan promised nothing for this
        machine.
        """
        return self._watch.promise if self._watch is not None else None

    def __repr__(self) -> str:
        """Returns the plan on one line."""
        return f"Accelerated({self.plan})"

    @property
    def max_grad_norm(self) -> float | None:
        """To which total norm a step clips the gradient; None for not at all."""
        return self.train_step.max_grad_norm

    def loss_of(self, batch: Any) -> torch.Tensor:
        """Returns the loss of a batch or of a part of one, to go backward from.

        It is the mean over the samples, as `train_step` computes it.
        """
        return self.train_step.loss_of(batch)

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the loss's gradient to the parameters."""
        loss.backward()  # type: ignore[no-untyped-call]

    def optimizer_step(self) -> None:
        """Clips if asked, steps optimizer and scheduler, and clears the gradients."""
        self.train_step.optimizer_step()

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scales the gradients down to a total norm over all ranks and shards.

        Returns:
            The norm before, as a plain tensor.
        """
        norm = self.train_step.clip(max_norm)
        # Of sharded gradients it is a DTensor, whose whole value needs every rank.
        full = getattr(norm, "full_tensor", None)
        return full() if full is not None else norm

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keeps gradients local inside, for accumulation in a loop of your own."""
        if self._set_gradient_sync is None:
            yield
            return
        self._set_gradient_sync(False)
        try:
            yield
        finally:
            self._set_gradient_sync(True)

    def state(self) -> dict[str, Any]:
        """Returns what a `Checkpointer` saves and restores of the program.

        Under any mesh, or none, it is saved under the names, shapes and groups of the
        model and the optimizer as written, so that it may be restored under another
        mesh, or by a plain program with entries `model` and `optimizer`. It shows the
        program as it is when it is saved, and may be kept.

        Returns:
            The entries `model` and `optimizer`, and `scheduler` if there is one.

        Example:
            >>> import tempfile
            >>> from torch import nn, optim, ones
            >>> from drivetrain_core import accelerate
            >>> from drivetrain_core.services import DcpCheckpointer
            >>> accelerated = accelerate(
            ...     nn.Linear(2, 1), lambda p: optim.Adam(p), [ones(4, 2)],
            ...     lambda output, batch: output.mean(), strategy=[])
            >>> checkpointer = DcpCheckpointer(tempfile.mkdtemp())
            >>> state = {**accelerated.state(), "position": 64}
            >>> checkpointer.save(1, state).durable, checkpointer.restore(state)
            (True, 1)
        """
        state: dict[str, Any] = {"model": self.module, "optimizer": self.optimizer}
        if self.layout is not None:
            state = dict(self.layout.entries(self.optimizer))
        if self.scheduler is not None:
            state["scheduler"] = self.scheduler
        return state

    def state_dict(self) -> dict[str, Any]:
        """Returns model, optimizer and scheduler by canonical names, on this rank.

        Sharded tensors stay sharded: save them with torch.distributed.checkpoint or
        a `Checkpointer`. Over a mesh, a name stands for the blocks that this rank has
        of it, and the optimizer's state is by parameter names; all of it can be loaded
        by `torch.distributed.checkpoint.load` under another mesh.

        Raises:
            NamesError: Over a mesh, the optimizer's state has no names by parameter.
        """
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        if self.layout is not None:
            state = self.layout.state_dict(self.optimizer)
        else:
            state = {
                "model": get_model_state_dict(self.module),
                "optimizer": self.optimizer.state_dict(),
            }
        if self.scheduler is not None:
            state["scheduler"] = self.scheduler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict` returned under the same plan and world size.

        Over a mesh also what `torch.distributed.checkpoint.load` has loaded into it.

        Raises:
            CheckpointError: Over a mesh, it does not fit; nothing has been changed.
        """
        from torch.distributed.checkpoint.state_dict import set_model_state_dict

        if self.layout is not None:
            self.layout.load_state_dict(self.optimizer, state)
        else:
            set_model_state_dict(self.module, state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])

    def close(self) -> None:
        """Puts global settings back, such as the number of threads."""
        while self._undo:
            self._undo.pop()()

    def batches(self) -> Iterable[Any]:
        """Yields the loader's batches without end, epoch after epoch.

        Raises:
            DataExhaustedError: An epoch holds no batch.
        """
        return cycle(self.loader)
