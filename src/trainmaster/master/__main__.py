"""Run `python -I -m trainmaster.master [--detach] STORAGE`; stdin has, as JSON, the settings that no file keeps."""

from __future__ import annotations

import json
import os
import sys


def main() -> int:
    arguments = sys.argv[1:]
    payload = json.loads(sys.stdin.buffer.read() or b"{}")
    from trainmaster.engines.local.launch import agents, begin, mark
    from trainmaster.master.main import close_job, detach, run_locally, run_on_client

    is_local = not (payload.get("afterwards") or payload.get("engine"))
    if arguments[:1] == ["--detach"]:
        arguments = arguments[1:]
        if master := os.fork():
            if is_local:
                mark(arguments[0], master)
                begin(arguments[0])
            os._exit(0)
    elif is_local:
        begin(arguments[0])
    detach(arguments[0])
    if payload.get("afterwards"):
        return close_job(arguments[0], payload)
    if payload.get("engine"):
        return run_on_client(arguments[0], payload)
    return run_locally(arguments[0], payload, agents())


if __name__ == "__main__":
    sys.exit(main())
