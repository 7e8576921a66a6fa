"""An environment of Python, as a shell has it once it is activated: found by PATH."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_FIXED = ".trainmaster-fixed"
_WITHIN = 600.0  # s


def activate(root: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with the environment in the directory `root` activated."""
    made = {name: value for name, value in environ.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX")}
    made["PATH"] = f"{root / 'bin'}:{environ.get('PATH', os.defpath)}"
    made["CONDA_PREFIX" if (root / "conda-meta").is_dir() else "VIRTUAL_ENV"] = str(root)
    return made


def fix(root: Path) -> None:
    """Have what conda-pack packed know the place where it was unpacked; once, whoever comes first. Raises CalledProcessError, OSError."""
    command = root / "bin" / "conda-unpack"
    if not command.exists() or (root / _FIXED).exists():
        return
    lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / _FIXED).exists():
            subprocess.run(
                [str(root / "bin" / "python"), str(command)], check=True, capture_output=True, timeout=_WITHIN
            )
            (root / _FIXED).touch()
    finally:
        os.close(lock)
