"""A storage behind a URL: objects of S3, Google or Azure, or any other that fsspec opens (HDFS has a storage of its own, `hdfs`).

Objects are put whole and cannot be appended to. The log needs *exclusive* creation, and filesystems differ in it:

- obstore, s3fs, gcsfs, adlfs put with a condition (`If-None-Match: *`, `ifGenerationMatch=0`), which the server
  decides;
- fsspec's own default only looks first, which two writers at once both pass; obstore's fsspec class ignores the mode
  in silence.

Some S3-compatible servers ignore the condition too, so the first `create` tries it out on an object of its own. Where
the condition is ignored, a *claim* takes its place: a writer puts an object with a unique name beside the one to create,
then lists; a writer that sees another claim withdraws. The writer with the later put lists after both puts, so at most one wins (both may
lose, and try the next name). The store must only show in a listing what was put before it. A claim stays beside the file that it won.
"""

from __future__ import annotations

import atexit
import functools
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.log.storage import Appender, Entry, check_size, checked, largest, storage_failed

CLAIM = ".claim-"
_OBSTORE = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "abfs", "abfss": "abfss"}
_PATIENCE = (
    20  # seconds of tries within one request; then the caller says that it waits for the storage, and tries again
)
HAND_OVER = 0.02  # s
_CONDITIONAL = ("s3fs", "gcsfs", "adlfs")  # packages whose pipe_file(mode="create") is the server's decision
_ONE = threading.Lock()  # memory:// belongs to this process alone, and its put looks first and then writes


class ObjectStorage:
    """A storage of the files under a URL."""

    appends = False
    droppable: int | None = None
    local = False

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._fs, self._root = open_filesystem(self.url)
        self._create: Callable[[str, bytes], bool] | None = None

    def _at(self, path: str) -> str:
        return f"{self._root}/{checked(path)}" if path else self._root

    def _name(self, path: str) -> str:
        return f"{self.url}/{path}" if path else self.url

    def entries(self, folder: str) -> list[Entry]:
        return [entry for entry in self._all_entries(folder) if CLAIM not in entry.name]

    def _all_entries(self, folder: str) -> list[Entry]:
        at = self._at(folder)
        with _storage_errors("list a folder", self._name(folder)):
            self._fs.invalidate_cache(at)
            try:
                rows = self._fs.ls(at, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
        entries = []
        for row in rows:
            name = str(row["name"]).rstrip("/").rsplit("/", 1)[-1]
            if name and str(row["name"]).rstrip("/") != at and not name.startswith("."):
                entries.append(Entry(name, int(row.get("size") or 0), row["type"] == "directory"))
        return sorted(entries, key=lambda entry: entry.name)

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes | None:
        if size is None:
            return self.read_rest(path, offset, largest(path))
        with _storage_errors("read", self._name(path)):
            try:
                return bytes(self._fs.cat_file(self._at(path), start=offset, end=offset + size)) if size else b""
            except FileNotFoundError:
                return None

    def read_rest(self, path: str, offset: int, limit: int) -> bytes | None:
        """Read an object from `offset` on; None where there is none. Raises Damaged where more than `limit` bytes follow."""
        with _storage_errors("read", self._name(path)):
            self._fs.invalidate_cache(self._at(path))
            try:
                size = int(self._fs.info(self._at(path))["size"]) - offset
            except FileNotFoundError:
                return None
        check_size(size, limit, self._name(path))
        return self.read(path, offset, max(size, 0))

    def create(self, path: str, data: bytes) -> bool:
        with _storage_errors("create", self._name(path)):
            return self._exclusive_put()(path, data)

    def replace(self, path: str, data: bytes, durable: bool = True) -> None:
        with _storage_errors("write", self._name(path)):
            self._fs.pipe_file(self._at(path), data)

    def appender(self, path: str) -> Appender:
        raise BadInput(f"{self._name(path)} cannot be appended to", anchor="storage-failed")

    def sync(self, path: str) -> None:
        """Do nothing: an object that was put is durable."""

    def settle(self, path: str) -> bool:
        """Return True: no object is ever open."""
        return True

    def remove(self, path: str) -> None:
        with _storage_errors("remove", self._name(path)):
            try:
                self._fs.rm_file(self._at(path))
            except FileNotFoundError:
                return

    def exists(self, path: str) -> bool:
        with _storage_errors("look at", self._name(path)):
            self._fs.invalidate_cache(self._at(path))
            try:  # fsspec's own `exists` says no of a server that does not answer
                self._fs.info(self._at(path))
            except FileNotFoundError:
                return False
            return True

    def other_writers(self, own: str) -> str:
        return ""  # the rights of the bucket tell

    def gone(self) -> bool:
        return False

    # -- exclusive creation --

    @property
    def conditional(self) -> bool:
        with _storage_errors("try out conditional puts", self.url):
            return self._exclusive_put() != self._claim

    def _exclusive_put(self) -> Callable[[str, bytes], bool]:
        if self._create is None:
            self._create = self._choose_exclusive_put()
        return self._create

    def _choose_exclusive_put(self) -> Callable[[str, bytes], bool]:
        package = _package_of_filesystem(self._fs)
        if package == "fsspec" and self._fs.protocol == "memory":
            return self._put_in_memory
        if package in ("obstore", *_CONDITIONAL):
            put = self._put_obstore if package == "obstore" else self._put_new
            if self._heeds_condition(put):
                return put
        return self._claim

    def _heeds_condition(self, put: Callable[[str, bytes], bool]) -> bool:
        """Tell whether the server heeds the condition: of two equal puts only the first may succeed."""
        trial = f"exclusive-{secrets.token_hex(6)}.trial"
        try:
            return put(trial, b"") and not put(trial, b"")
        except Exception as error:
            if not _is_unsupported(error):
                raise
            return False
        finally:
            self.remove(trial)

    def _put_new(self, path: str, data: bytes) -> bool:
        try:
            self._fs.pipe_file(self._at(path), data, mode="create")
        except FileExistsError:
            return False
        return True

    def _put_in_memory(self, path: str, data: bytes) -> bool:
        with _ONE:
            return self._put_new(path, data)

    def _put_obstore(self, path: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        bucket, key = self._fs._split_path(self._at(path))
        try:
            obstore.put(self._fs._construct_store(bucket), key, data, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def _claim(self, path: str, data: bytes) -> bool:
        folder, _, name = path.rpartition("/")
        own_claim = f"{name}{CLAIM}{secrets.token_hex(8)}"

        def has_rivals() -> bool:
            names = {entry.name for entry in self._all_entries(folder)} - {own_claim}
            return any(entry_name == name or entry_name.startswith(name + CLAIM) for entry_name in names)

        if has_rivals():
            return False
        claim = f"{folder}/{own_claim}" if folder else own_claim
        self._fs.pipe_file(self._at(claim), b"")
        if has_rivals():
            self.remove(claim)
            return False
        self._fs.pipe_file(self._at(path), data)
        return True


def open_filesystem(url: str) -> tuple[Any, str]:
    scheme, _, rest = url.partition("://")
    try:
        if scheme.lower() in _OBSTORE and (store := _open_obstore(_OBSTORE[scheme.lower()])):
            return store, rest
        from fsspec.core import url_to_fs

        fs, root = url_to_fs(url, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        package = _package_of(scheme.lower(), error) if isinstance(error, ImportError) else ""
        mend = f"pip install {package}" if package else "use a path, or a URL that fsspec knows"
        raise BadInput(f"cannot open {url}: {error}", place=url, mend=mend, anchor="storage-url") from error
    except Exception as error:
        raise storage_failed("open", url, error) from error
    return fs, str(root).rstrip("/")


def check_scheme(url: str, place: str) -> None:
    """Raise BadInput, naming `place`, where no installed library opens such a URL. Nothing is opened, and nobody is asked."""
    from importlib.util import find_spec

    from trainmaster.log.dfs import SCHEMES
    from trainmaster.log.storage import local_path

    scheme = url.partition("://")[0].lower()
    if local_path(url) is not None or scheme == "configmaps":
        return
    package = "hdfs-native" if scheme in SCHEMES else "obstore" if scheme in _OBSTORE else ""
    if package and find_spec(package.replace("-", "_")) is not None:
        return
    mend = f"pip install {package}"
    if scheme not in SCHEMES:
        from fsspec.registry import get_filesystem_class

        try:
            get_filesystem_class(scheme)
            return
        except ImportError as error:
            package = package or _package_of(scheme, error)
            mend = f"pip install {package}" if package else str(error)
        except ValueError:
            from difflib import get_close_matches

            near = get_close_matches(scheme, {*SCHEMES, *_OBSTORE, "http", "https", "file"}, 1)
            mend = f"did you mean {near[0]}://?" if near else "use a path, hdfs://, s3://, gs:// or az://"
            raise BadInput(
                f"nothing opens URLs that begin with {scheme}://",
                place=f"{place}: {url}",
                mend=mend,
                anchor="storage-url",
            ) from None
    raise BadInput(f"what opens {scheme}:// is not installed", place=f"{place}: {url}", mend=mend, anchor="storage-url")


def _package_of(scheme: str, error: ImportError) -> str:
    """Return the package that fsspec lacks for a scheme: what its extra of this name asks for, else the module that is not there; "" where
    neither is known. fsspec's own words name several packages, or none.
    """
    from importlib.metadata import requires

    extra = scheme.removesuffix("s") if scheme == "https" else scheme
    rows = [row.partition(";") for row in requires("fsspec") or ()]
    packages = [
        re.split(r"[^\w.-]", name)[0]
        for name, _, marker in rows
        if re.search(rf"extra == ['\"]{re.escape(extra)}['\"]", marker)
    ]
    return " ".join(packages) or str(getattr(error.__cause__, "name", None) or "").partition(".")[0].replace("_", "-")


def _open_obstore(protocol: str) -> Any:
    try:
        from obstore.fsspec import FsspecStore
    except ImportError:
        return None
    import os
    from datetime import timedelta

    store: Any = FsspecStore  # its overloads require the protocol as a literal
    endpoint = (
        os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
        or os.environ.get("AWS_ENDPOINT")
        or ""
    )
    _hand_over_at_exit()
    options = {"allow_http": True} if protocol == "s3" and endpoint.startswith("http://") else {}
    return store(
        protocol, client_options=options, retry_config={"max_retries": 4, "retry_timeout": timedelta(seconds=_PATIENCE)}
    )


@functools.cache  # once
def _hand_over_at_exit() -> None:
    """Wait a moment at the end of the process for threads of obstore.

    A thread that hands over an answer releases the interpreter's lock in the middle of that. If it comes back for the lock while the
    interpreter shuts down, the thread is ended, on which Rust aborts the process (before CPython 3.14).
    """
    atexit.register(time.sleep, HAND_OVER)


def _package_of_filesystem(fs: Any) -> str:
    return type(fs).__module__.partition(".")[0]


def _is_unsupported(error: Exception) -> bool:
    """Tell whether a server refused the condition itself, rather than being out of reach."""
    return isinstance(error, NotImplementedError | TypeError) or any(
        word in f"{type(error).__name__} {error}" for word in ("NotImplemented", "NotSupported", "not supported", "501")
    )


@contextmanager
def _storage_errors(doing: str, url: str) -> Iterator[None]:
    try:
        yield
    except TrainmasterError:
        raise
    except Exception as error:
        raise storage_failed(doing, url, error) from error
