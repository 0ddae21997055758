"""The user's model: its names, its repeated blocks, parameters on the meta device."""
