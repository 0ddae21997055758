"""What runs on each node: it starts workers, watches them and talks to the master."""
