"""All-reduce algorithms, one a file: what each rank does, as pure functions."""
