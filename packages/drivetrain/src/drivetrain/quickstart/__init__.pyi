from drivetrain.quickstart._command import main as main
from drivetrain.quickstart._command import populate_parser as populate_parser
from drivetrain.quickstart._job import Job as Job
from drivetrain.quickstart._run import Run as Run
