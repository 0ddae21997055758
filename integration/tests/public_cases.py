"""Public programs, by the checkout that they are read from: what their user supplies.

Nothing of a program is here: a row says which class is imported, how it is made small,
data of the right shape, and the loss and optimizer that the program has. Checkouts lie
in the folder that `public_programs.py --from` names, as `owner+name`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

FOLDER = "PUBLIC_PROGRAMS"
"""The environment variable that says where the checkouts lie."""

PROGRAMS: dict[str, Any] = {}
SAMPLES, BATCH, VOCABULARY, LENGTH = 32, 8, 17, 8


def program(name: str) -> Any:
    def put(make: Any) -> Any:
        PROGRAMS[name] = make
        return make

    return put


def checkout(path: str) -> Path:
    return Path(os.environ[FOLDER], path)


@functools.cache
def script(path: str, /, **given: Any) -> types.ModuleType:
    """Returns the imports, functions and classes of a script, without running the rest.

    Args:
        path: Where the script lies, below the folder of checkouts.
        **given: What its functions and classes look up among its globals.
    """
    file = checkout(path)
    name = "public_" + "_".join(file.with_suffix("").parts[-2:]).replace("-", "_")
    module = types.ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module
    vars(module).update(given)
    kinds = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef)
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, kinds):
            code = compile(ast.Module([node], []), str(file), "exec")
            try:
                exec(code, vars(module))  # noqa: S102
            except ImportError:
                continue  # for what a script does besides: data sets, pictures, logs
    return module


def package(folder: str, name: str) -> Any:
    """Returns a module that is imported from a folder of a checkout."""
    place = str(checkout(folder))
    if place not in sys.path:
        sys.path.insert(0, place)
    return importlib.import_module(name)


class Columns(Dataset[Any]):
    """Samples, whose last part is their number."""

    def __init__(self, *columns: torch.Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: int) -> Any:
        return (*(column[index] for column in self.columns), torch.tensor(index))


def loader(*columns: torch.Tensor, batch_size: int = BATCH) -> DataLoader[Any]:
    return DataLoader(Columns(*columns), batch_size=batch_size)


def noise(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.randn(SAMPLES, *shape, generator=torch.Generator().manual_seed(seed))


def labels(classes: int, *shape: int, seed: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(classes, (SAMPLES, *shape), generator=generator)


def images(size: int, channels: int = 3, classes: int = 10) -> DataLoader[Any]:
    return loader(noise(channels, size, size), labels(classes))


def text(length: int = LENGTH) -> DataLoader[Any]:
    return loader(labels(VOCABULARY, length), labels(VOCABULARY, length, seed=7))


def quiet(model: nn.Module) -> nn.Module:
    """Returns the model without dropout, which draws otherwise on each rank."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model


def using(optimizer: Any, **options: Any) -> Any:
    return lambda parameters: optimizer(parameters, **options)


def adam(lr: float = 1e-3, **options: Any) -> Any:
    return using(torch.optim.Adam, lr=lr, **options)


def classified(output: Any, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(output, batch[1])


def likelihood(output: Any, batch: Any) -> torch.Tensor:
    return functional.nll_loss(output, batch[1])


def told(output: Any, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), batch[1].flatten())


def second(model: Any, batch: Any) -> torch.Tensor:
    """Calls a model that returns its logits and its loss."""
    return model(batch[0], batch[1])[1]


def content(batch: Any) -> list[int]:
    """Tells batches apart that are no samples side by side, by what they hold."""
    return [round(1e3 * float(batch[0].double().square().sum()))]


def time_first() -> list[Any]:
    """Returns batches whose first dimension is time, as of a text cut into columns."""
    tokens = labels(VOCABULARY, LENGTH + 1, BATCH)[:4]
    return [(part[:-1], part[1:].reshape(-1)) for part in tokens]


EXAMPLES = "pytorch+examples"
TUTORIALS = "yunjey+pytorch-tutorial/tutorials/02-intermediate"
