"""The server by which processes outside the driver reach a cluster: a command stops its stream, a task asks how it has ended.

A reservation server answers both, so they need its key. It is there as long as somebody may ask: to the end of a job that ends well; of one
that has failed, to the application's next cluster.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from trainmaster.spark import reservation
from trainmaster.spark.reservation import TFOS_SERVER_HOST, Address, Client, Server

if TYPE_CHECKING:
    from trainmaster.spark.nodes.job import FunctionJob

_lock = threading.Lock()
_failed: list[Server] = []  # of jobs that have failed: tasks of an action that is tried again ask why


class ClusterServer:
    """The server of a job; `client` is for tasks. Raises OSError where TFOS_SERVER_PORT has no free port."""

    def __init__(self, job: FunctionJob) -> None:
        from pyspark.cloudpickle import register_pickle_by_value

        register_pickle_by_value(reservation)  # executors have nothing of ours
        with _lock:
            while _failed:
                _failed.pop().stop()
        self.server, self._job = Server(sum(job.tasks.values()), job.words_of_end), job
        self.address = self.server.start()
        host = os.environ.get(TFOS_SERVER_HOST) or job.context.getConf().get("spark.driver.host")  # executors reach it
        self.client = Client(Address(host, self.address[1], self.address.key))

    def end(self) -> None:
        """Note the job's end."""
        if self._job.has_failed:
            with _lock:
                _failed.append(self.server)
        else:
            self.server.stop()
