"""Names of what a worker does with its time, in a step and outside of steps."""

COMPUTE = "compute"
"""What a step computes, where the script has no other name for it."""

APPLY = "apply"
"""The update of the parameters."""

OUTSIDE = "outside"
"""The script between two steps."""

SAVE = "save"
"""A checkpoint, for as long as no step is made."""

WAIT = "wait"
"""For other ranks."""

OWN = frozenset({COMPUTE, APPLY, OUTSIDE})
"""What a rank does by itself in each step."""

TORCHRUN_AGENT = "runs its ranks as an agent of torchrun"
"""Of an agent that is the only worker of its node here; its ranks are torchrun's affair."""
