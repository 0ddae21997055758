from drivetrain_search._version import __version__ as __version__
from drivetrain_search.report.record import TrialRecord as TrialRecord
from drivetrain_search.report.report import Report as Report
from drivetrain_search.service import TrialSearch as TrialSearch
