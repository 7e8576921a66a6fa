"""Files that a cluster gets from the submitter: put on HDFS once, named by their content, and brought to containers by YARN.

    <home>/.trainmaster/runtime/<digest>.tar.gz   our code: readable by everybody, so that nodes have it once for all users
                        files/<digest>.<ending>   readable by the user alone: a file among them may be a secret
                        inputs/<digest>/, outputs/<number>/   readable by the user alone: for jobs with paths of the submitter's machine
                        jobs/<id>/                readable by the user alone; `access` says how to reach the job from another machine

`<home>` is the user's directory on the default file system. A file is written as a draft and renamed, so a file that has its name is
whole; of two submitters who put the same file at once, the second finds it there. The digest of what was written is compared with the name:
a file that changed since it was named, or while it is read, is refused. A submission that is broken off removes its drafts. The drafts of a
submission that was killed are removed a day later, by the next submitter who puts a file there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from trainmaster.core.errors import BadInput, EngineFailed, TrainmasterError
from trainmaster.engines.yarn.submit.launching import Resource
from trainmaster.hadoop.conf import Configuration, default_fs
from trainmaster.host.machine import login_name
from trainmaster.log.dfs import Dfs, open_dfs
from trainmaster.log.documents.files import parse
from trainmaster.log.hdfs import opened, put, read_rest
from trainmaster.log.storage import DOCUMENT, storage_failed

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus

FOLDER, RUNTIME = ".trainmaster", "runtime"
_SHARED = ("files", RUNTIME, "inputs")  # folders whose files jobs share, named by content
ACCESS = "access"
# Archives that node managers unpack (org.apache.hadoop.yarn.util.FSDownload)
UNPACKED = (".tar.gz", ".tgz", ".tar", ".zip")
_NOT_UNPACKED = (".tar.bz2", ".tar.xz")  # archives that only our agents unpack
_PIECE, _TRIES = 4 * 2**20, 3
_DRAFT, _DEAD = ".tmp", 86400.0  # _DEAD: seconds after which nobody writes a draft any more

T = TypeVar("T")


def fetches(url: str) -> bool:
    """Tell whether YARN itself fetches a file of the cluster to containers: once to a node, unpacked, for all jobs that name it. All other
    files are fetched by our agents.
    """
    return url.startswith("hdfs://") and not set(url) & set("*?[") and not url.endswith(_NOT_UNPACKED)


class Store:
    """The user's place on the cluster's default file system. Its calls block; they run in threads, and `stop` ends them."""

    def __init__(self, conf: Configuration, user: str) -> None:
        self.fs = default_fs(conf)
        self.home = f"/user/{user}/{FOLDER}"
        self.stop = threading.Event()
        self._noted: set[str] = set()  # ids of the jobs that `keep` noted

    @property
    def jobs(self) -> str:
        """Return the folder where jobs have their storage by default."""
        return f"{self.fs}{self.home}/jobs"

    @property
    def inputs(self) -> str:
        """Return the folder of inputs that come from the submitter's machine."""
        return f"{self.fs}{self.home}/inputs"

    @property
    def outputs(self) -> str:
        """Return the folder of outputs that go to the submitter's machine."""
        return f"{self.fs}{self.home}/outputs"

    def private(self, kind: str) -> str:
        """Make the folder `inputs` or `outputs`, which nobody else reads, and return it. Raises StorageFailed."""
        path = f"{self.home}/{kind}"

        def make(dfs: Dfs) -> None:
            dfs.call(lambda client: client.mkdirs(self.home, 0o755, True))
            dfs.call(lambda client: client.mkdirs(path, 0o700, False))
            _tidy(dfs, path)

        self._perform("make a folder", f"{self.fs}{path}", make)
        return f"{self.fs}{path}"

    # -- what containers get --

    def put(self, local: Path, kind: str, digest: str = "", unpacked: bool = False, own: bool = False) -> Resource:
        """Put `local` on HDFS as `<kind>/<digest><suffixes>`, uploaded where it is not there yet. `own`: containers of other users get a
        copy of their own. Raises EngineFailed, StorageFailed.
        """
        digest = digest or _digest(local)
        path = f"{self.home}/{kind}/{digest}{''.join(local.suffixes[-2:])}"

        def ensure(dfs: Dfs) -> Resource:
            status = _look(dfs, path) or self._upload_again(dfs, local, path, digest, kind == RUNTIME)
            public = not own and _is_public(dfs, path)
            return Resource(f"{self.fs}{path}", status.length, status.modification_time, public, unpacked)

        return self._perform(f"put {local.name} on HDFS", f"{self.fs}{path}", ensure)

    def resource(self, url: str, place: str, unpacked: bool = False, own: bool = False) -> Resource:
        """Return a file or a folder that is on HDFS already, as it is now. Raises BadInput where it is missing, or a folder that is to be
        unpacked, naming `place` in the job file.
        """
        parts = urlsplit(url)
        fs = f"{parts.scheme}://{parts.netloc}" if parts.netloc else self.fs
        # A NodeManager finds no name in a path that ends with a slash, and has the container wait for ever.
        path = "/" + "/".join(filter(None, parts.path.split("/")))

        def look(dfs: Dfs) -> Resource:
            status = _look(dfs, path)
            if status is None or (status.isdir and not place.startswith("cache")):
                raise BadInput(
                    f"{url} {'is a directory, and one file is wanted' if status else 'does not exist'}", place=f"{place}: {url}",
                    mend="name a file" if status else "check the URL", anchor="no-file",
                )  # fmt: skip
            public = (
                not own and not status.isdir and _is_public(dfs, path)
            )  # YARN asks it of all that a public folder holds
            return Resource(f"{fs}{path}", status.length, status.modification_time, public, unpacked)

        return self._perform(f"look at {place}", url, look, fs)

    def check(self, job: Any) -> None:
        """Raise BadInput where YARN cannot bring what a job names: an archive that YARN does not unpack, a missing file of HDFS."""
        archive = job.environment.archive
        if (
            archive
            and not job.environment.path
            and (not archive.endswith(UNPACKED) or ("://" in archive and not fetches(archive)))
        ):
            raise BadInput(
                f"YARN cannot bring {archive}", place=f"environment.archive: {archive}",
                mend=f"name a file of this machine or of hdfs:// that ends in one of {', '.join(UNPACKED)}", anchor="environment",
            )  # fmt: skip
        addresses = {"environment.archive": archive} | {f"cache[{number}]": url for number, url in enumerate(job.cache)}
        addresses |= {f"archives[{number}]": url for number, url in enumerate(job.archives)}
        for place, address in addresses.items():
            if fetches(url := address.partition("#")[0]):
                self.resource(url, place)

    # -- where a job is --

    def keep(self, job: str, note: Mapping[str, Any]) -> None:
        """Note how to reach the job, which reserves the job's id. Raises EngineFailed where another job has the id, and StorageFailed."""
        path = f"{self.home}/jobs/{job}/{ACCESS}"
        content = json.dumps(dict(note)).encode()

        def write(dfs: Dfs) -> None:
            dfs.call(lambda client: client.mkdirs(f"{self.home}/jobs", 0o755, True))
            dfs.call(lambda client: client.mkdirs(f"{self.home}/jobs/{job}", 0o700, False))
            try:
                put(dfs, path, content, overwrite=False, mode=0o600)
            except FileExistsError as error:
                raise EngineFailed(
                    f"another job has the id {job}",
                    place=f"{self.fs}{path}",
                    mend="submit again: another id is drawn",
                    anchor="hdfs",
                ) from error
            self._noted.add(job)

        self._perform("note the job", f"{self.fs}{path}", write)
        if self.stop.is_set():  # the submission was given up, and may have called `forget` before us
            self.forget(job)

    def job_access(self, job: str) -> dict[str, Any] | None:
        """Return the note that `keep` wrote; None where we have no such job."""
        path = f"{self.home}/jobs/{job}/{ACCESS}"

        def read(dfs: Dfs) -> dict[str, Any] | None:
            try:
                content = read_rest(dfs, path, f"{self.fs}{path}", 0, DOCUMENT)
            except FileNotFoundError:
                return None
            mend = f"use the machine that {job} was submitted from, or end it: yarn application -kill"
            return parse(content, f"{self.fs}{path}", mend)

        return self._perform("find the job", f"{self.fs}{path}", read)

    def forget(self, job: str) -> None:
        """Remove the files of a job that was never submitted, and nothing of another job that has its id."""
        recursive = job in self._noted  # otherwise only an empty folder may be removed
        with contextlib.suppress(TrainmasterError):
            self._perform(
                "forget the job",
                job,
                lambda dfs: dfs.call(lambda client: client.delete(f"{self.home}/jobs/{job}", recursive)),
            )

    def remove(self, job: str) -> None:
        """Remove the files of a job that is over. Raises StorageFailed."""
        path = f"{self.home}/jobs/{job}"
        self._perform("remove the job", f"{self.fs}{path}", lambda dfs: _delete(dfs, path))

    def caches(self) -> list[tuple[str, int, float]]:
        """List the files that jobs share: URL, bytes, and when each was put there."""

        def read(dfs: Dfs) -> list[tuple[str, int, float]]:
            entries = []
            for kind in _SHARED:
                for row in _list(dfs, f"{self.home}/{kind}"):
                    path = f"{self.home}/{kind}/{PurePosixPath(row.path).name}"
                    size = row.length
                    if row.isdir:
                        size = dfs.call(lambda client, path=path: client.get_content_summary(path).length)  # type: ignore[misc]
                    entries.append((f"{self.fs}{path}", size, row.modification_time / 1000))
            return entries

        return self._perform("list the caches", f"{self.fs}{self.home}", read)

    def clear(self, url: str) -> None:
        """Remove one entry of `caches`. Raises StorageFailed."""
        path = url.removeprefix(self.fs)
        if not path.startswith(tuple(f"{self.home}/{kind}/" for kind in _SHARED)):
            raise BadInput(f"{url} is in no cache of ours", anchor="storage-path")
        self._perform("clear a cache", url, lambda dfs: _delete(dfs, path))

    # --

    def _perform(self, doing: str, place: str, action: Callable[[Dfs], T], fs: str = "") -> T:
        try:
            return action(open_dfs(fs or self.fs)[0])
        except TrainmasterError:
            raise
        except OSError as error:
            raise storage_failed(doing, place, error) from error

    def _upload_again(self, dfs: Dfs, local: Path, path: str, digest: str, public: bool) -> FileStatus:
        """Upload a file, again where DataNodes were lost, or slow to confirm its blocks: hdfs-native gives such a file up."""
        for tries_left in reversed(range(_TRIES)):
            try:
                return self._upload(dfs, local, path, digest, public)
            except OSError as error:
                if not tries_left or error.errno not in (errno.EAGAIN, errno.EIO):
                    raise
        raise AssertionError("the last try returns or raises")

    def _upload(self, dfs: Dfs, local: Path, path: str, digest: str, public: bool) -> FileStatus:
        folder = str(PurePosixPath(path).parent)
        _tidy(dfs, folder)
        draft = f"{folder}/.{secrets.token_hex(8)}{_DRAFT}"
        try:
            written = self._write(dfs, local, draft, 0o644 if public else 0o600)
            if written != digest:
                raise EngineFailed(
                    f"{local.name} changed while it was uploaded", place=str(local), mend="submit again", anchor="hdfs"
                )
            with contextlib.suppress(FileExistsError):  # another submitter has put the same file
                dfs.call(lambda client: client.rename(draft, path))
        finally:
            with contextlib.suppress(OSError):
                dfs.call(lambda client: client.delete(draft))
        return dfs.call(lambda client: client.get_file_info(path))

    def _write(self, dfs: Dfs, local: Path, draft: str, mode: int) -> str:
        """Upload the file as a draft. Return the digest of what was written."""
        digest = hashlib.sha256()
        writer = opened(dfs, draft, mode)
        with local.open("rb") as file:
            while piece := file.read(_PIECE):
                if self.stop.is_set():
                    raise EngineFailed("the upload was broken off", place=str(local), anchor="hdfs")
                digest.update(piece)
                dfs.bounded(lambda piece=piece: writer.write(piece))  # type: ignore[misc]
        dfs.bounded(writer.close)
        return digest.hexdigest()[:32]


def _look(dfs: Dfs, path: str) -> FileStatus | None:
    try:
        return dfs.call(lambda client: client.get_file_info(path))
    except FileNotFoundError:
        return None


def _is_public(dfs: Dfs, path: str) -> bool:
    """Tell whether everyone may read the file: only then node managers share it among users (YARN's PUBLIC visibility)."""

    def is_readable(client: Client) -> bool:
        if not client.get_file_info(path).permission & 0o004:
            return False
        return all(client.get_file_info(str(above)).permission & 0o001 for above in PurePosixPath(path).parents)

    return dfs.call(is_readable)


def _tidy(dfs: Dfs, folder: str) -> None:
    """Remove the dead drafts of submitters that were killed, files and folders. A user's file may end like a draft, but never begins like
    one.
    """
    for row in _list(dfs, folder):
        name = PurePosixPath(row.path).name
        draft = name.startswith(".") and name.endswith(_DRAFT)
        if draft and time.time() - row.modification_time / 1000 > _DEAD:
            with contextlib.suppress(OSError):
                dfs.call(lambda client, path=row.path: client.delete(path, True))  # type: ignore[misc]


def _list(dfs: Dfs, folder: str) -> list[FileStatus]:
    try:
        return dfs.call(lambda client: list(client.list_status(folder, False)))
    except FileNotFoundError:
        return []


def _delete(dfs: Dfs, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        dfs.call(lambda client: client.delete(path, True))


def _digest(local: Path) -> str:
    with local.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def user_of(environ: os._Environ[str] | dict[str, str]) -> str:
    """Return our user name on a cluster that believes any name: HADOOP_USER_NAME, else the user of this process."""

    return environ.get("HADOOP_USER_NAME") or login_name()
