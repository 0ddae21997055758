"""A device is asked what it can do, not which one it is.

What names one kind of device is that kind's own file, and stands in a list here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

# What only CUDA has: its driver, its allocator, its clock.
CUDAS_OWN = {
    "core/src/drivetrain_core/accelerators/_cuda.py",
    "memory/src/drivetrain_memory/_enable.py",
    "memory/src/drivetrain_memory/_mem_pool.py",
    "memory/src/drivetrain_memory/_register.py",
    "memory/src/drivetrain_memory/_share.py",
    "memory/src/drivetrain_memory/_stats.py",
    "memory/src/drivetrain_memory/_torch_functions.py",
    "memory/src/drivetrain_memory/trace/_cuda_functions.py",
    "memory/src/drivetrain_memory/trace/_record.py",
    "memory/src/drivetrain_memory/trace/_simulated_cuda.py",
    "testing/src/drivetrain_testing/_gpu.py",
    "testing/src/drivetrain_testing/pytest.py",
}
KINDS = {"cuda", "hpu", "mps", "mtia", "musa", "npu", "sim", "xpu"}


def uses(tree: ast.AST) -> Iterator[str]:
    """Yields what takes a device for one kind: its module, or a comparison with its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if name.startswith("torch.cuda") or node.attr in {"is_cuda", "is_xpu"}:
                yield name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            if "torch.cuda" in ast.unparse(node):
                yield ast.unparse(node)
        elif isinstance(node, ast.Compare):
            texts = {
                part.value
                for side in (node.left, *node.comparators)
                for part in ast.walk(side)
                if isinstance(part, ast.Constant)
            }
            if texts & KINDS:
                yield ast.unparse(node)


def test_rule_finds_what_it_is_for():
    found = uses(
        ast.parse(
            "torch.cuda.synchronize()\nx.device.type == 'cuda'\n"
            "kind in ('cpu', 'xpu')\nx.device.type != 'cpu'\nx.is_cuda\n"
        )
    )
    assert sorted(set(found)) == [
        "kind in ('cpu', 'xpu')",
        "torch.cuda",
        "torch.cuda.synchronize",
        "x.device.type == 'cuda'",
        "x.is_cuda",
    ]


def test_no_source_asks_for_one_kind_of_device(root):
    found = {}
    for file in sorted(root.glob("packages/*/src/**/*.py")):
        name = str(file.relative_to(root / "packages"))
        if name not in CUDAS_OWN and (
            bad := sorted(set(uses(ast.parse(file.read_text()))))
        ):
            found[name] = bad
    assert found == {}


def test_list_of_cudas_own_files_is_short_and_true(root):
    assert len(CUDAS_OWN) <= 12
    for name in CUDAS_OWN:
        assert any(uses(ast.parse((root / "packages" / name).read_text()))), name
