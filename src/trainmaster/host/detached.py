"""Start a master's process on this machine, detached from its starter: nobody's child, without a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from trainmaster.core.errors import EngineFailed
from trainmaster.host import places

COMMAND = [sys.executable, "-I", "-m", "trainmaster.master"]  # by its name: this folder knows nothing of masters


def start_master(storage: str, payload: Mapping[str, Any]) -> None:
    """Start the master of the job whose directory is `storage`, in a fresh interpreter with its submitter's environment, as a fork has it.

    `payload` holds the facts that no file keeps (see `trainmaster.master.__main__`). Raises EngineFailed where the process ends at once.
    """
    folders = {
        "TRAINMASTER_STATE_DIR": str(places.state_dir()),
        "TRAINMASTER_RUNTIME_DIR": str(places.runtime_dir().parent),
    }
    process = subprocess.Popen(
        [*COMMAND, "--detach", storage], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        start_new_session=True, cwd="/", env={**(payload.get("environ") or os.environ), **folders},
        umask=(payload.get("allowance") or {}).get("umask", -1),
    )  # fmt: skip
    _, errors = process.communicate(json.dumps(payload).encode())
    if process.returncode:
        reason = errors.decode(errors="replace").strip()[-500:]
        raise EngineFailed(f"the master could not be started: {reason}", anchor="master-not-started")
