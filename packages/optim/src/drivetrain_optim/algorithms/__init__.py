"""AGD and LAMB: the optimizers, their options and the arithmetic of a step."""
