"""Dropout of functions, which no module tells of, let through."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_PROBABILITY = {
    functional.dropout: "p",
    functional.dropout1d: "p",
    functional.dropout2d: "p",
    functional.dropout3d: "p",
    functional.alpha_dropout: "p",
    functional.feature_alpha_dropout: "p",
    torch.dropout: "p",
    functional.scaled_dot_product_attention: "dropout_p",
}
# Where each takes it when it is not named.
_PLACE = {"p": 1, "dropout_p": 4}


class WithoutDropout(TorchFunctionMode):
    """Inside, every dropout lets everything through, of functions as well.

    Example:
        >>> with WithoutDropout():
        ...     functional.dropout(torch.ones(3), 0.9).tolist()
        [1.0, 1.0, 1.0]
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Sets the probability to zero, and leaves other functions alone."""
        kwargs = dict(kwargs or {})
        key = _PROBABILITY.get(func)
        if key is not None:
            place = _PLACE[key]
            if len(args) > place:
                args = (*args[:place], 0.0, *args[place + 1 :])
            else:
                kwargs[key] = 0.0
        return func(*args, **kwargs)
