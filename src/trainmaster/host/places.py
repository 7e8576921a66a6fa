"""The directories and files of the local engine.

*State* outlives the machine's boot: the jobs' storage, and one file `live/<job>@<node>` for each job that this node has begun and not
finished, so that the remains of a crash are found without reading any log. *Runtime* dies with the boot: sockets, lock files, the ledger.
It is a private directory (mode 0700, owned by us, on a local file system) with one folder for each boot and process-id namespace, since a
process id has no meaning outside its own. It is not under `XDG_RUNTIME_DIR`, which is removed at the user's last logout while jobs go on,
and which a cron job or another login would not share. A socket's path must fit 107 bytes (unix(7)).
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainmaster.core.errors import BadInput
from trainmaster.core.foreign import json_in

# File systems whose locks and shared maps are not the machine's own (mountinfo's names).
REMOTE = frozenset(
    (
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
        "glusterfs",
        "pvfs2",
        "fuse.sshfs",
    )
)
_STATE = "state"  # in a job's folder
_SHARED = ("devices", "ports", "spark")
_ABANDONED = 60.0  # s; a job's directory in which no process has registered by then is left over
_SOCKET_PATH = 107
_LONGEST_SOCKET = "agents.sock.4194304"  # while the socket is being made, its maker's pid follows its name


def state_dir() -> Path:
    """Return `$TRAINMASTER_STATE_DIR`, else `$XDG_STATE_HOME/trainmaster`, else `~/.local/state/trainmaster`; not created."""
    if configured := os.environ.get("TRAINMASTER_STATE_DIR"):
        return Path(configured).absolute()
    if home := os.environ.get("XDG_STATE_HOME"):
        return Path(home).absolute() / "trainmaster"
    return home_dir("TRAINMASTER_STATE_DIR") / ".local" / "state" / "trainmaster"


def cache_dir() -> Path:
    """Return `$XDG_CACHE_HOME/trainmaster`, else `~/.cache/trainmaster`; not created."""
    folder = os.environ.get("XDG_CACHE_HOME")
    return (Path(folder).absolute() if folder else home_dir("XDG_CACHE_HOME") / ".cache") / "trainmaster"


def home_dir(instead: str) -> Path:
    """Return the user's home directory. Raises BadInput where there is none; `instead` is the variable that makes it unnecessary."""
    try:
        return Path.home()
    except RuntimeError:
        raise BadInput(
            f"there is no home directory: HOME is not set, and user {os.getuid()} has no entry in /etc/passwd",
            mend=f"set HOME, or {instead}",
            anchor="no-home",
        ) from None


JOB_FILE, SITE_FILE, TOKEN_FILE, CERTIFICATE_FILE = (
    "job.json",
    "site.json",
    "token",
    "certificate",
)  # in a job's directory


def job_storage(job: str) -> Path:
    """Return the job's storage where `storage` is not set; not created."""
    return state_dir() / "jobs" / job


def check_owner(job: str) -> None:
    """Raise BadInput where another user made the job's directory, or could have: its files say which commands its master runs as us."""
    folder = job_storage(job)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        reason = "is not a directory"
    elif status.st_uid != os.getuid():
        reason = f"belongs to user {status.st_uid}, not to {os.getuid()}"
    elif status.st_mode & 0o022:
        reason = f"may be written by others (mode {status.st_mode & 0o777:o})"
    else:
        return
    raise BadInput(
        f"the job {job} is not taken up: its directory {folder} {reason}",
        mend="its owner's next tm command takes it up; a directory of your own needs mode 700", anchor="foreign-job",
    )  # fmt: skip


def runtime_dir() -> Path:
    """Return this boot's folder in `$TRAINMASTER_RUNTIME_DIR`, else in `/tmp/trainmaster-<uid>`; created, private.

    Raises BadInput where the directory cannot be trusted.
    """
    return _checked(runtime_root(), boot_key())


def runtime_root() -> Path:
    """Return `$TRAINMASTER_RUNTIME_DIR`, else `/tmp/trainmaster-<uid>`; not created."""
    root = os.environ.get("TRAINMASTER_RUNTIME_DIR")
    return Path(root).absolute() if root else Path(f"/tmp/trainmaster-{os.getuid()}")


@functools.lru_cache(maxsize=8)
def _checked(root: Path, key: str) -> Path:
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
    except OSError as error:
        raise _unusable(root, f"it cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise _unusable(root, "it is not a directory")
    if status.st_uid != os.getuid():
        raise _unusable(root, f"it belongs to user {status.st_uid}, not to {os.getuid()}")
    if status.st_mode & 0o077:
        raise _unusable(root, f"others may enter it (mode {status.st_mode & 0o777:o}, 700 is needed)")
    if (kind := file_system(root)) in REMOTE:
        raise _unusable(root, f"it is on a network file system ({kind})")
    (root / key).mkdir(mode=0o700, exist_ok=True)
    return root / key


def _unusable(root: Path, reason: str) -> BadInput:
    return BadInput(
        f"the runtime directory {root} cannot be used: {reason}",
        mend="set TRAINMASTER_RUNTIME_DIR to a private directory on a local disk",
        anchor="runtime-directory",
    )


def file_system(path: Path) -> str:
    """Return the type of the file system that holds `path`, "" where it is unknown."""
    best, kind, real = "", "", os.path.realpath(path)
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        mounted, _, source = line.partition(" - ")
        point = mounted.split()[4].replace("\\040", " ")
        if len(point) >= len(best) and (real == point or real.startswith(point.rstrip("/") + "/")):
            best, kind = point, source.split()[0]
    return kind


def boot_id() -> str:
    """Return the id that the kernel gave this boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        raise BadInput("this machine has no /proc of Linux, which the local engine needs", anchor="linux") from error


def boot_key() -> str:
    """Return a short name for this boot and process-id namespace: the beginning of the boot's id, the namespace's inode."""
    return f"{boot_id()[:8]}-{os.stat('/proc/self/ns/pid').st_ino:08x}"


def is_boot_key(name: str) -> bool:
    """Tell whether a name could come from `boot_key` in some boot."""
    return re.fullmatch("[0-9a-f]{8}-[0-9a-f]{8}", name) is not None


def node_name() -> str:
    """Return this machine's name in events."""
    return os.uname().nodename


def shared_dir(name: str) -> Path:
    """Return the folder in the runtime directory that all jobs share, one of `_SHARED`; created. The sweep leaves it alone."""
    if name not in _SHARED:
        raise ValueError(f"{name} is not a shared folder")
    path = runtime_dir() / name
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def jobs_with_dir() -> list[str]:
    """Return the jobs that have a folder in the runtime directory."""
    with os.scandir(runtime_dir()) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name not in _SHARED]


def job_dir(job: str) -> Path:
    """Return the job's folder in the runtime directory; created."""
    path = runtime_dir() / job
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def note_state_dir(job: str) -> None:
    """Note in the job's folder of which state directory it is: those of all of a user's state directories share this machine."""
    with contextlib.suppress(FileExistsError):
        (job_dir(job) / _STATE).symlink_to(state_dir())


def other_state_dir(job: str) -> str:
    """Return the state directory of a job where it is not this process's, else ""."""
    try:
        noted = os.readlink(runtime_dir() / job / _STATE)
    except FileNotFoundError:
        return ""
    return "" if noted == str(state_dir()) else noted


def socket_path(job: str, name: str) -> Path:
    """Return `<runtime>/<job>/<name>.sock`. Raises BadInput where that is longer than a socket's path may be."""
    return _fitting(job_dir(job) / f"{name}.sock")


def check_sockets(job: str) -> None:
    """Raise BadInput where a socket of the job would have too long a path."""
    _fitting(runtime_dir() / job / _LONGEST_SOCKET)


def _fitting(path: Path) -> Path:
    if (length := len(os.fsencode(path))) > _SOCKET_PATH:
        raise BadInput(
            f"the path of a socket would have {length} bytes, {_SOCKET_PATH} are allowed: {path}",
            mend="set TRAINMASTER_RUNTIME_DIR to a shorter path, or shorten the job's name",
            anchor="runtime-directory",
        )
    return path


def remove_job_dir(job: str) -> None:
    """Remove the job's folder in the runtime directory: the last act of its master, or of the sweep."""
    import shutil  # it is slow to import, and a command that finds nothing to remove does without

    shutil.rmtree(runtime_dir() / job, ignore_errors=True)


def abandoned(path: Path) -> bool:
    """Tell whether a job's folder without any process is too old to be of a job that is just beginning."""
    try:
        return time.time() - path.stat().st_mtime > _ABANDONED
    except FileNotFoundError:
        return False


def live_jobs() -> list[str]:
    """Return the jobs that this node has begun and not finished, across boots."""
    tail = f"@{node_name()}"
    try:
        return sorted(name.removesuffix(tail) for name in os.listdir(state_dir() / "live") if name.endswith(tail))
    except FileNotFoundError:
        return []


def set_live(job: str, live: bool) -> None:
    """Note that this node has begun the job, or has finished it."""
    path = _live_file(job)
    if live:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch()
    else:
        path.unlink(missing_ok=True)


def note_kill(job: str, kill: Mapping[str, str]) -> None:
    """Note that the job is to be ended by whichever master comes next: who first was to do so may die, or hang, before its log has it."""
    path = _live_file(job)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(json.dumps(dict(kill)))
    draft.replace(path)


def noted_kill(job: str) -> dict[str, str] | None:
    """Return what `note_kill` has noted of a job that this node has not finished; None where there is nothing.

    Damaged content is a kill too: nothing else is ever written there.
    """
    try:
        content = _live_file(job).read_bytes()
        noted = json_in(content) if content else None
    except OSError:
        return None
    except ValueError:
        noted = {}
    return None if noted is None else {"by": "a user", "why": "", **(noted if isinstance(noted, dict) else {})}


def _live_file(job: str) -> Path:
    return state_dir() / "live" / f"{job}@{node_name()}"


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Let only one process at a time in, over the whole runtime directory."""
    descriptor = os.open(runtime_dir().parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def hold_runtime_dir() -> int:
    """Return a descriptor that keeps a cleaner of temporary files out while it is open (tmpfiles.d(5), "Age": a shared BSD lock)."""
    descriptor = os.open(runtime_dir(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # a cleaner that works in it now leaves soon
    return descriptor


def others_can_read(path: str) -> bool:
    """Tell whether users other than its owner and group can read a file, by the modes of it and the folders above. Raises OSError."""
    file = Path(path).resolve()
    return bool(file.stat().st_mode & stat.S_IROTH) and all(
        folder.stat().st_mode & stat.S_IXOTH for folder in file.parents
    )
