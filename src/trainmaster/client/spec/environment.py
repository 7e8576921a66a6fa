"""`environment:` on this machine: which interpreter and libraries the programs find first.

A path is used as it is. An archive, and what a requirements file asks for, becomes a directory of the state directory, named by its content
and, where packages are installed, by the interpreter that they are for; it is made once and shared by the jobs that name the same. The
programs find it by PATH, as in a shell in which it was activated.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import attrs

from trainmaster.client.jobs.places import state_dir, storage_errors
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import Environment

_URL = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_WHOLE = ".whole"
_INSTALL_TIMEOUT = 1800.0  # s for an installation
_WHICH = "import sys; print(sys.version, sys.base_prefix)"  # its path says little: it may be a shim that starts another one by its name


def activated(environment: Environment, base: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with the environment activated, or as it is without one. Raises BadInput, naming the key. Images are for engines."""
    if environment.path:
        root = base / os.path.expanduser(environment.path)
    elif environment.archive:
        archive = base / os.path.expanduser(environment.archive)
        root = make_once("archive", archive, "", lambda place: _unpack(archive, place))
    elif environment.requirements:
        requirements = base / os.path.expanduser(environment.requirements)
        python = shutil.which("python3", path=environ.get("PATH")) or sys.executable
        version = run_command("requirements", [python, "-I", "-c", _WHICH], environ)
        root = make_once(
            "requirements", requirements, version, lambda place: _install(requirements, place, python, environ)
        )
    else:
        return dict(environ)
    if not root.is_dir():
        raise environment_error("path", str(root), "there is no such directory", "check the path")
    if not (root / "bin").is_dir():
        key = "path" if environment.path else "archive"
        raise environment_error(
            key,
            str(root),
            "it has no directory bin, so it is not an environment",
            "name one made by conda, venv or their pack tools",
        )
    from trainmaster.agent.attempt.activation import activate

    return activate(root, environ)


def placed(environment: Environment, base: Path, is_local: bool) -> Environment:
    """Return `environment` with absolute paths. Raises BadInput where a path of this machine is missing. `is_local`: programs run here."""
    paths = {key: getattr(environment, key) for key in ("path", "archive", "requirements")}
    paths = {
        key: path and (path if _URL.match(path) else str(base / os.path.expanduser(path)))
        for key, path in paths.items()
    }
    key = next((key for key, path in paths.items() if path), "path")  # the first is used, as below
    if is_local and key == "archive" and _URL.match(paths[key]):
        raise environment_error(
            key, paths[key], "on this machine an archive is a file, not a URL", "fetch it, and name its path"
        )
    is_there = os.path.isdir if key == "path" else os.path.isfile
    ours = paths[key] and (is_local or key != "path") and (is_local or not _URL.match(paths[key]))
    if ours and not is_there(paths[key]):
        raise environment_error(
            key, paths[key], f"there is no such {'directory' if key == 'path' else 'file'}", "check the path"
        )
    return attrs.evolve(
        environment,
        **{key: path and (path if _URL.match(path) else os.path.normpath(path)) for key, path in paths.items()},
    )


def make_once(key: str, source: Path, extra: str, make: Callable[[Path], None]) -> Path:
    """Return the directory made of `source` and `extra`: made now, or by an earlier job. `key`: of `environment:`, for messages."""
    try:
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
    except OSError as error:
        raise environment_error(key, str(source), f"it cannot be read: {error.strerror}", "check the path") from error
    digest.update(extra.encode())
    place = state_dir() / "environments" / digest.hexdigest()[:32]
    with _lock_file(place.with_suffix(".lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two processes that need the same, one makes it
        if not (place / _WHOLE).exists():
            print(f"making the environment of {source}, once for all jobs that name it", file=sys.stderr, flush=True)
            shutil.rmtree(place, ignore_errors=True)  # begun by a process that died
            make(place)
            (place / _WHOLE).touch()
        os.utime(place)  # its last use, for `tm prune`
    return place


def _lock_file(path: Path) -> IO[str]:
    with storage_errors("keep the environment", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path.open("w")


def _unpack(archive: Path, place: Path) -> None:
    from trainmaster.data.archives import unpack

    unpack(str(archive), str(place), absolute_links=True)
    fix = place / "bin" / "conda-unpack"  # of conda-pack: paths inside are still those of the place where it was packed
    if fix.exists():
        run_command("archive", [str(place / "bin" / "python"), str(fix)], os.environ)


def _install(requirements: Path, place: Path, python: str, environ: Mapping[str, str]) -> None:
    """Make a virtual environment with the required packages, at the path where it stays: it knows its own path.

    `-I`: no module of the present directory is taken for one of Python's.
    """
    uv = shutil.which("uv", path=environ.get("PATH"))
    run_command("requirements", [python, "-I", "-m", "venv", str(place)], environ)
    own_python = str(place / "bin" / "python")
    install = (
        [uv, "pip", "install", "--python", own_python] if uv else [own_python, "-I", "-m", "pip", "install", "--quiet"]
    )
    run_command("requirements", [*install, "-r", str(requirements)], environ)


def run_command(key: str, command: list[str], environ: Mapping[str, str]) -> str:
    """Run a command; returns its stdout. Raises BadInput where it fails."""
    try:
        return subprocess.run(
            command, check=True, capture_output=True, text=True, env=dict(environ), timeout=_INSTALL_TIMEOUT
        ).stdout
    except (subprocess.SubprocessError, OSError) as error:
        last_lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        raise environment_error(
            key,
            " ".join(command),
            f"it failed: {last_lines[0] if last_lines else error}",
            "run it by hand to see all of it",
        ) from error


def environment_error(key: str, value: str, why: str, mend: str) -> BadInput:
    """Return the error about `environment.<key>`."""
    return BadInput(
        f"the environment cannot be used: {why}", place=f"environment.{key}: {value}", mend=mend, anchor="environment"
    )
