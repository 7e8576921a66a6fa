"""Read a block from a DataNode (DataTransferProtocol, version 28), for the one case that hdfs-native lacks: a block still being written.

A DataNode gives those bytes of such a block that its writer has had acknowledged. The request names block and range. The answer is a
status, then *packets*: a length, a header, sums (we ask for none: TCP has its own), and data. The first packet may begin before the range,
at a multiple of the size that sums are taken over; an empty packet is the last. The connection serves one request.

On a secure cluster, where `protection` is set (dfs.data.transfer.protection), SASL comes first: DIGEST-MD5 with the block's token. With
integrity or privacy every later byte goes in wrapped messages, each after its length.

Where all data is encrypted (dfs.encrypt.data.transfer), on a secure cluster or not, the NameNode gives a key that it shares with its
DataNodes. SASL then uses that key, always with privacy, and a client that names the key instead of a token says `<key> <block pool> <nonce
in base64>`. Hadoop's clients may agree on AES after that; we do not ask for it.
"""

from __future__ import annotations

import base64
import socket
import struct
from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from trainmaster.hadoop.errors import AuthenticationFailed, Garbled, HadoopError, RemoteError, Unreachable
from trainmaster.hadoop.proto.datatransfer_pb2 import (
    SUCCESS,
    BaseHeaderProto,
    BlockOpResponseProto,
    ClientOperationHeaderProto,
    ClientReadStatusProto,
    DataTransferEncryptorMessageProto,
    OpReadBlockProto,
    PacketHeaderProto,
)
from trainmaster.hadoop.proto.hdfs_pb2 import DataEncryptionKeyProto, DatanodeIDProto, LocatedBlockProto
from trainmaster.hadoop.security.credentials import Token
from trainmaster.hadoop.security.sasl import Digest

M = TypeVar("M", bound=Message)

VERSION = 28
READ_BLOCK = 81
CLIENT = "trainmaster"
LIMIT = 64 << 20  # bytes in one message or packet; Hadoop's own limit is 16 MiB
_SASL = 0xDEADBEEF
_CHUNK = 64 << 10


def read_block(
    block: LocatedBlockProto, offset: int, size: int, *, protection: tuple[str, ...] = (), key: DataEncryptionKeyProto | None = None,
    by_name: bool = False, timeout: float = 20.0,
) -> bytes:  # fmt: skip
    """Return `size` bytes of a block from `offset` in it on, from the first of its DataNodes that gives them. Raises HadoopError.

    `key`: the NameNode's key, where all data is encrypted.
    `by_name`: connect to the DataNodes' names rather than their addresses (dfs.client.use.datanode.hostname).
    """
    failures: list[HadoopError] = []
    login = _login(block, protection, key)
    for info in block.locs:
        try:
            return _read(info.id, block, offset, size, login, by_name, timeout)
        except HadoopError as error:
            failures.append(error)
    raise failures[0] if failures else Unreachable(f"no DataNode has block {block.b.blockId}")


def _login(
    block: LocatedBlockProto, protection: tuple[str, ...], key: DataEncryptionKeyProto | None
) -> Callable[[], Digest] | None:
    """Return a function that makes a login for a connection; None where no login is asked for."""
    if key is not None:
        name = f"{key.keyId} {key.blockPoolId} {base64.b64encode(key.nonce).decode()}"
        secret = Token(b"", key.encryptionKey, "")
        return lambda: Digest(secret, ("privacy",), protocol="hdfs", server="0", name=name)
    if protection:
        block_token = block.blockToken
        token = Token(block_token.identifier, block_token.password, block_token.kind, block_token.service)
        return lambda: Digest(token, protection, protocol="hdfs", server="0")
    return None


def _read(
    node: DatanodeIDProto, block: LocatedBlockProto, offset: int, size: int, login: Callable[[], Digest] | None, by_name: bool,
    timeout: float,
) -> bytes:  # fmt: skip
    host = node.hostName if by_name else node.ipAddr
    place = f"DataNode {host}:{node.xferPort}"
    try:
        with socket.create_connection((host, node.xferPort), timeout=timeout) as raw:
            raw.settimeout(timeout)
            stream = _Stream(raw, place)
            if login is not None:
                stream.protect(login())
            return _read_range(stream, block, offset, size)
    except OSError as error:
        raise Unreachable(f"{place} does not answer: {error.strerror or error}") from error


def _read_range(stream: _Stream, block: LocatedBlockProto, offset: int, size: int) -> bytes:
    header = ClientOperationHeaderProto(
        baseHeader=BaseHeaderProto(block=block.b, token=block.blockToken), clientName=CLIENT
    )
    request = OpReadBlockProto(header=header, offset=offset, len=size, sendChecksums=False)
    stream.send(struct.pack(">hb", VERSION, READ_BLOCK) + _delimited(request))
    answer = stream.message(BlockOpResponseProto)
    if answer.status != SUCCESS:
        raise RemoteError("java.io.IOException", f"{stream.place}: {answer.message or answer.status}")
    data = bytearray()
    while len(data) < size:
        header_, content = _packet(stream)
        if not content:
            break
        skipped = offset + len(data) - header_.offsetInBlock
        if not 0 <= skipped <= len(content):
            raise Garbled(f"{stream.place} sent a packet at {header_.offsetInBlock}, not at {offset + len(data)}")
        data += content[skipped:]
    if len(data) < size:
        raise Garbled(f"{stream.place} sent {len(data)} of {size} bytes of block {block.b.blockId}")
    stream.send(_delimited(ClientReadStatusProto(status=SUCCESS)))
    return bytes(data[:size])


def _packet(stream: _Stream) -> tuple[PacketHeaderProto, bytes]:
    whole, length = struct.unpack(">ih", stream.take(6))  # lengths: of data, sums and itself; of the header
    if not 4 <= whole <= LIMIT or not 0 < length < 1 << 12:
        raise Garbled(f"{stream.place} sent a packet of {whole} bytes with a header of {length}")
    header = _parse(PacketHeaderProto, stream.take(length), stream.place)
    rest = stream.take(whole - 4)
    if not 0 <= header.dataLen <= len(rest):
        raise Garbled(f"{stream.place} sent a packet of {whole} bytes that says it has {header.dataLen}")
    return header, rest[len(rest) - header.dataLen :]


class _Stream:
    """The bytes to and from a DataNode, in the clear or wrapped."""

    def __init__(self, raw: socket.socket, place: str) -> None:
        self.place = place
        self._raw = raw
        self._buffer = bytearray()
        self._digest: Digest | None = None

    def protect(self, digest: Digest) -> None:
        self.send(struct.pack(">I", _SASL) + _delimited(_sasl_message(b"")))
        self.send(_delimited(_sasl_message(digest.start(self._challenge()))))
        digest.step(self._challenge())
        if digest.wraps:
            self._digest = digest

    def _challenge(self) -> bytes:
        reply = self.message(DataTransferEncryptorMessageProto)
        if reply.status != DataTransferEncryptorMessageProto.SUCCESS:
            raise AuthenticationFailed(f"{self.place} refuses us: {reply.message}")
        return reply.payload

    def send(self, data: bytes) -> None:
        if self._digest is not None:
            data = self._digest.wrap(data)
            data = struct.pack(">I", len(data)) + data
        self._raw.sendall(data)

    def take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            if self._digest is None:
                self._buffer += self._receive(_CHUNK)
                continue
            (length,) = struct.unpack(">I", self._receive_exactly(4))
            if length > LIMIT:
                raise Garbled(f"{self.place} sent a message of {length} bytes")
            self._buffer += self._digest.unwrap(self._receive_exactly(length))
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def message(self, kind: type[M]) -> M:
        size = shift = 0
        while True:
            byte = self.take(1)[0]
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 28:
                raise Garbled(f"{self.place} sent a malformed length")
        if size > LIMIT:
            raise Garbled(f"{self.place} sent a message of {size} bytes")
        return _parse(kind, self.take(size), self.place)

    def _receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            data += self._receive(size - len(data))
        return bytes(data)

    def _receive(self, size: int) -> bytes:
        data = self._raw.recv(size)
        if not data:
            raise Unreachable(f"{self.place} closed the connection")
        return data


def _sasl_message(payload: bytes) -> DataTransferEncryptorMessageProto:
    return DataTransferEncryptorMessageProto(status=DataTransferEncryptorMessageProto.SUCCESS, payload=payload)


def _parse(kind: type[M], data: bytes, place: str) -> M:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Garbled(f"{place} sent bytes that are not a {kind.__name__}") from error


def _delimited(message: Message) -> bytes:
    data = message.SerializeToString()
    length, size = bytearray(), len(data)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes(length) + data
