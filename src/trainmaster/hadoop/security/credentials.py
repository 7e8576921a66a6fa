"""Hadoop's tokens, and the file of them that a container is given.

A token says who its bearer is without Kerberos: an identifier that its issuer can read, and a password that proves it. Credentials are
tokens under aliases, and secret keys under names. They travel as bytes: in `ContainerLaunchContext.tokens`, and in the file that
HADOOP_TOKEN_FILE_LOCATION names in a container. The bytes begin with `HDTS` and a version: 0 is Writable, which NodeManagers hand out,
1 is one CredentialsProto with its length before it. We read both, and write 0, which every Hadoop reads.

An alias is the writer's choice and often empty, and so is the service of a token that a server has just given. So a token is found by its
kind. No `repr` shows passwords and secrets.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import attrs

from trainmaster.hadoop.errors import Garbled

AM_RM_TOKEN = "YARN_AM_RM_TOKEN"
NM_TOKEN = "NMToken"
RM_DELEGATION_TOKEN = "RM_DELEGATION_TOKEN"
HDFS_DELEGATION_TOKEN = "HDFS_DELEGATION_TOKEN"

MAGIC = b"HDTS"
WRITABLE, PROTOBUF = 0, 1


@attrs.frozen
class Token:
    """A token that a server gave, to be shown to it again. `service` is the address that it is for: `ip:port`, or `ha-hdfs:name` for a name
    service.
    """

    identifier: bytes = attrs.field(repr=False)
    password: bytes = attrs.field(repr=False)
    kind: str
    service: str = ""


@attrs.frozen
class Credentials:
    """Tokens by alias, secret keys by name."""

    tokens: Mapping[str, Token] = attrs.field(factory=dict)
    secrets: Mapping[str, bytes] = attrs.field(factory=dict, repr=lambda secrets: repr(sorted(secrets)))

    @classmethod
    def read(cls, data: bytes) -> Credentials:
        """Read credentials from the bytes of either version. Raises Garbled for any other bytes."""
        if data[: len(MAGIC)] != MAGIC or len(data) <= len(MAGIC):
            raise Garbled(
                f"credentials do not begin with {MAGIC.decode()} and a version: {len(data)} bytes, {data[:8]!r}..."
            )
        version, reader = data[len(MAGIC)], Reader(data, len(MAGIC) + 1)
        if version not in _VERSIONS:
            raise Garbled(f"credentials are of version {version}; known are {', '.join(map(str, _VERSIONS))}")
        return _VERSIONS[version](reader)

    def write(self) -> bytes:
        parts = [MAGIC, bytes([WRITABLE]), vint(len(self.tokens))]
        for alias, token in self.tokens.items():
            parts += [
                _text(alias),
                _block(token.identifier),
                _block(token.password),
                _text(token.kind),
                _text(token.service),
            ]
        parts.append(vint(len(self.secrets)))
        for name, secret in self.secrets.items():
            parts += [_text(name), _block(secret)]
        return b"".join(parts)

    def of_kind(self, kind: str) -> Token | None:
        """Return the first token of that kind."""
        return next((token for token in self.tokens.values() if token.kind == kind), None)

    def without_kind(self, kind: str) -> Credentials:
        """Return the credentials without tokens of that kind: an AMRM token, for one, is its master's alone."""
        return attrs.evolve(self, tokens={alias: token for alias, token in self.tokens.items() if token.kind != kind})

    def merged(self, other: Credentials) -> Credentials:
        """Return both together; `other` wins where an alias or a name is in both."""
        return Credentials({**self.tokens, **other.tokens}, {**self.secrets, **other.secrets})


class Reader:
    """Reads Writable values one after the other. Raises Garbled where the bytes end too early or a length makes no sense."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self._position = position

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def take(self, length: int) -> bytes:
        if not 0 <= length <= self.left:
            raise Garbled(f"credentials end too early: {length} bytes wanted at {self._position}, {self.left} there")
        start, self._position = self._position, self._position + length
        return self._data[start : self._position]

    def vint(self) -> int:
        """Read Hadoop's own variable-length integer (WritableUtils.readVLong): one byte is the value, or says the sign and the number of
        bytes that follow.
        """
        (first,) = struct.unpack("b", self.take(1))
        if first >= -112:
            return int(first)
        negative = first < -120
        value = int.from_bytes(self.take(-120 - first if negative else -112 - first), "big")
        return ~value if negative else value

    def varint(self) -> int:
        """Read Protobuf's variable-length integer."""
        value = 0
        for shift in range(0, 64, 7):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise Garbled(f"credentials hold a length of more than 64 bits at {self._position}")

    def block(self) -> bytes:
        return self.take(self.vint())

    def text(self) -> str:
        at = self._position
        try:
            return self.block().decode()
        except UnicodeDecodeError as error:
            raise Garbled(f"credentials hold a text at {at} that is not UTF-8: {error.reason}") from error

    def count(self) -> int:
        """Read the number of entries that follow, each of which takes a byte at least."""
        count = self.vint()
        if not 0 <= count <= self.left:
            raise Garbled(f"credentials count {count} entries in {self.left} bytes")
        return count


def vint(value: int) -> bytes:
    """Return an integer in the form that `Reader.vint` reads."""
    if -112 <= value <= 127:
        return struct.pack("b", value)
    first, value = (-120, ~value) if value < 0 else (-112, value)
    data = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return struct.pack("b", first - len(data)) + data


def _block(data: bytes) -> bytes:
    return vint(len(data)) + data


def _text(text: str) -> bytes:
    return _block(text.encode())


def _read_writable(reader: Reader) -> Credentials:
    tokens = {}
    for _ in range(reader.count()):
        alias = reader.text()
        identifier, password, kind, service = reader.block(), reader.block(), reader.text(), reader.text()
        tokens[alias] = Token(identifier, password, kind, service)
    return Credentials(tokens, {reader.text(): reader.block() for _ in range(reader.count())})


def _read_protobuf(reader: Reader) -> Credentials:
    # Imported only here: agents read version 0 at their start, and must be quick.
    from google.protobuf.message import DecodeError

    from trainmaster.hadoop.proto.security_pb2 import CredentialsProto

    data = reader.take(reader.varint())
    try:
        message = CredentialsProto.FromString(data)
    except DecodeError as error:
        raise Garbled(f"credentials of version 1 cannot be read: {error}") from error
    tokens = {
        entry.alias: Token(entry.token.identifier, entry.token.password, entry.token.kind, entry.token.service)
        for entry in message.tokens
    }
    return Credentials(tokens, {entry.alias: entry.secret for entry in message.secrets})


_VERSIONS = {WRITABLE: _read_writable, PROTOBUF: _read_protobuf}
