"""Names of what a worker does with its time, in a step and outside of steps."""

#: What a step computes, where the script has no other name for it.
COMPUTE = "compute"

#: The update of the parameters.
APPLY = "apply"

#: The script between two steps.
OUTSIDE = "outside"

#: A checkpoint, for as long as no step is made.
SAVE = "save"

#: For other ranks.
WAIT = "wait"

#: What a rank does by itself in each step.
OWN = frozenset({COMPUTE, APPLY, OUTSIDE})

#: Of an agent that is the only worker of its node here; its ranks are torchrun's affair.
TORCHRUN_AGENT = "runs its ranks as an agent of torchrun"
