"""Parameter servers on the driver's machine, as child processes of the driver.

They are not tasks of the job: their addresses go to its programs as a fact, and they begin once the job's tasks run, with the addresses of
these. When the tasks form anew, the servers restart. The kernel ends them with the thread that started them, which lives as long as the
job.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from trainmaster.host.locks import scratch
from trainmaster.spark.nodes.entry import BEGIN, FOLDER, PARENT, PATH

if TYPE_CHECKING:
    from trainmaster.spark.nodes.job import FunctionJob

_GRACE = 5.0  # s from SIGTERM to SIGKILL
_LOG = logging.getLogger(__name__)


class DriverServers:
    """So many servers, at ports of the driver's host that are held until `stop`."""

    def __init__(self, count: int, host: str) -> None:
        from trainmaster.host.ports import Ports

        self._ports = Ports()
        self.addresses = [f"{host}:{port}" for port in self._ports.take(count)]
        self._children: list[subprocess.Popen[bytes]] = []
        self._folder = scratch("trainmaster-ps-")

    def restart(self, job: FunctionJob) -> None:
        """Start them, with the present addresses of the job's tasks. A server that fails ends the job."""
        self._end_children()
        if not (place := self._folder / FOLDER).exists():
            job.write(place)
        cluster = json.loads(job.cluster())
        cloud = {"environment": "cloud"} if "master" in cluster else {}  # as such programs expect
        for index, address in enumerate(self.addresses):
            role = {
                "TRAINMASTER_ROLE": "ps", "TRAINMASTER_INDEX": str(index), "TRAINMASTER_PORT_TENSORFLOW": address.rpartition(":")[2],
                "TF_CLUSTER_DEF": json.dumps(cluster),
                "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "ps", "index": index}, **cloud}),
                PARENT: str(os.getpid()), PATH: os.pathsep.join(map(os.path.abspath, sys.path)),
            }  # fmt: skip
            child = subprocess.Popen(
                [sys.executable, "-c", BEGIN],
                cwd=self._folder,
                env={**os.environ, **role},
                stdin=subprocess.DEVNULL,
            )
            self._children.append(child)
            threading.Thread(target=self._reap, args=(index, child, job), daemon=True).start()

    def stop(self) -> None:
        """End them, and free their ports."""
        self._end_children()
        self._ports.release()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _reap(self, index: int, child: subprocess.Popen[bytes], job: FunctionJob) -> None:
        status = child.wait()
        if status and child in self._children:
            ended = f"died of {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
            job.fail(f"ps:{index}, on the driver's machine, {ended}: what it printed is in the driver's own output")

    def _end_children(self) -> None:
        children, self._children = self._children, []
        for child in children:
            child.terminate()
        for child in children:
            try:
                child.wait(_GRACE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
