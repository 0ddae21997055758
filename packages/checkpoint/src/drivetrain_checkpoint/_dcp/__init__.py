"""The seams of torch's distributed checkpoint (DCP), on top of this format."""
