"""Files that a cluster gets from the submitter: put on HDFS once, named by their content, and brought to containers by YARN.

    <home>/.trainmaster/runtime/<digest>.tar.gz   our code: readable by everybody, so that nodes have it once for all users
                        files/<digest>.<ending>   the user's own: some file among them may be a secret
                        inputs/<digest>/, outputs/<number>/   the user's own, of jobs whose file names paths of the submitter's machine
                        jobs/<id>/                the user's own; `access` is how the job is reached from another machine

`<home>` is the user's directory on the default file system. A file is written beside its name and renamed, so that what has the name is
whole; of two who put the same at once, the second finds it there. What is written is held against the name: a file that changed since it
was named, or while it is read, is refused. A submission that is broken off removes its drafts; those of one that was killed are removed a
day later, by whoever puts something there.
"""

from __future__ import annotations

import contextlib
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
from trainmaster.log.dfs import Dfs, open_dfs
from trainmaster.log.hdfs import opened, put, read_range
from trainmaster.log.storage import storage_failed

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus

FOLDER, RUNTIME = ".trainmaster", "runtime"
_SHARED = ("files", RUNTIME, "inputs")  # by jobs, by content
ACCESS = "access"
# Archives that node managers unpack (org.apache.hadoop.yarn.util.FSDownload)
UNPACKED = (".tar.gz", ".tgz", ".tar", ".zip")
_NOT_UNPACKED = (".tar.bz2", ".tar.xz")  # archives that only we do
_PIECE = 4 * 2**20
_DRAFT, _DEAD = ".tmp", 86400.0  # s after which nobody writes a draft any more

T = TypeVar("T")


def brings(url: str) -> bool:
    """Whether YARN brings a file of the cluster to containers by itself: once to a node, unpacked, for all jobs that name it. What it
    does not, our agents fetch.
    """
    return url.startswith("hdfs://") and not set(url) & set("*?[") and not url.endswith(_NOT_UNPACKED)


class Store:
    """The user's place on the cluster's default file system. Blocks; used in threads, which `stop` ends."""

    def __init__(self, conf: Configuration, user: str) -> None:
        self.fs = default_fs(conf)
        self.home = f"/user/{user}/{FOLDER}"
        self.stop = threading.Event()
        self._taken: set[str] = set()  # ids that `keep` has taken

    @property
    def jobs(self) -> str:
        """Where jobs have their storage by default."""
        return f"{self.fs}{self.home}/jobs"

    @property
    def inputs(self) -> str:
        """Where inputs of the submitter's machine lie."""
        return f"{self.fs}{self.home}/inputs"

    @property
    def outputs(self) -> str:
        """Where outputs lie that are to be on the submitter's machine."""
        return f"{self.fs}{self.home}/outputs"

    def private(self, kind: str) -> str:
        """The folder `inputs` or `outputs`, which nobody else reads. Raises StorageFailed."""
        path = f"{self.home}/{kind}"

        def made(dfs: Dfs) -> None:
            dfs.call(lambda client: client.mkdirs(self.home, 0o755, True))
            dfs.call(lambda client: client.mkdirs(path, 0o700, False))
            _tidy(dfs, path)

        self._done("make a folder", f"{self.fs}{path}", made)
        return f"{self.fs}{path}"

    # -- what containers get --

    def put(self, local: Path, kind: str, digest: str = "", unpacked: bool = False, own: bool = False) -> Resource:
        """`local` as `<kind>/<digest><suffixes>`; uploaded where it is not there yet. `own`: other users' containers get their own.
        Raises EngineFailed, StorageFailed.
        """
        digest = digest or _digest(local)
        path = f"{self.home}/{kind}/{digest}{''.join(local.suffixes[-2:])}"

        def have(dfs: Dfs) -> Resource:
            found = _look(dfs, path) or self._upload(dfs, local, path, digest, kind == RUNTIME)
            public = not own and _public(dfs, path)
            return Resource(f"{self.fs}{path}", found.length, found.modification_time, public, unpacked)

        return self._done(f"put {local.name} on HDFS", f"{self.fs}{path}", have)

    def resource(self, url: str, place: str, unpacked: bool = False, own: bool = False) -> Resource:
        """A file of HDFS that is there already, as it is now. Raises BadInput where it is not, naming `place` in the job file."""
        parts = urlsplit(url)
        fs = f"{parts.scheme}://{parts.netloc}" if parts.netloc else self.fs

        def look(dfs: Dfs) -> Resource:
            found = _look(dfs, parts.path)
            if found is None or found.isdir:
                raise BadInput(
                    f"{url} {'is a directory, and one file is wanted' if found else 'does not exist'}", place=f"{place}: {url}",
                    mend="name a file" if found else "check the URL", anchor="no-file",
                )  # fmt: skip
            public = not own and _public(dfs, parts.path)
            return Resource(f"{fs}{parts.path}", found.length, found.modification_time, public, unpacked)

        return self._done(f"look at {place}", url, look, fs)

    def check(self, job: Any) -> None:
        """BadInput where YARN cannot bring what a job names: an archive that it does not unpack, a file of HDFS that is not there."""
        archive = job.environment.archive
        if (
            archive
            and not job.environment.path
            and (not archive.endswith(UNPACKED) or ("://" in archive and not brings(archive)))
        ):
            raise BadInput(
                f"YARN cannot bring {archive}", place=f"environment.archive: {archive}",
                mend=f"name a file of this machine or of hdfs:// that ends in one of {', '.join(UNPACKED)}", anchor="environment",
            )  # fmt: skip
        named = {"environment.archive": archive} | {f"cache[{number}]": url for number, url in enumerate(job.cache)}
        named |= {f"archives[{number}]": url for number, url in enumerate(job.archives)}
        for place, given in named.items():
            if brings(url := given.partition("#")[0]):
                self.resource(url, place)

    # -- where a job is --

    def keep(self, job: str, note: Mapping[str, Any]) -> None:
        """Note how the job is reached, which takes its id. Raises EngineFailed where another job has it, and StorageFailed."""
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
            self._taken.add(job)

        self._done("note the job", f"{self.fs}{path}", write)
        if self.stop.is_set():  # whoever submits has given up, and may have called `forget` before us
            self.forget(job)

    def kept(self, job: str) -> dict[str, Any] | None:
        """What `keep` noted; None where there is no such job of ours."""
        path = f"{self.home}/jobs/{job}/{ACCESS}"

        def read(dfs: Dfs) -> dict[str, Any] | None:
            try:
                found: dict[str, Any] = json.loads(read_range(dfs, path, 0, None))
            except FileNotFoundError:
                return None
            return found

        return self._done("find the job", f"{self.fs}{path}", read)

    def forget(self, job: str) -> None:
        """Remove what is there of a job that was never submitted: nothing of another job that has its id."""
        whole = job in self._taken  # else only an empty folder
        with contextlib.suppress(TrainmasterError):
            self._done(
                "forget the job",
                job,
                lambda dfs: dfs.call(lambda client: client.delete(f"{self.home}/jobs/{job}", whole)),
            )

    def remove(self, job: str) -> None:
        """Remove what is there of a job that is over. Raises StorageFailed."""
        path = f"{self.home}/jobs/{job}"
        self._done("remove the job", f"{self.fs}{path}", lambda dfs: _delete(dfs, path))

    def caches(self) -> list[tuple[str, int, float]]:
        """List what jobs share: URL, bytes, and when it was put there."""

        def listed(dfs: Dfs) -> list[tuple[str, int, float]]:
            entries = []
            for kind in _SHARED:
                for row in _rows(dfs, f"{self.home}/{kind}"):
                    path = f"{self.home}/{kind}/{PurePosixPath(row.path).name}"
                    size = row.length
                    if row.isdir:
                        size = dfs.call(lambda client, path=path: client.get_content_summary(path).length)  # type: ignore[misc]
                    entries.append((f"{self.fs}{path}", size, row.modification_time / 1000))
            return entries

        return self._done("list the caches", f"{self.fs}{self.home}", listed)

    def clear(self, url: str) -> None:
        """Remove one entry of `caches`. Raises StorageFailed."""
        path = url.removeprefix(self.fs)
        if not path.startswith(tuple(f"{self.home}/{kind}/" for kind in _SHARED)):
            raise BadInput(f"{url} is in no cache of ours", anchor="storage-path")
        self._done("clear a cache", url, lambda dfs: _delete(dfs, path))

    # --

    def _done(self, doing: str, place: str, act: Callable[[Dfs], T], fs: str = "") -> T:
        try:
            return act(open_dfs(fs or self.fs)[0])
        except TrainmasterError:
            raise
        except OSError as error:
            raise storage_failed(doing, place, error) from error

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
            with contextlib.suppress(FileExistsError):  # somebody else has put the same
                dfs.call(lambda client: client.rename(draft, path))
        finally:
            with contextlib.suppress(OSError):
                dfs.call(lambda client: client.delete(draft))
        return dfs.call(lambda client: client.get_file_info(path))

    def _write(self, dfs: Dfs, local: Path, draft: str, mode: int) -> str:
        """Upload; the digest of what was."""
        digest = hashlib.sha256()
        writer = opened(dfs, draft, mode)
        try:
            with local.open("rb") as file:
                while piece := file.read(_PIECE):
                    if self.stop.is_set():
                        raise EngineFailed("the upload was broken off", place=str(local), anchor="hdfs")
                    digest.update(piece)
                    dfs.bounded(lambda piece=piece: writer.write(piece))  # type: ignore[misc]
        finally:
            dfs.bounded(writer.close)
        return digest.hexdigest()[:32]


def _look(dfs: Dfs, path: str) -> FileStatus | None:
    try:
        return dfs.call(lambda client: client.get_file_info(path))
    except FileNotFoundError:
        return None


def _public(dfs: Dfs, path: str) -> bool:
    """Whether everyone may read it: only then node managers share it among users (YARN's PUBLIC visibility)."""

    def looked(client: Client) -> bool:
        if not client.get_file_info(path).permission & 0o004:
            return False
        return all(client.get_file_info(str(above)).permission & 0o001 for above in PurePosixPath(path).parents)

    return dfs.call(looked)


def _tidy(dfs: Dfs, folder: str) -> None:
    """Remove the drafts of who was killed, files and folders. A user's file may end as a draft does, and does not begin as one."""
    for row in _rows(dfs, folder):
        name = PurePosixPath(row.path).name
        draft = name.startswith(".") and name.endswith(_DRAFT)
        if draft and time.time() - row.modification_time / 1000 > _DEAD:
            with contextlib.suppress(OSError):
                dfs.call(lambda client, path=row.path: client.delete(path, True))  # type: ignore[misc]


def _rows(dfs: Dfs, folder: str) -> list[FileStatus]:
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
    """Who we are on a cluster that believes it: HADOOP_USER_NAME, else the user of this process."""
    import getpass

    return environ.get("HADOOP_USER_NAME") or getpass.getuser()
