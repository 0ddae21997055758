"""What was replaced, what was left and why, and the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from drivetrain_core.tables import aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn


@dataclass(frozen=True, kw_only=True, slots=True)
class Replaced:
    """A module whose `forward` an op stands in for.

    Args:
        name: The module's name in the model.
        module: Its class.
        op: The op with its options.
        impl: The implementation, as the plan names it.
        error: The largest relative difference that the check met; None if unchecked.
    """

    name: str
    module: str
    op: str
    impl: str
    error: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """A module that was left as it is.

    Args:
        name: The module's name in the model.
        module: Its class.
        why: The reason.
    """

    name: str
    module: str
    why: str


class Replacement:
    """The handle that `replace` returns; `str` gives a table. Undoes at `with`'s end.

    A deep copy of the model is replaced as well, and is no concern of this handle; a
    model that was pickled comes back with its own modules.

    Args:
        replaced: What was replaced.
        left: What was left.
        bindings: What is set, each as (module, name of the attribute, value). The
            attribute hides that of the module's class.

    Attributes:
        replaced: What was replaced, in the model's order.
        left: What was left, and why.
    """

    def __init__(
        self,
        replaced: list[Replaced],
        left: list[Left],
        bindings: Sequence[tuple[nn.Module, str, Any]],
    ) -> None:
        self.replaced = tuple(replaced)
        self.left = tuple(left)
        self._bindings = tuple(bindings)

    def undo(self) -> None:
        """Gives every module its own back; a second time does nothing."""
        for module, attribute, value in self._bindings:
            if vars(module).get(attribute) is value:
                del vars(module)[attribute]

    def redo(self) -> None:
        """Replaces again what `undo` gave back; a second time does nothing."""
        for module, attribute, value in self._bindings:
            vars(module).setdefault(attribute, value)

    def __enter__(self) -> Self:
        """Returns the handle."""
        return self

    def __exit__(self, *_: object) -> None:
        """Undoes."""
        self.undo()

    def __str__(self) -> str:
        """Returns what was replaced and what was left, equal ones in one line."""
        lines: dict[tuple[str, str, str], list[str]] = {}
        for one in self.replaced:
            what = f"{one.op} by {one.impl}"
            lines.setdefault(("replaced", one.module, what), []).append(one.name)
        for other in self.left:
            lines.setdefault(("left", other.module, other.why), []).append(other.name)
        if not lines:
            return "no module that an op could stand in for"
        rows = [
            (state, f"{len(names)} x {module}", names[0], what)
            for (state, module, what), names in lines.items()
        ]
        return "\n".join(aligned(rows))

    __repr__ = __str__
