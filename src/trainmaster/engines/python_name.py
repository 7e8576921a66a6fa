"""Offer `python` on a node that has only `python3` (Debian, Ubuntu), for a submitter's command that says `python`.

Programs then find `python` in a directory at the end of their PATH: a script that becomes `python3` and says so in the program's log. An
environment of the job's own comes earlier in PATH, so its `python` is never hidden.
"""

from __future__ import annotations

import os
import shutil

_SCRIPT = """\
#!/bin/sh
echo "trainmaster: this node has no python, so python3 runs: $(command -v python3)" >&2
exec python3 "$@"
"""


def path_with_python(path: str, folder: str) -> str:
    """Return PATH. Where it has only `python3`, make a `python` in `folder` and append its directory."""
    if shutil.which("python", path=path) or not shutil.which("python3", path=path):
        return path
    place = os.path.join(folder, "bin")
    os.makedirs(place, exist_ok=True)
    script = os.path.join(place, "python")
    with open(script, "w") as file:
        file.write(_SCRIPT)
    os.chmod(script, 0o755)
    return f"{path}:{place}"
