"""Activate a Python environment, as a shell does: by PATH."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

from trainmaster.host import children

_FIXED = ".trainmaster-fixed"
_WITHIN = 600.0  # s


def activate(root: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with the environment in the directory `root` activated."""
    variables = {
        name: value for name, value in environ.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX")
    }
    variables["PATH"] = f"{root / 'bin'}:{environ.get('PATH', os.defpath)}"
    variables["CONDA_PREFIX" if (root / "conda-meta").is_dir() else "VIRTUAL_ENV"] = str(root)
    return variables


def fix(root: Path) -> None:
    """Adapt an environment packed by conda-pack to the place where it was unpacked, only once. Raises OSError, TimeoutExpired."""
    command = root / "bin" / "conda-unpack"
    if not command.exists() or (root / _FIXED).exists():
        return
    lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / _FIXED).exists():
            done = children.run([str(root / "bin" / "python"), str(command)], timeout=_WITHIN)
            if done.returncode:
                words = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][-200:]
                raise OSError(f"conda-unpack could not fix up the environment in {root}: {words}")
            (root / _FIXED).touch()
    finally:
        os.close(lock)
