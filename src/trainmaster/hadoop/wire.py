"""The frames of Hadoop RPC version 9 (RpcHeader.proto, org.apache.hadoop.ipc.Client and Server), without I/O.

A connection begins with a header, `hrpc`, the version, the service class and the way to authenticate. After it both
sides send *frames*: a length of 4 bytes, big-endian, then messages, each with its own length as a varint. A request is a
header, the method's header and the parameter; a reply is a header, and on success a body.

The other side may send anything. `Splitter` refuses a length that is beyond LIMIT before it holds the bytes; `read_reply` refuses anything
that is not a reply. All refusals are Garbled, in words that follow the server's name. After a refusal the connection is useless, because
nobody knows where the next frame begins.
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

CONTEXT, PING, SASL_CALL = -3, -4, -33  # call ids that are not calls
LAST_CALL = 0x7FFFFFFF
SUCCESS, FATAL = RpcResponseHeaderProto.SUCCESS, RpcResponseHeaderProto.FATAL

_NO_CLIENT = b""


@attrs.frozen(slots=True)
class Reply:
    """The reply to a call, or to the connection where `call` is negative. `body` is for `read_message`."""

    call: int
    body: bytes
    error: RemoteError | AuthenticationFailed | None = None

    @property
    def fatal(self) -> bool:
        """Tell whether the server closes the connection after this reply."""
        return isinstance(self.error, AuthenticationFailed) or (self.error is not None and self.error.fatal)


# -- what we send --


def header(authentication: int) -> bytes:
    return b"hrpc" + bytes([VERSION, 0, authentication])


def request(call: int, client: bytes, *parts: bytes) -> bytes:
    """Return one frame; `parts` are messages with their lengths."""
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
    """Return the method's header, the same for all of its calls."""
    return delimited(
        RequestHeaderProto(methodName=name, declaringClassProtocolName=protocol, clientProtocolVersion=PROTOCOL_VERSION)
    )


def context(protocol: str, user: str, client: bytes) -> bytes:
    """Return the frame that says for which user the calls of this connection are; a token's own user is in the token."""
    message = IpcConnectionContextProto(protocol=protocol)
    if user:
        message.userInfo.CopyFrom(UserInformationProto(effectiveUser=user))
    return request(CONTEXT, client, delimited(message))


def ping(client: bytes) -> bytes:
    """Return a frame that no server answers: TCP alone shows whether the server is there."""
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
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


# -- what we are sent --


class Splitter:
    """Takes bytes as they come, and yields frames as they are whole. It keeps at most one frame and the bytes that came with its end."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the frames that are whole now, without their lengths."""
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= 4:
                size = int.from_bytes(buffer[start : start + 4], "big")
                if size > LIMIT:
                    raise Garbled(_refusal(size, bytes(buffer[start : start + 16])))
                if len(buffer) - start < 4 + size:
                    break
                start += 4 + size
                yield bytes(memoryview(buffer)[start - size : start])
        finally:
            del buffer[:start]


def _refusal(size: int, data: bytes) -> str:
    if data[:4] in (b"HTTP", b"<htm", b"<!DO"):
        return "answers as a web server does: this is the port of its pages, not of RPC"
    if size < 4 * LIMIT:
        return f"sends a frame of {size >> 20} MiB, more than the {LIMIT >> 20} MiB that one may have"
    return f"sends something that is not Hadoop RPC: {data!r}"


def read_reply(data: bytes, place: str) -> Reply:
    """Return the reply that a frame holds. Raises Garbled."""
    view = memoryview(data)
    head_bytes, at = _delimited(view, 0)
    head = read_message(RpcResponseHeaderProto, head_bytes)
    number = head.callId - (1 << 32) if head.callId > LAST_CALL else head.callId
    if head.status != SUCCESS:
        name, message = text(head.exceptionClassName), text(head.errorMsg)
        return Reply(number, b"", of_remote(name, message, fatal=head.status == FATAL, place=place))
    if at == len(data):
        return Reply(number, b"")
    body, at = _delimited(view, at)
    if at != len(data):
        raise Garbled(f"sends a reply of {len(data)} bytes that ends after {at}")
    return Reply(number, bytes(body))


def read_message(kind: type[M], data: bytes | memoryview) -> M:
    """Parse a message. Raises Garbled."""
    try:
        message = kind.FromString(bytes(data))
    except DecodeError as error:
        raise Garbled(f"sends {len(data)} bytes that are not a {kind.__name__}: {error}") from error
    if not message.IsInitialized():
        raise Garbled(f"sends {len(data)} bytes that are not a {kind.__name__}: a required field is not there")
    return message


def text(value: object) -> str:
    """Return a string of a message as text: it is bytes where it is not UTF-8."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _delimited(data: memoryview, at: int) -> tuple[memoryview, int]:
    """Return the message that begins at `at` with its length, and where it ends."""
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
