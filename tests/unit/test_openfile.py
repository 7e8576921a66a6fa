"""Which NameNode has the file behind a path of viewfs, and by which token it is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster.clusters.hadoop.conf import xml
from trainmaster.hadoop.conf import load
from trainmaster.hadoop.errors import ConfError
from trainmaster.hadoop.security.auth import ByToken, Kerberos, Simple
from trainmaster.hadoop.security.credentials import HDFS_DELEGATION_TOKEN, Credentials, Token
from trainmaster.log.openfile import auth_for, behind

TABLE = "fs.viewfs.mounttable.ours."
LINKS = {
    f"{TABLE}link./logs": "hdfs://one:8020/var/logs",
    f"{TABLE}link./logs/deep/": "hdfs://two/",
    f"{TABLE}link./user": "hdfs://named/user/",
    "fs.viewfs.mounttable.other.link./elsewhere": "hdfs://other/",
}


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/logs", ("hdfs://one:8020", "/var/logs")),
        ("/logs/a/b.jsonl", ("hdfs://one:8020", "/var/logs/a/b.jsonl")),
        ("/logs/deep/a", ("hdfs://two", "/a")),
        ("/logs/deep", ("hdfs://two", "/")),
        ("/logs/deeper", ("hdfs://one:8020", "/var/logs/deeper")),
        ("/user/me", ("hdfs://named", "/user/me")),
        ("/elsewhere/a", None),
        ("/log", None),
    ],
)
@pytest.mark.parametrize("fallback", [False, True])
def test_the_longest_mount_has_the_file(
    tmp_path: Path, path: str, where: tuple[str, str] | None, fallback: bool
) -> None:
    more = {f"{TABLE}linkFallback": "hdfs://rest/below"} if fallback else {}
    (tmp_path / "core-site.xml").write_text(xml({**LINKS, **more}))
    conf = load(tmp_path)
    if where is not None or fallback:
        assert behind(conf, "viewfs://ours", "ours", path) == (where or ("hdfs://rest", f"/below{path}"))
    else:
        with pytest.raises(ConfError, match=f"nothing is mounted at {path} of viewfs://ours"):
            behind(conf, "viewfs://ours", "ours", path)


def test_a_path_of_hdfs_is_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "core-site.xml").write_text(xml(LINKS))
    assert behind(load(tmp_path), "hdfs://one:1", "one:1", "/logs/a") == ("hdfs://one:1", "/logs/a")


def test_each_file_system_is_asked_by_its_own_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that uses two has a token for each; who has none for a third is asked for a ticket, as hdfs-native asks."""
    addresses = {"fs.defaultFS": "hdfs://localhost:8020", "dfs.nameservices": "far", "dfs.ha.namenodes.far": "a,b"}
    addresses |= {f"dfs.namenode.rpc-address.far.{one}": f"127.0.0.1:{port}" for one, port in (("a", "1"), ("b", "2"))}
    (tmp_path / "core-site.xml").write_text(xml(addresses | {"hadoop.security.authentication": "kerberos"}))
    services = ("127.0.0.1:8020", "ha-hdfs:far", "localhost:9020")
    held = {where: Token(b"", b"", HDFS_DELEGATION_TOKEN, where) for where in services}
    file = tmp_path / "tokens"
    file.write_bytes(Credentials(held).write())
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(file))
    conf = load(tmp_path)
    for url, service in zip(("hdfs://localhost:8020", "hdfs://far", "hdfs://localhost:9020"), services, strict=True):
        assert auth_for(conf, url) == ByToken(held[service])
    assert auth_for(conf, "hdfs://localhost:9021") == Kerberos()
    (tmp_path / "core-site.xml").write_text(xml(addresses))
    assert isinstance(auth_for(load(tmp_path), "hdfs://far"), Simple)
