"""fp32 master weights around any optimizer, for a model with low-precision weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor


class MasterWeightOptimizer(torch.optim.Optimizer):
    """Steps fp32 copies of the weights and writes them back rounded.

    A bf16 weight has 8 bits of mantissa: an update under 1/256 of it is lost. The
    inner optimizer therefore owns fp32 masters; gradients are cast up to them, and
    the masters are cast down to the model after each step. A weight that was changed in
    between, such as by loading others, is taken over: not what is written through its
    `.data`, which torch does not count as a change. `param_groups` and `state`
    are the inner optimizer's, so learning-rate schedulers work unchanged.

    Args:
        named: The model's parameters by name.
        build: Builds the inner optimizer from the masters by name.

    Attributes:
        inner: The optimizer of the masters.
        masters: What the inner optimizer steps, by the model's names.
        master_weights: The pairs of a low-precision weight and its master.

    Example:
        >>> w = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        >>> opt = MasterWeightOptimizer(
        ...     {"w": w}, lambda named: torch.optim.SGD(named.values(), lr=1e-3))
        >>> for _ in range(8):
        ...     w.grad = torch.ones_like(w)
        ...     opt.step()
        >>> w[0].item()
        0.9921875
    """

    def __init__(
        self,
        named: Mapping[str, Tensor],
        build: Callable[[Mapping[str, Tensor]], torch.optim.Optimizer],
    ) -> None:
        """Copies the weights up and builds the inner optimizer on the copies."""
        self.masters: dict[str, Tensor] = {}
        self.master_weights: list[tuple[Tensor, Tensor]] = []
        for name, weight in named.items():
            if weight.dtype in (torch.bfloat16, torch.float16):
                master = torch.nn.Parameter(
                    weight.detach().float(), requires_grad=weight.requires_grad
                )
                # A factory may go by what the user has set on it.
                vars(master).update(vars(weight))
                self.master_weights.append((weight, master))
                self.masters[name] = master
            else:
                self.masters[name] = weight
        self._weights = list(named.values())
        self.inner = build(self.masters)
        super().__init__(self.inner.param_groups, self.inner.defaults)
        self.param_groups = self.inner.param_groups
        self.state = self.inner.state
        self._settled = self._looks()

    def _looks(self) -> list[tuple[int, ...]]:
        """Returns what of each weight, and of its master, is another once it changes."""
        local = [(_local(w), _local(m)) for w, m in self.master_weights]
        return [(m._version, w._version, w.data_ptr()) for w, m in local]

    def _follow(self) -> None:
        """Takes over weights that were loaded, or changed otherwise, since the last step.

        Where the master was changed too, both were restored, and the master has more.
        """
        pairs = zip(self.master_weights, self._settled, self._looks(), strict=True)
        for (weight, master), before, now in pairs:
            if before[0] == now[0] and before != now:
                master.copy_(weight)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Casts gradients up, steps the inner optimizer, casts weights down."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._follow()
        live = [(w, m) for w, m in self.master_weights if w.grad is not None]
        for weight, master in self.master_weights:
            master.grad = None if weight.grad is None else weight.grad.float()
        self.inner.step()
        if live:
            # Of shards, the local parts: torch copies no list of DTensors.
            weights = [_local(weight) for weight, _ in live]
            torch._foreach_copy_(weights, [_local(master) for _, master in live])
        for _, master in self.master_weights:
            master.grad = None
        self._settled = self._looks()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of the model's own weights."""
        for weight in self._weights:
            if set_to_none:
                weight.grad = None
            elif weight.grad is not None:
                weight.grad.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Returns the inner state and the masters."""
        masters = [master.detach() for _, master in self.master_weights]
        return {"inner": self.inner.state_dict(), "masters": masters}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the inner state and the masters, and the weights from them."""
        masters = state_dict["masters"]
        if len(masters) != len(self.master_weights):
            message = f"expected {len(self.master_weights)} masters, got {len(masters)}"
            raise ValueError(message)
        self.inner.load_state_dict(state_dict["inner"])
        self.param_groups = self.inner.param_groups
        self.state = self.inner.state
        for (weight, master), saved in zip(self.master_weights, masters, strict=True):
            master.copy_(saved)
            weight.copy_(saved)
        self._settled = self._looks()


def _local(tensor: Any) -> Tensor:
    local = getattr(tensor, "to_local", None)
    found: Tensor = tensor if local is None else local()
    return found
