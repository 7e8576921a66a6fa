"""The frames of Hadoop RPC version 9 (RpcHeader.proto, org.apache.hadoop.ipc.Client and Server), without I/O.

A connection begins with a header, `hrpc`, the version, the service class and the way to authenticate. After it both
sides send *frames*: a length of 4 bytes, big-endian, then messages, each with its own length as a varint. A request is a
header, the method's header and the parameter; a reply is a header, and on success a body.

What comes from the other side may be anything. `Splitter` refuses a length that is beyond LIMIT before it holds the
bytes; `read_reply` refuses whatever is no reply. All refusals are Garbled, in words that follow the server's name. After one the
connection is of no use: nobody knows where the next frame begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import attrs
from google.protobuf.message import DecodeError, Message

from trainmaster.hadoop.errors import AuthenticationFailed, Garbled, RemoteError, of_remote
from trainmaster.hadoop.proto.rpc_pb2 import (
    RPC_PROTOCOL_BUFFER,
    IpcConnectionContextProto,
    RequestHeaderProto,
    RpcRequestHeaderProto,
    RpcResponseHeaderProto,
    RpcSaslProto,
    UserInformationProto,
)

M = TypeVar("M", bound=Message)

VERSION = 9
PROTOCOL_VERSION = 1  # of every protocol of YARN and HDFS
LIMIT = 64 << 20  # bytes of a frame; Hadoop's own servers take 128 MiB (ipc.maximum.data.length)
NO_SASL, SASL = 0x00, 0xDF

CONTEXT, PING, SASL_CALL = -3, -4, -33  # call ids that are no calls
LAST_CALL = 0x7FFFFFFF
SUCCESS, FATAL = RpcResponseHeaderProto.SUCCESS, RpcResponseHeaderProto.FATAL

_NO_CLIENT = b""


@attrs.frozen(slots=True)
class Reply:
    """What came back for a call, or for the connection where `call` is negative. `body` is for `read_message`."""

    call: int
    body: bytes
    error: RemoteError | AuthenticationFailed | None = None

    @property
    def fatal(self) -> bool:
        """Whether the server closes the connection after it."""
        return isinstance(self.error, AuthenticationFailed) or (self.error is not None and self.error.fatal)


# -- what we send --


def header(authentication: int) -> bytes:
    return b"hrpc" + bytes([VERSION, 0, authentication])


def request(call: int, client: bytes, *parts: bytes) -> bytes:
    """One frame; `parts` are messages with their lengths."""
    head = RpcRequestHeaderProto(
        rpcKind=RPC_PROTOCOL_BUFFER,
        rpcOp=RpcRequestHeaderProto.RPC_FINAL_PACKET,
        callId=call,
        clientId=client,
        retryCount=-1,
    )
    return frame(delimited(head), *parts)


def call(number: int, client: bytes, method: bytes, parameter: Message) -> bytes:
    return request(number, client, method, delimited(parameter))


def method(name: str, protocol: str) -> bytes:
    """The same for all calls of it."""
    return delimited(
        RequestHeaderProto(methodName=name, declaringClassProtocolName=protocol, clientProtocolVersion=PROTOCOL_VERSION)
    )


def context(protocol: str, user: str, client: bytes) -> bytes:
    """Whom the calls of this connection are for; a token's own user stands in the token."""
    told = IpcConnectionContextProto(protocol=protocol)
    if user:
        told.userInfo.CopyFrom(UserInformationProto(effectiveUser=user))
    return request(CONTEXT, client, delimited(told))


def ping(client: bytes) -> bytes:
    """Is not answered: it shows by TCP alone whether anybody is there."""
    return request(PING, client)


def sasl(message: RpcSaslProto) -> bytes:
    return request(SASL_CALL, _NO_CLIENT, delimited(message))


def frame(*parts: bytes) -> bytes:
    size = sum(map(len, parts))
    if size > LIMIT:
        raise Garbled(f"a request of {size >> 20} MiB is more than the {LIMIT >> 20} MiB that one may have")
    return b"".join((size.to_bytes(4, "big"), *parts))


def delimited(message: Message) -> bytes:
    data = message.SerializeToString()
    return _varint(len(data)) + data


def _varint(value: int) -> bytes:
    if value <= 0x7F:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# -- what we are sent --


class Splitter:
    """Bytes as they come, frames as they are whole. Holds no more than one frame and what came with its end."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The frames that are whole now, without their lengths."""
        held = self._held
        held += data
        start = 0
        try:
            while len(held) - start >= 4:
                size = int.from_bytes(held[start : start + 4], "big")
                if size > LIMIT:
                    raise Garbled(_refused(size, bytes(held[start : start + 16])))
                if len(held) - start < 4 + size:
                    break
                start += 4 + size
                yield bytes(memoryview(held)[start - size : start])
        finally:
            del held[:start]


def _refused(size: int, data: bytes) -> str:
    if data[:4] in (b"HTTP", b"<htm", b"<!DO"):
        return "answers as a web server does: this is the port of its pages, not of RPC"
    if size < 4 * LIMIT:
        return f"sends a frame of {size >> 20} MiB, more than the {LIMIT >> 20} MiB that one may have"
    return f"sends what is no Hadoop RPC: {data!r}"


def read_reply(data: bytes, place: str) -> Reply:
    """What a frame says. Raises Garbled."""
    view = memoryview(data)
    head_bytes, at = _delimited(view, 0)
    head = read_message(RpcResponseHeaderProto, head_bytes)
    number = head.callId - (1 << 32) if head.callId > LAST_CALL else head.callId
    if head.status != SUCCESS:
        name, told = text(head.exceptionClassName), text(head.errorMsg)
        return Reply(number, b"", of_remote(name, told, fatal=head.status == FATAL, place=place))
    if at == len(data):
        return Reply(number, b"")
    body, at = _delimited(view, at)
    if at != len(data):
        raise Garbled(f"sends a reply of {len(data)} bytes that ends after {at}")
    return Reply(number, bytes(body))


def read_message(kind: type[M], data: bytes | memoryview) -> M:
    """Raises Garbled."""
    try:
        message = kind.FromString(bytes(data))
    except DecodeError as wrong:
        raise Garbled(f"sends {len(data)} bytes that are no {kind.__name__}: {wrong}") from wrong
    if not message.IsInitialized():
        raise Garbled(f"sends {len(data)} bytes that are no {kind.__name__}: a required field is not there")
    return message


def text(value: object) -> str:
    """A string of a message, which is bytes where it is not UTF-8."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _delimited(data: memoryview, at: int) -> tuple[memoryview, int]:
    """The message that begins at `at` with its length, and where it ends."""
    size = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise Garbled(f"sends a message whose length is cut off after {at} bytes")
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    if size > len(data) - at:
        raise Garbled(f"sends a message of {size} bytes where {len(data) - at} are left")
    return data[at : at + size], at + size
