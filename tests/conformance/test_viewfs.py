"""viewfs: a client's own table that mounts folders of HDFS. A log behind it is read while it is written, as any on HDFS is."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainmaster.clusters.hadoop import Cluster
from trainmaster.clusters.hadoop.conf import xml
from trainmaster.core.errors import BadInput
from trainmaster.data.store.stores import store_for
from trainmaster.hadoop.conf import default_fs, load
from trainmaster.log.storage import storage_for

pytestmark = pytest.mark.xdist_group("hadoop")


@pytest.fixture
def folder(hadoop: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder of HDFS, mounted at /logs of viewfs://ours."""
    made = f"{default_fs(load(hadoop.conf_dir))}/tmp/viewfs-{uuid.uuid4().hex[:12]}"
    table = "fs.viewfs.mounttable.ours"
    links = {"fs.defaultFS": "viewfs://ours", f"{table}.link./logs": made, f"{table}.link./logs/other": f"{made}-other"}
    (tmp_path / "core-site.xml").write_text(xml(links))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    store_for(made).put("made", b"")
    yield made
    for place in (made, f"{made}-other"):
        store_for(place).remove("")


def test_where_nothing_is_mounted_nothing_is_put(folder: str) -> None:
    with pytest.raises(BadInput, match=r"nothing is mounted at /elsewhere of viewfs://ours") as refused:
        storage_for("viewfs://ours/elsewhere")
    assert "one of /logs, /logs/other" in str(refused.value)
    with pytest.raises(BadInput, match="there is no mount table theirs of viewfs"):
        storage_for("viewfs://theirs/logs")


@pytest.mark.parametrize("begin", ["viewfs://ours", "viewfs://"])
@pytest.mark.parametrize("at", ["logs", "logs/other"])
def test_the_open_end_of_a_file_is_read(folder: str, begin: str, at: str) -> None:
    writing, reading = (storage_for(f"{begin}/{at}") for _ in range(2))
    name = f"events/{uuid.uuid4().hex[:8]}.jsonl"
    file = writing.appender(name)
    try:
        for count in (1, 2):
            file.write(b"a line\n")
            file.sync()
            assert reading.read(name) == b"a line\n" * count
            assert reading.read(name, 7 * (count - 1), 7) == b"a line\n"
    finally:
        file.close()
    assert reading.read(name) == b"a line\n" * 2
    behind = folder if at == "logs" else f"{folder}-other"
    assert storage_for(behind).read(name) == b"a line\n" * 2
