"""Connections between nodes, and the replicas that they hold for each other."""
