"""Where ranks meet: torch's `Store` on servers that outlive them."""

from drivetrain_comm.stores._redis import RedisStore, StoreTimeoutError
from drivetrain_comm.stores._rendezvous import join, register_redis

__all__ = ["RedisStore", "StoreTimeoutError", "join", "register_redis"]
