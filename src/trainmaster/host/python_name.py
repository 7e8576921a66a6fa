"""A node may have `python3` and no `python` (Debian, Ubuntu), where the submitter's command says `python`.

Programs then find `python` in a directory at the end of their PATH: a script that becomes `python3` and says so in the program's log. An
environment of the job's own goes before it in PATH, so the `python` of that is never hidden.
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
    """Return PATH with a `python` at its end, made in `folder`, where it has `python3` alone."""
    if shutil.which("python", path=path) or not shutil.which("python3", path=path):
        return path
    place = os.path.join(folder, "bin")
    os.makedirs(place, exist_ok=True)
    script = os.path.join(place, "python")
    with open(script, "w") as file:
        file.write(_SCRIPT)
    os.chmod(script, 0o755)
    return f"{path}:{place}"
