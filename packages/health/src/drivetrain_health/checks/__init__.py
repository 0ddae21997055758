"""Whether a node is fit to train: measured alone, together with others, and bit by bit.

`check_node` measures the node that it runs on. `check_nodes` is called on all nodes at once:
they meet at a store, are checked in small groups, and all come to the same verdict, which
names who is faulty or slow. Each measurement is a process of its own, which is killed at its
time limit; what hangs costs that measurement, and is a finding.

Importing this package does not import torch.
"""

from drivetrain_core.lazy import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
