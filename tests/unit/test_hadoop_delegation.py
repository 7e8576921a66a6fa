"""What a delegation token says of itself, and for which server it is: of bytes that a real NameNode and ResourceManager gave."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import attrs
import pytest

from trainmaster.hadoop import conf
from trainmaster.hadoop.errors import ConfError, Garbled, Unreachable
from trainmaster.hadoop.security import delegation
from trainmaster.hadoop.security.auth import Kerberos
from trainmaster.hadoop.security.credentials import HDFS_DELEGATION_TOKEN, RM_DELEGATION_TOKEN, Credentials, Token
from trainmaster.hadoop.security.delegation import Identifier

OF_HDFS = Token(
    b"\x00\x16alice@TRAINMASTER.TEST\x04yarn\x00\x8a\x01\xa2\x01oo\x1a\x8a\x01\xa2%{\xf3\x1a\x01\x02",
    b"secret", HDFS_DELEGATION_TOKEN, "127.0.0.1:8020",
)  # fmt: skip
OF_YARN = Token(
    b"\n\x16alice@TRAINMASTER.TEST\x12\x04yarn \xca\xdd\xbd\x8b\xa04(\xca\xe5\xef\xab\xa240\x018\x02",
    b"secret", RM_DELEGATION_TOKEN, "127.0.0.1:8032",
)  # fmt: skip


def configured(folder: Path, **properties: str) -> conf.Configuration:
    lines = [f"<property><name>{name}</name><value>{value}</value></property>" for name, value in properties.items()]
    for file in conf.FILES:
        (folder / file).write_text(f"<configuration>{''.join(lines)}</configuration>")
    return conf.load(folder)


def test_a_token_tells_owner_renewer_and_times() -> None:
    week = 7 * 86400
    told = delegation.identifier(OF_HDFS)
    assert told == Identifier("alice@TRAINMASTER.TEST", "yarn", "", 1795320409.882, 1795320409.882 + week, 1, 2)
    told = delegation.identifier(OF_YARN)
    assert told == Identifier("alice@TRAINMASTER.TEST", "yarn", "", 1795320409.802, 1795320409.802 + week, 1, 2)


def test_the_first_end_of_several() -> None:
    both = Credentials({"a": OF_HDFS, "b": OF_YARN, "c": Token(b"", b"", "NMToken")})
    assert delegation.earliest_end(both) == (delegation.identifier(OF_YARN).ends, OF_YARN)
    assert delegation.earliest_end(Credentials()) is None


@pytest.mark.parametrize("token", [OF_HDFS, OF_YARN], ids=["hdfs", "yarn"])
def test_damaged_identifiers_are_garbled_or_read(token: Token) -> None:
    data = token.identifier
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]):
            with contextlib.suppress(Garbled):
                delegation.identifier(attrs.evolve(token, identifier=damaged))
    with pytest.raises(Garbled, match="of version 7; known is 0"):
        delegation.identifier(Token(b"\7", b"", HDFS_DELEGATION_TOKEN))
    with pytest.raises(Garbled, match="a token of kind NMToken does not say when it ends"):
        delegation.identifier(Token(b"", b"", "NMToken"))


def test_the_renewer_is_the_resource_manager(tmp_path: Path) -> None:
    one = {"yarn.resourcemanager.hostname": "RM1", "yarn.resourcemanager.principal": "yarn/_HOST@REALM"}
    assert delegation.renewer(configured(tmp_path, **one)) == "yarn/rm1@REALM"
    with pytest.raises(ConfError, match="is not set: a secure cluster's tokens are renewed by its ResourceManager"):
        delegation.renewer(configured(tmp_path))
    with pytest.raises(ConfError):
        asyncio.run(delegation.fetch(configured(tmp_path), Kerberos()))


def test_tokens_of_a_fetch_that_fails_are_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one of several issuers gives none. Real issuers: conformance/test_yarn_secure.py."""
    cancelled: list[Token] = []

    async def of_yarn(*_: object) -> dict[str, Token]:
        return {"rm": OF_YARN, "rm again": OF_YARN}

    async def of_hdfs(*_: object) -> dict[str, Token]:
        raise Unreachable("the NameNode refuses the connection")

    async def cancel(conf: object, auth: object, token: Token) -> None:
        cancelled.append(token)
        raise Unreachable("so does the ResourceManager by now")

    for name, function in (("_of_yarn", of_yarn), ("_of_hdfs", of_hdfs), ("cancel", cancel)):
        monkeypatch.setattr(delegation, name, function)
    one = {"yarn.resourcemanager.hostname": "RM1", "yarn.resourcemanager.principal": "yarn/_HOST@REALM"}
    with pytest.raises(Unreachable, match="the NameNode refuses"):
        asyncio.run(delegation.fetch(configured(tmp_path, **one), Kerberos()))
    assert cancelled == [OF_YARN]


def test_the_token_of_a_file_system_is_found_by_its_service(tmp_path: Path) -> None:
    here = configured(
        tmp_path,
        **{
            "fs.defaultFS": "hdfs://127.0.0.1:8020",
            "dfs.nameservices": "blue",
            "dfs.ha.namenodes.blue": "a,b",
            "dfs.namenode.rpc-address.blue.a": "127.0.0.1:1",
            "dfs.namenode.rpc-address.blue.b": "127.0.0.1:2",
        },
    )
    blue = attrs.evolve(OF_HDFS, service="ha-hdfs:blue")
    held = Credentials({"x": OF_YARN, "y": blue, "z": OF_HDFS})
    assert delegation.token_for(held, here) == OF_HDFS
    assert delegation.token_for(held, here, "hdfs://localhost:8020/data") == OF_HDFS
    assert delegation.token_for(held, here, "hdfs://blue/data") == blue
    assert delegation.token_for(held, here, "hdfs://127.0.0.1:9") is None
