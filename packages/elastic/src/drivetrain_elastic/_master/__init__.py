"""The master of a job: a server around the decisions."""
