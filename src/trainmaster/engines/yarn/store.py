"""Files that a cluster gets from the submitter: put on HDFS once, named by their content, and brought to containers by YARN.

They are below `<home>/.trainmaster/`, where `<home>` is the user's directory on the default file system. A file is written beside its name
and renamed, so that what has the name is whole; of two who put the same at once, the second finds it there.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from trainmaster.core.errors import BadInput, EngineFailed
from trainmaster.engines.yarn.launching import Resource
from trainmaster.hadoop.conf import Configuration, default_fs, hdfs_native_settings

FOLDER = ".trainmaster"
_PIECE = 4 * 2**20


class Store:
    """The user's place on the cluster's default file system. Blocks; used in threads."""

    def __init__(self, conf: Configuration, user: str) -> None:
        self.fs, self._conf = default_fs(conf), conf
        self.home = f"/user/{user}/{FOLDER}"
        self._client: Any = _client(self.fs, conf)

    @property
    def jobs(self) -> str:
        """Where jobs have their storage by default."""
        return f"{self.fs}{self.home}/jobs"

    def put(self, local: Path, kind: str, digest: str = "", unpacked: bool = False, own: bool = False) -> Resource:
        """`local` as `<kind>/<digest><suffixes>`; uploaded where it is not there yet. `own`: other users' containers get their own.
        Raises EngineFailed.
        """
        name = f"{digest or _digest(local)}{''.join(local.suffixes[-2:])}"
        path = f"{self.home}/{kind}/{name}"
        try:
            found = self._found(path) or self._upload(local, path)
            public = not own and _public(self._client, path)
            return Resource(f"{self.fs}{path}", found.length, found.modification_time, public, unpacked)
        except (OSError, RuntimeError) as error:
            raise EngineFailed(
                f"{local.name} could not be put on HDFS: {str(error).splitlines()[0]}", place=f"{self.fs}{path}",
                mend="check that the NameNode runs and that you may write there", anchor="hdfs",
            ) from error  # fmt: skip

    def resource(self, url: str, place: str, unpacked: bool = False, own: bool = False) -> Resource:
        """A file of HDFS that is there already, as it is now. Raises BadInput where it is not, naming `place` in the job file."""
        parts = urlsplit(url)
        fs = f"{parts.scheme}://{parts.netloc}" if parts.netloc else self.fs
        try:
            client = self._client if fs == self.fs else _client(fs, self._conf)
            found = client.get_file_info(parts.path)
            public = not own and _public(client, parts.path)
        except FileNotFoundError as error:
            raise BadInput(
                f"{url} does not exist", place=f"{place}: {url}", mend="check the URL", anchor="no-file"
            ) from error
        except (OSError, RuntimeError) as error:
            raise EngineFailed(
                f"{url} cannot be looked at: {str(error).splitlines()[0]}", place=f"{place}: {url}",
                mend="check that the NameNode runs and that you may read it", anchor="hdfs",
            ) from error  # fmt: skip
        if found.isdir:
            raise BadInput(
                f"{url} is a directory, and one file is wanted",
                place=f"{place}: {url}",
                mend="name a file",
                anchor="no-file",
            )
        return Resource(f"{fs}{parts.path}", found.length, found.modification_time, public, unpacked)

    def _found(self, path: str) -> Any:
        try:
            return self._client.get_file_info(path)
        except FileNotFoundError:
            return None

    def _upload(self, local: Path, path: str) -> Any:
        folder = str(PurePosixPath(path).parent)
        self._client.mkdirs(folder, 0o755, create_parent=True)
        draft = f"{folder}/.{secrets.token_hex(8)}.tmp"
        before = local.stat()
        with local.open("rb") as file, self._client.create(draft) as put:
            while piece := file.read(_PIECE):
                put.write(piece)
        after = local.stat()
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            self._client.delete(draft)
            raise EngineFailed(
                f"{local.name} changed while it was uploaded", place=str(local), mend="submit again", anchor="hdfs"
            )
        self._client.set_permission(draft, 0o644)
        try:
            self._client.rename(draft, path)
        except FileExistsError:
            self._client.delete(draft)
        return self._client.get_file_info(path)


def _client(fs: str, conf: Configuration) -> Any:
    from hdfs_native import Client

    return Client(fs, config=hdfs_native_settings(conf))


def _public(client: Any, path: str) -> bool:
    """Whether everyone may read it: only then node managers share it among users (YARN's PUBLIC visibility)."""
    if not client.get_file_info(path).permission & 0o004:
        return False
    return all(client.get_file_info(str(above)).permission & 0o001 for above in PurePosixPath(path).parents)


def _digest(local: Path) -> str:
    with local.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def user_of(environ: os._Environ[str] | dict[str, str]) -> str:
    """Who we are on a cluster that believes it: HADOOP_USER_NAME, else the user of this process."""
    import getpass

    return environ.get("HADOOP_USER_NAME") or getpass.getuser()
