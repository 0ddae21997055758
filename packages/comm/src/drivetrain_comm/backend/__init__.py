"""The process group backend: the native engine, and all-reduces of a group on it."""
