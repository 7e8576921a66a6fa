"""HDFS's NameNode as our client sees it, beside hdfs-native, which does the reading and writing."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import hdfs_native
import pytest
from waiting import until, until_async

from trainmaster.clusters.hadoop import Cluster
from trainmaster.hadoop.conf import Configuration, default_fs, hdfs_native_settings, load
from trainmaster.hadoop.errors import RemoteError
from trainmaster.hadoop.hdfs import Block, Namenode, filed
from trainmaster.hadoop.proto import hdfs_pb2 as h
from trainmaster.hadoop.security.auth import Simple
from trainmaster.hadoop.security.credentials import HDFS_DELEGATION_TOKEN, Token
from trainmaster.log.dfs import translated

pytestmark = pytest.mark.xdist_group("hadoop")

FOLDER = "/test-hadoop-namenode"


@pytest.fixture
def conf(hadoop: Cluster) -> Configuration:
    return load(hadoop.conf_dir)


@pytest.fixture
def files(hadoop: Cluster, conf: Configuration, monkeypatch: pytest.MonkeyPatch) -> Iterator[hdfs_native.Client]:
    for name, value in hadoop.environ.items():
        monkeypatch.setenv(name, value)
    client = hdfs_native.Client(default_fs(conf), hdfs_native_settings(conf))
    client.mkdirs(FOLDER, create_parent=True)
    yield client
    client.delete(FOLDER, recursive=True)


def asked(conf: Configuration, test: Callable[[Namenode], Awaitable[object]], user: str = "tester") -> None:
    async def run() -> None:
        async with Namenode.of(conf, Simple(user)) as namenode:
            await test(namenode)

    asyncio.run(run())


def write(client: hdfs_native.Client, path: str, data: bytes, **options: int) -> None:
    """Write a file: again where a DataNode of a busy machine confirms its small blocks late, which hdfs-native does not wait for."""

    def written() -> bool:
        try:
            with client.create(path, hdfs_native.WriteOptions(overwrite=True, **options)) as file:
                file.write(data)
        except RuntimeError as error:
            if translated(error, path).errno != errno.EAGAIN:
                raise
            return False
        return True

    until(written)


def test_a_file_and_its_blocks(conf: Configuration, files: hdfs_native.Client) -> None:
    write(files, f"{FOLDER}/file", b"x" * (5 << 19), block_size=1 << 20)

    async def test(namenode: Namenode) -> None:
        found = (await namenode.get_file_info(h.GetFileInfoRequestProto(src=f"{FOLDER}/file"))).fs
        other = files.get_file_info(f"{FOLDER}/file")
        assert (found.length, found.modification_time) == (5 << 19, other.modification_time)
        blocks = await namenode.blocks(f"{FOLDER}/file")
        [host] = blocks[0].hosts
        assert blocks == [
            Block(0, 1 << 20, (host,)),
            Block(1 << 20, 1 << 20, (host,)),
            Block(2 << 20, 1 << 19, (host,)),
        ]
        assert await namenode.blocks(f"{FOLDER}/file", 1 << 20, 1) == blocks[1:2]
        write(files, f"{FOLDER}/empty", b"")
        assert await namenode.blocks(f"{FOLDER}/empty") == []
        with pytest.raises(RemoteError, match=f"File does not exist: {FOLDER}/gone") as told:
            await namenode.blocks(f"{FOLDER}/gone")
        assert told.value.name == "FileNotFoundException"
        assert not (await namenode.get_file_info(h.GetFileInfoRequestProto(src="/gone"))).HasField("fs")

    asked(conf, test)


def test_the_state_of_the_file_system(conf: Configuration, files: hdfs_native.Client) -> None:
    async def test(namenode: Namenode) -> None:
        assert not await namenode.in_safe_mode()
        defaults = (await namenode.get_server_defaults()).serverDefaults
        assert defaults.replication >= 1
        assert defaults.blockSize == 128 << 20

    asked(conf, test)


def test_an_open_file_is_taken_from_its_writer(conf: Configuration, files: hdfs_native.Client) -> None:
    """Lease recovery: it ends, and then another may append."""
    path = f"{FOLDER}/open"
    writer = files.create(path, hdfs_native.WriteOptions(overwrite=True))
    writer.write(b"x" * 1000)
    owner = files.get_file_info(FOLDER).owner

    async def test(namenode: Namenode) -> None:
        async def recovered() -> bool:
            return (await namenode.recover_lease(h.RecoverLeaseRequestProto(src=path, clientName="the next"))).result

        await until_async(recovered)
        with files.append(path) as file:
            file.write(b"y")
        assert files.get_file_info(path).length >= 1

    asked(conf, test, user=owner)


def test_hdfs_native_agrees_on_an_involved_configuration(
    conf: Configuration, hadoop: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself it takes `${}` as written and knows no XInclude: it is given what we understood."""
    folder = tmp_path / "conf"
    folder.mkdir()
    shutil.copy(hadoop.conf_dir / "core-site.xml", folder / "real.xml")
    real = default_fs(conf)
    folder.joinpath("core-site.xml").write_text(
        '<configuration xmlns:xi="http://www.w3.org/2001/XInclude"><xi:include href="real.xml"/>'
        f"<property><name>the.host</name><value>{real.removeprefix('hdfs://')}</value></property>"
        "<property><name>fs.defaultFS</name><value>hdfs://${env.NAME:-ns}</value></property></configuration>"
    )
    folder.joinpath("hdfs-site.xml").write_text(
        "<configuration><property><name>dfs.nameservices</name><value>ns</value></property>"
        "<property><name>dfs.ha.namenodes.ns</name><value>nn1</value></property>"
        "<property><name>dfs.namenode.rpc-address.ns.nn1</name><value>${the.host}</value></property></configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(folder))
    ours = load(folder, {})
    assert default_fs(ours) == "hdfs://ns"
    client = hdfs_native.Client(default_fs(ours), hdfs_native_settings(ours))
    listed = {status.path.rpartition("/")[2] for status in client.list_status("/")}

    async def test(namenode: Namenode) -> None:
        for name in listed:
            assert (await namenode.get_file_info(h.GetFileInfoRequestProto(src=f"/{name}"))).HasField("fs")

    asked(ours, test)


def test_a_token_is_filed_for_whoever_looks_for_it(conf: Configuration, tmp_path: Path) -> None:
    token = Token(b"id", b"pw", HDFS_DELEGATION_TOKEN)
    host, _, port = default_fs(conf).removeprefix("hdfs://").partition(":")
    found = filed(token, conf)
    assert {alias: one.service for alias, one in found.items()} == {
        f"127.0.0.1:{port}": f"127.0.0.1:{port}",
        f"{host}:{port}": f"{host}:{port}",
    }
    tmp_path.joinpath("hdfs-site.xml").write_text(
        "<configuration><property><name>dfs.nameservices</name><value>ns</value></property></configuration>"
    )
    assert list(filed(token, load(tmp_path), "hdfs://ns/x")) == ["ha-hdfs:ns"]
