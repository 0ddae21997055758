"""How fast the CPU multiplies matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from drivetrain_health.checks._task import CheckFailedError, Found, repeat

if TYPE_CHECKING:
    from drivetrain_health.checks._task import Task

_SIZE = 512


def measure(task: Task) -> Found:
    """Multiplies float32 matrices for a time; returns `compute_gflops`.

    Raises:
        CheckFailedError: A product is wrong.
    """
    # Whole numbers that stay exact in float32, so that the product is known.
    x = torch.arange(_SIZE**2, dtype=torch.float32).remainder_(7).view(_SIZE, _SIZE)
    product = x @ torch.eye(_SIZE)
    num_products, took_s = repeat(lambda: torch.mm(x, x, out=product), task.measure_s)
    wanted = (x[0].double() @ x.double()).float()
    if num_products and not torch.equal(product[0], wanted):
        num = int((product[0] != wanted).sum())
        message = f"{num} of {_SIZE} values in a row of a product are wrong"
        raise CheckFailedError(message)
    flops = 2 * _SIZE**3 * num_products
    return Found({"compute_gflops": flops / took_s / 1e9})
