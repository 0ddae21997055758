"""Storage of checkpoints: a POSIX folder, or anything that fsspec reaches."""
