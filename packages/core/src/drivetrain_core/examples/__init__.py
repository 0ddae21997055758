"""Programs that show Drivetrain on real input."""
