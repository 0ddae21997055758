"""A save in the trainer: agreed on by all ranks, copied from the device to memory."""
