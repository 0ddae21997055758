"""The commands of `drivetrain comm`, one a file."""
