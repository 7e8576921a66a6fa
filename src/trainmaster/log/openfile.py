"""Read the end of a file of HDFS that its writer still holds open, which hdfs-native does not read.

The NameNode tells which block is the last one and which DataNodes have it; a DataNode sends its bytes. All bytes that a writer has flushed
are there. `read_end` asks for no more than the length that the NameNode tells, which is what a writer has *synced* with that length;
`read_flushed` asks a DataNode how many there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from trainmaster.hadoop import conf as hadoop_conf
from trainmaster.hadoop import datanode
from trainmaster.hadoop.conf import Configuration
from trainmaster.hadoop.errors import ConfError, HadoopError, RemoteError
from trainmaster.hadoop.hdfs import Datanode, Namenode
from trainmaster.hadoop.proto.hdfs_pb2 import (
    DataEncryptionKeyProto,
    DatanodeIDProto,
    GetBlockLocationsRequestProto,
    GetReplicaVisibleLengthRequestProto,
    LocatedBlockProto,
    LocatedBlocksProto,
)
from trainmaster.hadoop.security.auth import Auth, ByToken, Kerberos, Simple
from trainmaster.hadoop.security.credentials import Credentials
from trainmaster.host.machine import login_name
from trainmaster.log.dfs import DfsError

if TYPE_CHECKING:
    from trainmaster.log.dfs import Dfs

_WITHIN = 20.0  # s for the NameNode's answer
_DATANODE_WITHIN = 5.0  # s
T = TypeVar("T")


def read_end(dfs: Dfs, path: str, offset: int, size: int) -> bytes | None:
    """Return bytes of the last block; None where no block is open (any more). Raises OSError."""
    conf = configuration()
    with _read_errors():
        blocks, key = _locate_blocks(conf, dfs, path, offset, size)
        last = blocks.lastBlock
        if not blocks.HasField("lastBlock") or blocks.isLastBlockComplete or offset < last.offset:
            return None
        return _read_block(conf, last, key, offset, size)


def read_flushed(dfs: Dfs, path: str, offset: int, size: int) -> bytes | None:
    """Return up to `size` bytes from `offset` on that are flushed to the last block; None once the file is closed. Raises OSError.

    Bytes of the blocks before count as the file's size, and are not returned.
    """
    conf = configuration()
    with _read_errors():
        blocks, key = _locate_blocks(conf, dfs, path, offset, 1)
        if not blocks.underConstruction:
            return None
        last = blocks.lastBlock
        is_striped = last.b.blockId < 0  # erasure-coded: each DataNode has some cells of the file
        if not blocks.HasField("lastBlock") or blocks.isLastBlockComplete or is_striped or offset < last.offset:
            return b""
        size = min(size, last.offset + _flushed(conf, dfs, path, last) - offset)
        return _read_block(conf, last, key, offset, size) if size > 0 else b""


def _read_block(
    conf: Configuration, block: LocatedBlockProto, key: DataEncryptionKeyProto | None, offset: int, size: int
) -> bytes:
    """Return bytes of a block; `offset` is that in the file."""
    protection = tuple(conf.names("dfs.data.transfer.protection"))
    by_name = conf.flag("dfs.client.use.datanode.hostname")
    return datanode.read_block(block, offset - block.offset, size, protection=protection, key=key, by_name=by_name)


def _flushed(conf: Configuration, dfs: Dfs, path: str, block: LocatedBlockProto) -> int:
    """Return how many bytes of an open block its DataNodes give: as the first one says that answers, else as the NameNode says."""
    auth = auth_for(conf, behind(conf, dfs.url, dfs.where, path)[0])
    request = GetReplicaVisibleLengthRequestProto(block=block.b)

    async def ask(node: DatanodeIDProto) -> int:
        async with Datanode.of(conf, auth, block, node) as client:
            return (await client.get_replica_visible_length(request, timeout=_DATANODE_WITHIN)).length

    for info in block.locs:
        with contextlib.suppress(HadoopError):  # it is down, or has not got the block yet
            return _run(ask(info.id))
    return block.b.numBytes


def configuration() -> Configuration:
    """Return the configuration of HADOOP_CONF_DIR, or an empty one: a URL with host and port needs none."""
    if any(os.environ.get(name) for name in ("HADOOP_CONF_DIR", "HADOOP_HOME")):
        return hadoop_conf.load()
    return Configuration(Path())


def auth_for(conf: Configuration, url: str) -> Auth:
    """Return our login for the NameNode of an hdfs:// address, as hdfs-native chooses it: a token of ours for it, a ticket, or just a name.
    Asks the name service.
    """
    if not hadoop_conf.is_secure(conf):
        return Simple(os.environ.get("HADOOP_USER_NAME") or login_name())
    if file := os.environ.get("HADOOP_TOKEN_FILE_LOCATION"):
        from trainmaster.hadoop.security.delegation import (
            token_for,  # brings YARN's messages: not for readers without tokens
        )

        token = token_for(Credentials.read(Path(file).read_bytes()), conf, url)
        if token is not None:
            return ByToken(token)
    return Kerberos()


def behind(conf: Configuration, url: str, where: str, path: str) -> tuple[str, str]:
    """Return the NameNode's URL, and the path of a file there. `url`: of the file system; `where`: its authority. Raises ConfError."""
    if not url.startswith("viewfs"):
        return f"hdfs://{where}", path
    mount = hadoop_conf.mounted(hadoop_conf.mounts(conf, where), path)
    if mount is None:
        raise ConfError(f"{conf.place('fs.defaultFS')}: nothing is mounted at {path} of viewfs://{where}")
    target = urlsplit(mount)
    return f"{target.scheme}://{target.netloc}", target.path or "/"


def _locate_blocks(
    conf: Configuration, dfs: Dfs, path: str, offset: int, size: int
) -> tuple[LocatedBlocksProto, DataEncryptionKeyProto | None]:
    """Return the places of the file's blocks, and the key for talking to their DataNodes, where all data is encrypted."""
    namenodes, real_path = behind(conf, dfs.url, dfs.where, path)
    request = GetBlockLocationsRequestProto(src=real_path, offset=offset, length=size)

    async def ask() -> tuple[LocatedBlocksProto, DataEncryptionKeyProto | None]:
        async with asyncio.timeout(_WITHIN), Namenode.of(conf, auth_for(conf, namenodes), namenodes) as namenode:
            answer, defaults = await asyncio.gather(
                namenode.get_block_locations(request), namenode.get_server_defaults()
            )
            if not defaults.serverDefaults.encryptDataTransfer:
                return answer.locations, None
            return answer.locations, (await namenode.get_data_encryption_key()).dataEncryptionKey

    return _run(ask())


def _run(question: Coroutine[Any, Any, T]) -> T:
    """Return the answer of a coroutine that runs in a thread of its own: the caller may be in an event loop."""
    answers: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(asyncio.run(question))
        except BaseException as error:  # noqa: BLE001  raised below
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True, name="open file")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return answers[0]


@contextlib.contextmanager
def _read_errors() -> Iterator[None]:
    """Turn errors of Hadoop's into OSError."""
    try:
        yield
    except RemoteError as error:
        if error.name == "FileNotFoundException":
            raise FileNotFoundError(errno.ENOENT, error.message) from error
        raise _read_error(error) from error
    except HadoopError as error:
        raise _read_error(error) from error


def _read_error(error: HadoopError) -> DfsError:
    return DfsError(
        errno.EIO,
        f"the end of a file that is being written cannot be read now: {error.message}",
        "try again; it can be read at the latest when its writer has closed it",
    )
