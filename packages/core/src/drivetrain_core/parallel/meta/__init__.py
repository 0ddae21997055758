"""Models that are built without their weights, of which each rank makes its part."""
