"""Where checkpoints are kept: a POSIX folder, or anything that fsspec reaches."""
