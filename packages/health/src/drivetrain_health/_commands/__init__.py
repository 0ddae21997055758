"""The commands of `drivetrain health`: the options of each, and what carries it out."""
