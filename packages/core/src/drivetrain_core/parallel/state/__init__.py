"""The state of a program over a mesh, by the names of the model as written."""
