"""State of a model over a mesh, by the names of the model as written."""
