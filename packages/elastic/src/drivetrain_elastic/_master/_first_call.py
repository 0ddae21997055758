"""First call of a connection: whose it is, before anything but its head has been read."""

from __future__ import annotations

import urllib.parse
from typing import NamedTuple

from hpack import Decoder, Encoder, HPACKError
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import Frame, GoAwayFrame, HeadersFrame, SettingsFrame

GREETING = SettingsFrame(0).serialize()
"""What a client waits for before it calls: settings, here of HTTP/2's own values."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES = 9
# All frames are read again when more has come: a client sends three or four.
_MOST_FRAME_BYTES, _MOST_BYTES, _MOST_FRAMES = 16 << 10, 48 << 10, 32
# Data, and what ends a stream, goes on with a head or is of servers alone.
_NEVER_FIRST = {0x0, 0x3, 0x5, 0x7, 0x9}


class FirstCall(NamedTuple):
    """What is known of a call before a message of it is read.

    Attributes:
        stream: Its number in the connection.
        metadata: By name.
        said: What the client has said, but for its answer to the greeting: another server
            that greets it by itself understands the connection from here.
    """

    stream: int
    metadata: dict[str, str]
    said: bytes


def first_call(said: bytes) -> FirstCall | None:
    """Returns the first call of an HTTP/2 connection, or None if its head has not come yet.

    Args:
        said: What has come from the client so far.

    Raises:
        ValueError: It is no HTTP/2, no call follows, or more than a call's head has come.

    Source: RFC 9113, sections 3.4, 4 and 6.5.3.
    """
    if not said.startswith(_PREFACE[: len(said)]):
        message = "it does not begin as HTTP/2 does"
        raise ValueError(message)
    at, answer, num_frames = len(_PREFACE), slice(0, 0), 0
    while at + _HEAD_BYTES <= len(said) and num_frames < _MOST_FRAMES:
        body, num_frames = at + _HEAD_BYTES, num_frames + 1
        try:
            frame, length = Frame.parse_frame_header(memoryview(said[at:body]))
            at = body + length
            if length > _MOST_FRAME_BYTES or frame.type in _NEVER_FIRST:
                message = (
                    f"a frame of type {frame.type}, {length} bytes, comes before a call"
                )
                raise ValueError(message)
            if at > len(said):
                break
            frame.parse_body(memoryview(said[body:at]))
            if isinstance(frame, SettingsFrame) and "ACK" in frame.flags:
                answer = slice(body - _HEAD_BYTES, at)
            if isinstance(frame, HeadersFrame):
                return _read(frame, said[: answer.start] + said[answer.stop :])
        except (HyperframeError, HPACKError) as error:
            message = f"it is no HTTP/2: {error}"
            raise ValueError(message) from error
    if len(said) > _MOST_BYTES or num_frames == _MOST_FRAMES:
        message = f"{len(said)} bytes have come without a call"
        raise ValueError(message)
    return None


def _read(frame: HeadersFrame, said: bytes) -> FirstCall:
    if "END_HEADERS" not in frame.flags:
        message = "the head of a call is in several frames"
        raise ValueError(message)
    decoder = Decoder(max_header_list_size=_MOST_FRAME_BYTES)
    found = decoder.decode(frame.data, raw=True)
    metadata = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in found
    }
    return FirstCall(frame.stream_id, metadata, said)


def refusal_of(stream: int, code: int, message: str) -> bytes:
    """Returns what refuses a call, and tells the client to make no other one.

    Args:
        stream: Of the call.
        code: Of the status, as gRPC numbers them.
        message: For people.
    """
    fields = [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", str(code)),
        ("grpc-message", urllib.parse.quote(message, safe=" ,;:/'()=")),
    ]
    head = HeadersFrame(
        stream,
        Encoder().encode(fields, huffman=False),
        flags=["END_HEADERS", "END_STREAM"],
    )
    return head.serialize() + GoAwayFrame(last_stream_id=stream).serialize()
