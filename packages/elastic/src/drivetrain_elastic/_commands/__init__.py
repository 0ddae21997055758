"""The commands of `drivetrain elastic`: the options of each, and what carries it out."""
