"""HDFS by hdfs-native: one client per NameNode, errors that name cause and mend, and no wait without a bound.

Every error of the library becomes an OSError here: FileNotFoundError, FileExistsError, or a DfsError, whose `mend` and `anchor`
go into the message to the user. hdfs-native tells most causes as text with a Java class in it; the table `CAUSES` reads that.

Bounds. A refused or unknown NameNode is given up after about 5 s (hdfs-native by Hadoop's own defaults: minutes), for the callers try
again and say so meanwhile. A wait for a NameNode or DataNode that holds its connection open and says nothing would never end, so
each call runs in a separate thread and is abandoned after its limit.

A client starts threads of its own and does not survive a fork: each process makes one, when first needed. Its calls release the
interpreter's lock: while a file was written in 29 ms, another thread never stood still for more than 3 ms.
"""

from __future__ import annotations

import concurrent.futures
import errno
import os
import queue
import re
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from trainmaster.core.errors import BadInput

if TYPE_CHECKING:
    from hdfs_native import Client

    from trainmaster.hadoop.conf import Configuration

T = TypeVar("T")

SCHEMES = ("hdfs", "viewfs")
PORT = 8020  # of a NameNode, where an address names none
LIMIT = 90.0  # s for a call; a write waits up to 60 s for a DataNode's answer (hdfs-native's ACK_READ_TIMEOUT) and then tries another
SETTINGS = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "250",
    "dfs.client.failover.sleep.max.millis": "2000",
}
_WHO = (
    "HADOOP_CONF_DIR",
    "HADOOP_HOME",
    "HADOOP_USER_NAME",
    "HADOOP_PROXY_USER",
    "HADOOP_TOKEN_FILE_LOCATION",
    "KRB5CCNAME",
)
_NEWER = "bring newer ones: tm renew JOB"
# Errors of a container, which has tokens only, and passes over those that have ended.
_LOGINS = ("NoSASLMechanism", "GSSAPIError")
_RPC = re.compile(r'RPCError\("([\w.$]+)", "(.*)', re.DOTALL)
_OS_ERROR = re.compile(r"^(.*) \(os error (\d+)\)")

_LOG_IN = "see your tickets: klist; get a new one: kinit"
# Words in a Java class or in hdfs-native's text -> errno, what they mean ("{told}": the first line of the error's text), what to do.
CAUSES: tuple[tuple[str, int, str, str], ...] = (
    ("SafeModeException", errno.EAGAIN, "the NameNode {where} is in safe mode, and takes no changes",
     "wait until it has left it; `hdfs dfsadmin -safemode get` tells"),
    ("AccessControlException", errno.EACCES, "{told}", "ask for the permission, or use another place or user"),
    ("StandbyException", errno.EAGAIN, "no NameNode of {where} is active", "see `hdfs haadmin -getAllServiceState`"),
    ("RetriableException", errno.EAGAIN, "the NameNode {where} is still starting", "wait until it has started"),
    ("QuotaExceeded", errno.EDQUOT, "a quota of HDFS is spent: {told}", "remove something there, or ask for more"),
    ("could only be written to 0", errno.EAGAIN, "no DataNode takes the file now", "see `hdfs dfsadmin -report`"),
    ("PathIsNotEmptyDirectoryException", errno.ENOTEMPTY, "{told}", "remove what is in it first"),
    ("ParentNotDirectoryException", errno.ENOTDIR, "{told}", "use another path"),
    ("InvalidPathException", errno.EINVAL, "HDFS does not take this name: {told}", "rename it; HDFS allows no ':'"),
    ("MaxDirectoryItemsExceeded", errno.EDQUOT, "{told}", "use another folder"),
    ("InvalidToken", errno.EACCES, "the delegation token is not valid (any more): {told}", "bring newer ones: tm renew JOB"),
    ("NoSASLMechanism", errno.EACCES, "{where} takes no login that we have", _LOG_IN),
    ("GSSAPIError", errno.EACCES, "there is no Kerberos ticket that {where} takes: none at all, or one that has ended", _LOG_IN),
    ("SASLError", errno.EACCES, "{where} refuses us: {told}", _LOG_IN),
    ("is not allowed to impersonate", errno.EACCES, "{told}", "unset HADOOP_PROXY_USER"),
    ("All DataNodes failed", errno.EIO, "no DataNode that has the file answers", "see `hdfs dfsadmin -report`"),
    ("BlocksNotFound", errno.EIO, "no DataNode that has the file answers", "see `hdfs dfsadmin -report`"),
    ("All nodes failed for write", errno.EIO, "the DataNodes that took the file are lost to us", "see `hdfs dfsadmin -report`"),
    ("Block writer is closed", errno.EIO, "the DataNodes that took the file are lost to us", "see `hdfs dfsadmin -report`"),
    ("NotReplicatedYetException", errno.EAGAIN, "no DataNode has confirmed the file's blocks yet", "see `hdfs dfsadmin -report`"),
    ("Failed to complete file", errno.EAGAIN, "no DataNode has confirmed the file", "see `hdfs dfsadmin -report`"),
    ("ChecksumError", errno.EIO, "what the DataNode has does not match its checksum", "see `hdfs fsck`"),
)  # fmt: skip


class DfsError(OSError):
    """A failure of HDFS, or of the way to it."""

    def __init__(self, number: int, words: str, mend: str, anchor: str = "storage-failed") -> None:
        super().__init__(number, words)
        self.mend, self.anchor = mend, anchor


class Dfs:
    """The file system behind the beginning of a URL, as in hdfs://host:port. Paths are absolute."""

    def __init__(self, url: str) -> None:
        try:
            from hdfs_native import Client
        except ImportError as error:
            problem = f"cannot open {url}: hdfs-native is not installed"
            raise BadInput(problem, place=url, mend="pip install hdfs-native", anchor="storage-url") from error

        self.url = url
        self._drafts: deque[str] = deque()
        authority, settings, self._mounts = resolve(url)
        self.where = authority
        umask = settings.get("fs.permissions.umask-mode", "")
        self.umask = int(umask, 8) if re.fullmatch(r"0?[0-7]{1,3}", umask) else 0o022
        scheme = url.partition("://")[0].lower()
        try:
            self.client: Client = Client(f"{scheme}://{authority}", settings)
        except Exception as error:
            raise translated(error, self.where) from error

    def discard(self, *drafts: str) -> None:
        """Remove drafts of files whose writing failed; those that stay, because HDFS is away, are tried again at the next call."""
        self._drafts.extend(drafts)
        while self._drafts:
            draft = self._drafts.popleft()
            try:
                self.call(lambda client, draft=draft: client.delete(draft, False))  # type: ignore[misc]
            except FileNotFoundError:
                continue
            except OSError:
                self._drafts.append(draft)
                return

    def check(self, path: str) -> None:
        """Raise BadInput where nothing is mounted at a path of viewfs."""
        from trainmaster.hadoop.conf import mounted

        if self._mounts is not None and mounted(self._mounts, path or "/") is None:
            raise BadInput(
                f"nothing is mounted at {path or '/'} of viewfs://{self.where}", place=f"{self.url}{path}",
                mend=f"use a path below one of {', '.join(sorted(self._mounts))}",
                anchor="hadoop-conf",
            )  # fmt: skip

    def call(self, act: Callable[[Client], T], limit: float = LIMIT) -> T:
        """Return the result of `act`. Raises FileNotFoundError, FileExistsError and other OSErrors."""
        return self._bounded(lambda: act(self.client), limit, self.where)

    def bounded(self, act: Callable[[], T], limit: float = LIMIT) -> T:
        """Do as `call`, for an act on an open file, which DataNodes answer."""
        return self._bounded(act, limit, f"{self.where}, or a DataNode of it,")

    def _bounded(self, act: Callable[[], T], limit: float, peer: str) -> T:
        try:
            return within(act, limit)
        except TimeoutError as error:
            raise DfsError(
                errno.ETIMEDOUT, f"{self.where} has not answered for {limit:.0f} s", "see whether it runs"
            ) from error
        except BaseException as error:
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise translated(error, self.where, peer) from error
            raise


def open_dfs(url: str) -> tuple[Dfs, str]:
    """Return the file system of a URL, and the path in it, without a "/" at its end. Raises BadInput, or DfsError."""
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    root = f"{scheme.lower()}://{authority}"
    key = (os.getpid(), root, *(os.environ.get(name) for name in _WHO))
    with _LOCK:
        if key not in _OPEN:
            _OPEN[key] = Dfs(root)
        dfs, dfs_path = _OPEN[key], (slash + path).rstrip("/")
    dfs.check(dfs_path)
    return dfs, dfs_path


def is_dfs(url: str) -> bool:
    return url.partition("://")[0].lower() in SCHEMES and "://" in url


_OPEN: dict[tuple[object, ...], Dfs] = {}  # those of a parent process stay, untouched: their threads are gone
_LOCK = threading.RLock()


def translated(error: BaseException, where: str, peer: str = "") -> OSError:
    """Turn an error of hdfs-native, or of the system, into one that says what to do. `peer`: the server called, if not the NameNode."""
    text = str(error)
    match = _RPC.search(text)
    java, detail = (
        (match[1], match[2].removesuffix('")').replace("\\n", "\n").replace('\\"', '"')) if match else ("", text)
    )
    detail = _first_line(detail)
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, detail)
    if isinstance(error, FileExistsError):
        return FileExistsError(errno.EEXIST, detail)
    if os.environ.get("HADOOP_TOKEN_FILE_LOCATION") and any(words in text for words in _LOGINS):
        return DfsError(errno.EACCES, f"the delegation tokens for {where} have ended", _NEWER)
    for words, number, meaning, mend in CAUSES:
        if words in java or words in text:
            anchor = "ticket" if mend is _LOG_IN else "storage-failed"
            return DfsError(number, meaning.format(where=where, told=detail), mend, anchor)
    if isinstance(error, NotImplementedError):
        return DfsError(errno.ENOTSUP, f"hdfs-native cannot do this: {detail}", "use another place")
    if isinstance(error, OSError):
        system = _OS_ERROR.match(detail)
        reason = system[1].lower() if system else (error.strerror or detail)
        number = int(system[2]) if system else (error.errno or errno.EIO)
        mend = "see whether it runs and can be reached from here; HADOOP_CONF_DIR says where it is"
        return DfsError(number, f"{peer or where} cannot be reached: {reason}", mend)
    return DfsError(errno.EIO, f"{where}: {detail or type(error).__name__}", "see the NameNode's log")


def _first_line(text: str) -> str:
    first = text.strip().split("\n", 1)[0].split("\tat ", 1)[0]
    return first.strip()[:300]


def resolve(url: str) -> tuple[str, dict[str, str], dict[str, str] | None]:
    """Return the NameNode's authority for a URL without a path, the settings for the client, and the mounts of viewfs. Raises BadInput
    where no NameNode is known by that name.
    """
    from trainmaster.hadoop import conf as hadoop_conf
    from trainmaster.hadoop.errors import ConfError

    scheme, _, authority = url.partition("://")
    settings: dict[str, str] = {}
    services: dict[str, object] = {}
    conf = None
    default, reason = "", "HADOOP_CONF_DIR is not set"
    try:
        if any(os.environ.get(name) for name in ("HADOOP_CONF_DIR", "HADOOP_HOME")):
            conf = hadoop_conf.load()
            _check_principal(conf)
            settings = hadoop_conf.hdfs_native_settings(conf)
            services = dict(hadoop_conf.name_services(conf))
            default = hadoop_conf.default_fs(conf)
            reason = f"{conf.folder} does not name it"
    except ConfError as error:
        raise BadInput(error.message, place=url, mend=error.mend, anchor="hadoop-conf") from error
    if not authority and default.partition("://")[0] in SCHEMES:
        authority = default.partition("://")[2].partition("/")[0]
    if not authority:
        raise BadInput(
            f"{url}/ names no NameNode, and {reason}",
            place=url,
            mend="set HADOOP_CONF_DIR to the directory of the cluster's core-site.xml, or write hdfs://host:port/path",
            anchor="hadoop-conf",
        )
    if scheme == "viewfs":
        table = hadoop_conf.mounts(conf, authority) if conf is not None else {}
        if not table:
            raise BadInput(
                f"there is no mount table {authority} of viewfs: "
                + ("HADOOP_CONF_DIR is not set" if conf is None else f"{conf.folder} has none by that name"),
                place=url, mend=f"set fs.viewfs.mounttable.{authority}.link./FOLDER in core-site.xml", anchor="hadoop-conf",
            )  # fmt: skip
        # hdfs-native requires a place for paths that are mounted nowhere; `check` refuses them.
        rest = (
            {f"fs.viewfs.mounttable.{authority}.linkFallback": next(iter(table.values()))}
            if table and "" not in table
            else {}
        )
        return authority, settings | rest | SETTINGS, table
    if authority in services or ":" in authority:
        return authority, settings | SETTINGS, None
    try:
        socket.getaddrinfo(authority, PORT)
    except OSError as error:
        raise BadInput(
            f"{authority} is neither a host that can be found nor a nameservice: {reason}",
            place=url,
            mend="set HADOOP_CONF_DIR to the directory of the cluster's hdfs-site.xml, or correct the URL",
            anchor="hadoop-conf",
        ) from error
    return f"{authority}:{PORT}", settings | SETTINGS, None


def _check_principal(conf: Configuration) -> None:
    """Raise ConfError where a secure cluster's configuration does not name its NameNodes' principal. hdfs-native never compares it: without
    the name nobody does.
    """
    from trainmaster.hadoop.conf import is_secure
    from trainmaster.hadoop.errors import ConfError

    key = "dfs.namenode.kerberos.principal"
    if is_secure(conf) and not conf.get(key):
        raise ConfError(
            f"the NameNode may be anybody: {key} is not set in {conf.folder}",
            f"set {key} in hdfs-site.xml as the cluster has it",
        )


# -- bounded calls --


def within(act: Callable[[], T], limit: float) -> T:
    """Return the result of `act`, run in a separate thread. Raises TimeoutError after `limit` seconds; the thread is then abandoned."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            result = act()
        except BaseException as error:  # noqa: BLE001  a panic of Rust is not an Exception
            future.set_exception(error)
        else:
            future.set_result(result)

    try:
        work = _IDLE.pop()
    except IndexError:
        work = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(work,), daemon=True, name="hdfs").start()
    work.put(run)
    return future.result(limit)


def at_work() -> bool:
    """Tell whether calls run at this moment; at the end of a process those are calls that nobody waits for any more."""
    return bool(_WORKING)


_WORKING: set[int] = set()  # threads with a call
_IDLE: list[queue.SimpleQueue[Callable[[], None]]] = []  # of threads that wait for work
os.register_at_fork(after_in_child=_IDLE.clear)
os.register_at_fork(after_in_child=_WORKING.clear)


def _serve(work: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        run = work.get()
        _WORKING.add(threading.get_ident())
        run()
        _WORKING.discard(threading.get_ident())
        del run
        _IDLE.append(work)
