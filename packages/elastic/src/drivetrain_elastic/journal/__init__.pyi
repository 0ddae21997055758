from drivetrain_elastic.journal._lease import Lease as Lease
from drivetrain_elastic.journal._record import Journal as Journal
from drivetrain_elastic.journal._record import JournalError as JournalError
from drivetrain_elastic.journal._record import JournalFullError as JournalFullError
from drivetrain_elastic.journal._record import Record as Record
from drivetrain_elastic.journal._redis import RedisJournal as RedisJournal
from drivetrain_elastic.journal._redis_lease import RedisLease as RedisLease
from drivetrain_elastic.journal._sqlite import SqliteJournal as SqliteJournal
