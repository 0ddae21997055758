"""Replaces modules of a model by this package's ops, one instance at a time.

From the ground up: `_guess` (what a module may be), `_norms`, `_gated_mlp`,
`_loss_head` and `_kinds` (the table), `_check` (whether it is that), `_handle`,
`_replace`.
"""

__all__: list[str] = []
