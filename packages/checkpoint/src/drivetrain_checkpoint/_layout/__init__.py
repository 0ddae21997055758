"""Layout of a checkpoint: manifests, a rank's file, and blocks of tensors."""
