"""The compile selector: measures how a model runs fastest, and keeps to that.

From the ground up: `_referenced_modules` (a function's), `_workload` (one step),
`_state_snapshot` (the model's state), `_blocks`,
`_compiled` (one compilation), `_candidates`, `_probe`, `_verify`, `_race`, `_decide`,
`_ranks`, `_store`, `_table`, `_watch`, `_search`, `_select`; for plans `_install` and
`_first_batch`.
"""

__all__: list[str] = []
