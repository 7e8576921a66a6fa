"""Run the agent of one container (`python -I -m trainmaster.agent`). Its spec comes as JSON on stdin."""

from __future__ import annotations

import json
import os
import sys

from trainmaster.agent.main import run


def main() -> None:
    spec = json.load(sys.stdin)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.exit(run(spec))


main()
