"""The samples of a training: their order, who reads which, and how far all have read."""
