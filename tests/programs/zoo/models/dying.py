"""A worker that dies once, comes back, and may take its time: as the environment says.

DIES: "INDEX STEP" of the worker that dies once, by SIGKILL; where there is DIE, once a path of this pattern is there.
BACK: the path for which it waits when it comes back, before it joins the others.
GO: a path. Until it is there, each batch takes `SLOW` seconds and is told.
"""

import glob
import os
import signal
import time

from trainmaster.runtime import task

SLOW = 0.5  # s

while task().attempt > 1 and not os.path.exists(os.environ.get("BACK", "/")):
    time.sleep(0.02)


def die_once(count: int) -> None:
    index, step = map(int, os.environ.get("DIES", "-1 0").split())
    if (task().index, task().attempt) == (index, 1) and count == step:
        print("dies", flush=True)
        while not glob.glob(os.environ.get("DIE", "/")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
    if not os.path.exists(os.environ.get("GO", "/")):
        print("batch", count, flush=True)
        time.sleep(SLOW)
