"""Whatever clients send, the master serves on, and the next one can read its journal."""

import itertools
import math
import random

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor as Field

from drivetrain_elastic import ShardClient
from drivetrain_elastic._client._master_client import MasterClient
from drivetrain_elastic.protocol import messages as pb
from drivetrain_elastic.protocol._service import METHODS, credentials

# Few, so that messages speak of the same things.
TEXTS = ["", "a", "b", "a/0", "a/1", "\0", "ü€😀", "x" * 5000]
NUMBERS = [0, 1, 2, 3, 4, 7, 64, 2**31 - 1, 2**53, 2**63 - 1, -1, -(2**31)]
REALS = [0.0, 0.01, 1.0, -1.0, 1e300, math.inf, -math.inf, math.nan]


def value(dice, field):
    """Returns something that the field can hold."""
    if field.type == Field.TYPE_MESSAGE:
        return message(dice, field.message_type._concrete_class)
    if field.type == Field.TYPE_STRING:
        return dice.choice(TEXTS)
    if field.type == Field.TYPE_BYTES:
        return dice.randbytes(dice.choice([0, 1, 16, 3000]))
    if field.type in (Field.TYPE_DOUBLE, Field.TYPE_FLOAT):
        return dice.choice(REALS)
    if field.type == Field.TYPE_BOOL:
        return dice.random() < 0.5
    if field.type == Field.TYPE_ENUM:
        return dice.choice([*(v.number for v in field.enum_type.values), 77])
    narrow = (Field.TYPE_INT32, Field.TYPE_UINT32, Field.TYPE_SINT32)
    unsigned = (Field.TYPE_UINT32, Field.TYPE_UINT64)
    fits = [
        one
        for one in NUMBERS
        if not (field.type in narrow and abs(one) >= 2**31)
        and not (field.type in unsigned and one < 0)
    ]
    return dice.choice(fits)


def is_map(field):
    return field.type == Field.TYPE_MESSAGE and (
        field.message_type.GetOptions().map_entry
    )


def message(dice, kind):
    """Returns a message of a kind, with some of its fields."""
    made = kind()
    for field in kind.DESCRIPTOR.fields:
        if dice.random() < 0.3:
            continue
        if is_map(field):
            key, entry = field.message_type.fields
            found = getattr(made, field.name)
            for _ in range(dice.choice([0, 1, 2, 5])):
                found[value(dice, key)] = value(dice, entry)
        elif field.is_repeated:
            values = [value(dice, field) for _ in range(dice.choice([0, 1, 2, 5]))]
            getattr(made, field.name).extend(values)
        elif field.type == Field.TYPE_MESSAGE:
            getattr(made, field.name).CopyFrom(value(dice, field))
        else:
            setattr(made, field.name, value(dice, field))
    return made


def attack(address, token, dice, num_calls):
    """Makes calls of all kinds; returns with which codes they ended."""
    codes = set()
    methods = sorted(METHODS.values())
    with grpc.insecure_channel(address) as channel:
        for _ in range(num_calls):
            method = dice.choice(methods)
            call = getattr(channel, method.kind)(
                method.path,
                request_serializer=type(method.request()).SerializeToString,
                response_deserializer=method.reply.FromString,
            )
            sent = message(dice, method.request)
            if method.sends_many:
                num = dice.choice([1, 3, 10])
                sent = iter([message(dice, method.request) for _ in range(num)])
            try:
                found = call(sent, metadata=credentials(token), timeout=0.1)
                if method.gets_many:
                    list(itertools.islice(found, 5))
            except grpc.RpcError as error:
                codes.add(error.code())
    return codes


def check_whatever_is_sent(job, seed, num_calls):
    master = job(node_timeout_s=0.3)
    codes = attack(master.address, master.token, random.Random(seed), num_calls)
    assert grpc.StatusCode.UNAVAILABLE not in codes
    # An error of the master's own would be UNKNOWN.
    assert grpc.StatusCode.UNKNOWN not in codes
    assert not master.wait(0.0)
    master.stop()
    second = job()
    with MasterClient(second.address, second.token) as client:
        assert client.call("GetStatus", pb.StatusRequest()).incarnation == 2
    shards = {"address": second.address, "token": second.token}
    with ShardClient("new", 20, shard_size=4, shuffle="none", **shards) as worker:
        assert list(worker) == list(range(20))


@pytest.mark.parametrize("seed", range(2))
def test_no_message_takes_a_master_down(job, seed):
    check_whatever_is_sent(job, seed, 300)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(100, 106))
def test_no_message_of_very_many_takes_a_master_down(job, seed):
    check_whatever_is_sent(job, seed, 3000)
