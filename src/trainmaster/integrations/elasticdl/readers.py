"""The number of records of a model file's own reader, which the job of several workers must say: `records://COUNT/SIZE`.

The reader is the user's code, so it is asked in the Python that the programs have on this machine, by `trainmaster.zoo.data.counting`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from trainmaster.agent.attempt.environ import runtime_path
from trainmaster.core.errors import BadInput
from trainmaster.host import children

LIMIT = 300.0  # s; the reader may count the records of large data


def counted_url(words: Sequence[str], data: str) -> str:
    """Return `records://COUNT/SIZE` for the worker's command line, whose words behind `python -m trainmaster.zoo` these are.

    `data`: the input's name. Raises BadInput where the reader cannot be asked here.
    """
    python = shutil.which("python") or shutil.which("python3") or sys.executable
    with tempfile.TemporaryDirectory(prefix="trainmaster-") as folder:
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), runtime_path(folder)]))
        command = [python, "-m", "trainmaster.zoo.data.counting", *words]
        try:
            process = children.run(command, env={**os.environ, "PYTHONPATH": path}, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise _unknown(f"it has not answered for {LIMIT:.0f} s", data) from None
    try:
        answer = json.loads(process.stdout.splitlines()[-1])
        return f"records://{answer['records']}/{answer['size']}"
    except (ValueError, LookupError, TypeError):
        lines = process.stderr.strip().splitlines() or [f"{python} ended with status {process.returncode}"]
        message = next((line for line in lines if line.startswith("error: ")), lines[-1])
        raise _unknown(message.removeprefix("error: "), data) from None


def _unknown(why: str, data: str) -> BadInput:
    return BadInput(
        f"workers share the records of the custom_data_reader, and it does not say here how many there are: {why}",
        place="flag --custom_data_reader",
        mend=f"say it: --set inputs.{data}.url=records://COUNT/SIZE, or use one worker",
        anchor="model-zoo",
    )
