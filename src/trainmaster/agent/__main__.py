"""`python -I -m trainmaster.agent`: the agent of one container; its spec comes as JSON on stdin."""

from __future__ import annotations

import json
import os
import sys

from trainmaster.agent.main import run


def main() -> None:
    spec = json.load(sys.stdin)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.exit(run(spec))


main()
