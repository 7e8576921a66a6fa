"""A worker that dies once.

DIES in its environment: "INDEX STEP" of the worker that dies once, by SIGKILL; where there is DIE, once a path of this pattern is there.
"""

import glob
import os
import signal
import time

from trainmaster.runtime import task


def die_once(count: int) -> None:
    index, step = map(int, os.environ.get("DIES", "-1 0").split())
    if (task().index, task().attempt) == (index, 1) and count == step:
        print("dies", flush=True)
        while not glob.glob(os.environ.get("DIE", "/")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
