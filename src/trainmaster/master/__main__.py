"""`python -I -m trainmaster.master [--detach] STORAGE`, with what is kept in no file as JSON on stdin."""

from __future__ import annotations

import json
import os
import sys


def main() -> int:
    arguments = sys.argv[1:]
    told = json.loads(sys.stdin.buffer.read() or b"{}")
    from trainmaster.engines.local.launch import agents, begin, mark
    from trainmaster.master.main import afterwards, beside, detach, here

    of_agents_here = not (told.get("afterwards") or told.get("engine"))
    if arguments[:1] == ["--detach"]:
        arguments = arguments[1:]
        if master := os.fork():
            if of_agents_here:
                mark(arguments[0], master)
                begin(arguments[0])
            os._exit(0)
    elif of_agents_here:
        begin(arguments[0])
    detach(arguments[0])
    if told.get("afterwards"):
        return afterwards(arguments[0], told)
    if told.get("engine"):
        return beside(arguments[0], told)
    return here(arguments[0], told, agents())


if __name__ == "__main__":
    sys.exit(main())
