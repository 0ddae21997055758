"""What the commands of `drivetrain-memory` carry out."""
