"""Files of tokens: both formats, and nothing but a named error for what is neither."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from hadoop_oracle import says
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.hadoop.errors import Garbled
from trainmaster.hadoop.proto.security_pb2 import CredentialsProto
from trainmaster.hadoop.security.credentials import (
    AM_RM_TOKEN,
    HDFS_DELEGATION_TOKEN,
    Credentials,
    Reader,
    Token,
    vint,
)

TOKENS = st.builds(Token, st.binary(max_size=300), st.binary(max_size=30), st.text(max_size=20), st.text(max_size=20))
ANY = st.builds(
    Credentials,
    st.dictionaries(st.text(max_size=20), TOKENS, max_size=4),
    st.dictionaries(st.text(max_size=20), st.binary(max_size=300), max_size=4),
)
TWO = Credentials(
    {
        "": Token(b"\x01id", b"pw", AM_RM_TOKEN),
        "nn": Token(b"\x02id" * 20, b"pw2", HDFS_DELEGATION_TOKEN, "1.2.3.4:8020"),
    },
    {"tm.key": b"\x00secret"},
)


@given(ANY)
def test_what_was_written_is_read(credentials: Credentials) -> None:
    assert Credentials.read(credentials.write()) == credentials


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_vint_is_read_as_written(value: int) -> None:
    reader = Reader(vint(value))
    assert (reader.vint(), reader.left) == (value, 0)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "00"),
        (127, "7f"),
        (-112, "90"),
        (128, "8f80"),
        (-113, "8770"),
        (255, "8fff"),
        (256, "8e0100"),
        (-1, "ff"),
        (-129, "8780"),
    ],
)
def test_a_vint_is_written_as_hadoop_writes_it(value: int, written: str) -> None:
    assert vint(value).hex() == written


def test_the_writable_format_byte_by_byte() -> None:
    token = Token(b"I", b"P", "K", "S")
    assert Credentials({"a": token}, {"s": b"x" * 200}).write() == (
        b"HDTS\x00\x01\x01a\x01I\x01P\x01K\x01S\x01\x01s\x8f\xc8" + b"x" * 200
    )


def test_the_protobuf_format_is_read() -> None:
    written = CredentialsProto()
    for alias, token in TWO.tokens.items():
        entry = written.tokens.add(alias=alias)
        entry.token.identifier, entry.token.password = token.identifier, token.password
        entry.token.kind, entry.token.service = token.kind, token.service
    written.secrets.add(alias="tm.key", secret=b"\x00secret")
    data = written.SerializeToString()
    assert len(data) > 0x7F, "the length takes two bytes"
    assert Credentials.read(b"HDTS\x01" + bytes([len(data) & 0x7F | 0x80, len(data) >> 7]) + data) == TWO


def test_a_token_is_found_by_its_kind() -> None:
    assert TWO.of_kind(AM_RM_TOKEN) == TWO.tokens[""]
    assert TWO.of_kind("none") is None
    assert list(TWO.without_kind(AM_RM_TOKEN).tokens) == ["nn"]


def test_two_are_merged_and_the_second_wins() -> None:
    other = Credentials({"nn": Token(b"", b"", "new")}, {"more": b""})
    merged = TWO.merged(other)
    assert merged.tokens["nn"].kind == "new"
    assert sorted(merged.secrets) == ["more", "tm.key"]


def test_no_secret_is_shown() -> None:
    shown = repr(TWO)
    assert "tm.key" in shown
    assert "secret'" not in shown
    assert "pw" not in shown


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "do not begin with HDTS and a version: 0 bytes"),
        (b"HDTS", "do not begin with HDTS and a version"),
        (b"PK\x03\x04 a zip archive", "do not begin with HDTS"),
        (b"HDTS\x02", "are of version 2; known are 0, 1"),
        (b"HDTS\x00", "end too early: 1 bytes wanted at 5, 0 there"),
        (b"HDTS\x00\x7f\x00", "count 127 entries in 1 bytes"),
        (b"HDTS\x00\x01\x02\xff\xff" + bytes(9), "a text at 6 that is not UTF-8"),
        (b"HDTS\x01" + b"\xff" * 11, "a length of more than 64 bits"),
        (b"HDTS\x01\x02\xff\xff", "of version 1 cannot be read"),
    ],
)
def test_what_is_no_file_of_tokens_is_reported(data: bytes, message: str) -> None:
    with pytest.raises(Garbled, match=message):
        Credentials.read(data)


@pytest.mark.parametrize("seed", range(10))
def test_mutated_bytes_are_read_or_refused_by_name(seed: int) -> None:
    chance = random.Random(seed)
    protobuf = b"HDTS\x01" + bytes([5]) + CredentialsProto(secrets=[{"alias": "a"}]).SerializeToString()
    for original in (TWO.write(), protobuf):
        for _ in range(1000):
            data = bytearray(original)
            for _ in range(chance.randint(1, 4)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            with contextlib.suppress(Garbled):
                Credentials.read(bytes(data[: chance.randint(0, len(data))]))


def test_hadoop_itself_reads_and_writes_the_same(tmp_path: Path) -> None:
    credentials = Credentials(
        {
            "": Token(b"\x01" * 127, b"\x80" * 128, AM_RM_TOKEN),
            "ünï": Token(b"i" * 300, b"", HDFS_DELEGATION_TOKEN, "ha-hdfs:ns"),
        },
        {"tm.key": bytes(range(256)), "none": b""},
    )
    given, writable, protobuf = (tmp_path / name for name in ("given", "writable", "protobuf"))
    given.write_bytes(credentials.write())
    says("credentials", given, writable, protobuf)
    assert (writable.read_bytes()[4], protobuf.read_bytes()[4]) == (0, 1)
    assert Credentials.read(writable.read_bytes()) == Credentials.read(protobuf.read_bytes()) == credentials
