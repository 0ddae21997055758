"""The user's script: run under a plan, up to its `accelerate`, or again in a trial."""
