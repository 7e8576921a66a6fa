"""The end of a file of HDFS that its writer still holds open: what hdfs-native does not read.

The NameNode tells which block is last and who has it, the DataNode what it holds of it. What a writer has synced is there; the caller
asks for no more than that, by the length that the NameNode tells.
"""

from __future__ import annotations

import asyncio
import errno
import getpass
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trainmaster.hadoop import conf as hadoop_conf
from trainmaster.hadoop import datanode
from trainmaster.hadoop.conf import Configuration
from trainmaster.hadoop.errors import ConfError, HadoopError, RemoteError
from trainmaster.hadoop.hdfs import Namenode
from trainmaster.hadoop.proto.hdfs_pb2 import (
    DataEncryptionKeyProto,
    GetBlockLocationsRequestProto,
    LocatedBlocksProto,
)
from trainmaster.hadoop.security.auth import Auth, ByToken, Kerberos, Simple
from trainmaster.hadoop.security.credentials import Credentials
from trainmaster.log.dfs import DfsError

if TYPE_CHECKING:
    from trainmaster.log.dfs import Dfs

_WITHIN = 20.0  # s for the NameNode's answer


def read_end(dfs: Dfs, path: str, offset: int, size: int) -> bytes | None:
    """Bytes of the last block; None where no block is open (any more). Raises OSError."""
    conf = configuration()
    try:
        found, key = _blocks(conf, dfs, path, offset, size)
        last = found.lastBlock
        if not found.HasField("lastBlock") or found.isLastBlockComplete or offset < last.offset:
            return None
        protection = tuple(conf.names("dfs.data.transfer.protection"))
        by_name = conf.flag("dfs.client.use.datanode.hostname")
        return datanode.read_block(last, offset - last.offset, size, protection=protection, key=key, by_name=by_name)
    except RemoteError as error:
        if error.name == "FileNotFoundException":
            raise FileNotFoundError(errno.ENOENT, error.message) from error
        raise _failed(error) from error
    except HadoopError as error:
        raise _failed(error) from error


def configuration() -> Configuration:
    """That of HADOOP_CONF_DIR, or an empty one: a URL with host and port needs none."""
    if any(os.environ.get(name) for name in ("HADOOP_CONF_DIR", "HADOOP_HOME")):
        return hadoop_conf.load()
    return Configuration(Path())


def auth_for(conf: Configuration, url: str) -> Auth:
    """Who we are to the NameNode of an hdfs:// address, as hdfs-native chooses it: a token for it that was given to us, a ticket, or just
    a name. Asks the name service.
    """
    if not hadoop_conf.is_secure(conf):
        return Simple(os.environ.get("HADOOP_USER_NAME") or getpass.getuser())
    if file := os.environ.get("HADOOP_TOKEN_FILE_LOCATION"):
        from trainmaster.hadoop.security.delegation import (
            token_for,  # brings YARN's messages: not for readers without tokens
        )

        token = token_for(Credentials.read(Path(file).read_bytes()), conf, url)
        if token is not None:
            return ByToken(token)
    return Kerberos()


def behind(conf: Configuration, url: str, where: str, path: str) -> tuple[str, str]:
    """The NameNode's URL, and the path that a file has there. `url`: the file system's; `where`: its authority. Raises ConfError."""
    if not url.startswith("viewfs"):
        return f"hdfs://{where}", path
    found = hadoop_conf.mounted(hadoop_conf.mounts(conf, where), path)
    if found is None:
        raise ConfError(f"{conf.place('fs.defaultFS')}: nothing is mounted at {path} of viewfs://{where}")
    target = urlsplit(found)
    return f"{target.scheme}://{target.netloc}", target.path or "/"


def _blocks(
    conf: Configuration, dfs: Dfs, path: str, offset: int, size: int
) -> tuple[LocatedBlocksProto, DataEncryptionKeyProto | None]:
    """Where they are, and by which key their DataNodes are spoken to, where all data is encrypted."""
    namenodes, there = behind(conf, dfs.url, dfs.where, path)
    request = GetBlockLocationsRequestProto(src=there, offset=offset, length=size)

    async def ask() -> tuple[LocatedBlocksProto, DataEncryptionKeyProto | None]:
        async with asyncio.timeout(_WITHIN), Namenode.of(conf, auth_for(conf, namenodes), namenodes) as namenode:
            found, told = await asyncio.gather(namenode.get_block_locations(request), namenode.get_server_defaults())
            if not told.serverDefaults.encryptDataTransfer:
                return found.locations, None
            return found.locations, (await namenode.get_data_encryption_key()).dataEncryptionKey

    answers: list[tuple[LocatedBlocksProto, DataEncryptionKeyProto | None]] = []
    failures: list[BaseException] = []

    def run() -> None:  # in a thread of its own: the caller may be in a loop
        try:
            answers.append(asyncio.run(ask()))
        except BaseException as error:  # noqa: BLE001  raised below
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True, name="open file")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return answers[0]


def _failed(error: HadoopError) -> DfsError:
    return DfsError(
        errno.EIO,
        f"the end of a file that is being written cannot be read now: {error.message}",
        "try again; it can be read at the latest when its writer has closed it",
    )
