"""A job's delegation tokens: which of two sets is taken, where they are kept, when newer ones are due."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from pathlib import Path

import pytest

from trainmaster.core.errors import BadInput
from trainmaster.engines.yarn.settings import Keytab, settings
from trainmaster.engines.yarn.tokens import AgentTokens, MasterTokens, Tokens, keytab_login
from trainmaster.hadoop.errors import Unreachable
from trainmaster.hadoop.security.credentials import (
    AM_RM_TOKEN,
    HDFS_DELEGATION_TOKEN,
    RM_DELEGATION_TOKEN,
    Credentials,
    Token,
)


def made(name: str, until: float, owner: str = "alice", yarn: bool = True) -> Tokens:
    tokens = {"fs": Token(f"{name} of hdfs".encode(), b"p", HDFS_DELEGATION_TOKEN, "fs")}
    if yarn:
        tokens["rm"] = Token(f"{name} of yarn".encode(), b"p", RM_DELEGATION_TOKEN, "rm")
    return Tokens(Credentials(tokens), owner, until - 100, until)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", "as YARN gives it")


def read(path: str) -> dict[str, bytes]:
    return {alias: token.identifier for alias, token in Credentials.read(Path(path).read_bytes()).tokens.items()}


def test_an_agent_keeps_what_is_good_for_longer_in_its_own_file_and_in_that_of_programs(tmp_path: Path) -> None:
    agent = AgentTokens(made("first", 1000.0, yarn=False), str(tmp_path), programs=True)
    assert os.environ["HADOOP_TOKEN_FILE_LOCATION"] == agent.path
    assert agent.unshared() is None, "its master has those"
    for name in ("tokens", "hdfs.tokens"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    agent.receive(made("second", 2000.0).to_json())
    assert read(agent.path) == {"fs": b"second of hdfs", "rm": b"second of yarn"}
    assert read(agent.of_programs) == {"fs": b"second of hdfs"}
    told = agent.unshared()
    assert told is not None
    assert Tokens.from_json(told).until == 2000.0
    for other in (made("earlier", 1500.0), made("bob's", 3000.0, owner="bob")):
        agent.receive(other.to_json())
    agent.receive({"type": "tokens", "tokens": "???"})
    assert read(agent.of_programs) == {"fs": b"second of hdfs"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hdfs.tokens", "tokens"]


def test_what_cannot_be_written_is_taken_when_it_comes_again(tmp_path: Path) -> None:
    folder = tmp_path / "ours"
    folder.mkdir()
    agent = AgentTokens(made("first", 1000.0), str(folder))
    folder.rename(tmp_path / "away")
    agent.receive(made("second", 2000.0).to_json())
    assert agent.unshared() is None, "it has the first ones still"
    (tmp_path / "away").rename(folder)
    assert read(agent.path)["fs"] == b"first of hdfs"
    agent.receive(made("second", 2000.0).to_json())
    assert read(agent.path)["fs"] == b"second of hdfs"


def test_a_master_is_brought_newer_ones_and_keeps_yarns_where_an_agent_hands_back(tmp_path: Path) -> None:
    master = MasterTokens(made("first", 1000.0), str(tmp_path))
    heard: list[float] = []
    master.listeners.append(lambda: heard.append(master.tokens.until))
    assert master.accept(made("second", 2000.0, yarn=False).to_json())["until"] == 2000.0
    assert read(master.path) == {"fs": b"second of hdfs", "rm": b"first of yarn"}
    assert master.accept(made("earlier", 1500.0).to_json())["until"] == 2000.0
    assert heard == [2000.0]
    with pytest.raises(ValueError, match="the tokens are bob's, and the job is alice's"):
        master.accept(made("bob's", 3000.0, owner="bob").to_json())
    with pytest.raises(ValueError, match="these are not tokens"):
        master.accept({})
    assert master.status() == {"owner": "alice", "since": 1900.0, "until": 2000.0, "due": 1975.0, "keytab": False}


def test_what_is_no_delegation_token_is_not_taken() -> None:
    told = made("first", 1000.0).to_json()
    alien = Credentials({"x": Token(b"x", b"p", AM_RM_TOKEN)}, {"secret": b"s"})
    credentials = Tokens.from_json(told).credentials.merged(alien)
    found = Tokens.from_json(Tokens(credentials, "alice", 900.0, 1000.0).to_json())
    assert sorted(found.credentials.tokens) == ["fs", "rm"]
    assert not found.credentials.secrets
    assert "b'p'" not in repr(found)


def test_a_keytab_is_asked_when_they_are_due_and_again_where_it_fails(tmp_path: Path) -> None:
    answers: list[Tokens | Unreachable] = [Unreachable("no KDC"), made("second", time.time() + 1000)]
    troubles = []

    async def fetch() -> Tokens:
        troubles.append(master.trouble)
        answer = answers.pop(0)
        if isinstance(answer, Unreachable):
            raise answer
        return answer

    master = MasterTokens(made("first", time.time() - 1), str(tmp_path), fetch)
    assert master.status()["keytab"] is True

    async def live() -> None:
        newer = asyncio.Event()
        master.listeners.append(newer.set)
        keeping = asyncio.create_task(master.keep())
        await asyncio.wait_for(newer.wait(), 60.0)
        keeping.cancel()

    asyncio.run(live())
    assert troubles == ["", "no newer tokens can be had by the keytab: no KDC"]
    assert "trouble" not in master.status()
    assert read(master.path)["fs"] == b"second of hdfs"


def test_a_keytab_is_read_out_of_memory() -> None:
    login = keytab_login("a2V5", Keytab("alice@TEST", "/home/alice/alice.keytab"))
    assert login.principal == "alice@TEST"
    assert Path(login.keytab).read_bytes() == b"key"
    assert "memfd" in os.readlink(login.keytab)
    os.close(int(login.keytab.rpartition("/")[2]))


def test_the_keytab_of_a_job_is_named_in_full() -> None:
    given = {"principal": "alice@TEST", "keytab": "/home/alice/alice.keytab"}
    assert settings({"kerberos": given}).kerberos == Keytab("alice@TEST", "/home/alice/alice.keytab")
    host = settings({"kerberos": {**given, "principal": "alice/host.example@TEST"}}).kerberos
    assert host is not None
    assert host.principal == "alice/host.example@TEST"
    home = settings({"kerberos": {**given, "keytab": "~/alice.keytab"}}).kerberos
    assert home == Keytab("alice@TEST", os.path.expanduser("~/alice.keytab"))
    wrong = {
        "engines.yarn.kerberos: must be a mapping, not 'alice'": "alice",
        "engines.yarn.kerberos.keytab: it is missing": {"principal": "alice@TEST"},
        "engines.yarn.kerberos.principal: 'alice' is not a principal with its realm": {**given, "principal": "alice"},
        "engines.yarn.kerberos.keytab: 'alice.keytab' is not a whole path": {**given, "keytab": "alice.keytab"},
        "engines.yarn.kerberos.keytabs: there is no such key": {**given, "keytabs": "x"},
    }
    for says, value in wrong.items():
        with pytest.raises(BadInput) as caught:
            settings({"kerberos": value})
        assert caught.value.message == says
        assert caught.value.anchor == "engine-settings"
