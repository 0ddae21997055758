"""The rig: nodes with shaped links on one machine, and unchanged training on them."""
