"""What travels between the master of a job and everybody else; see `elastic.proto`.

The classes of the messages are made from `elastic.desc` when they are first used, so that
any version of protobuf will do.
"""
