"""Which NameNode has the file behind a path of viewfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster.clusters.hadoop_conf import xml
from trainmaster.hadoop.conf import load
from trainmaster.hadoop.errors import ConfError
from trainmaster.log.openfile import behind

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
