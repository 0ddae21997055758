"""For tests: a Redis server to try."""

from drivetrain_comm.testing._redis_server import RedisServer, has_redis_server

__all__ = ["RedisServer", "has_redis_server"]
