"""For tests: a store that counts what is asked of it, and a Redis server to try."""

from drivetrain_comm.testing._counting_store import CountingStore, Operation
from drivetrain_comm.testing._redis_server import RedisServer, has_redis_server

__all__ = ["CountingStore", "Operation", "RedisServer", "has_redis_server"]
