"""The server by which tasks of Spark ask this driver how a job has ended, since nobody else knows it any more.

It is there as long as somebody may ask: to the end of a job that ends well; of one that has failed, to the application's next job that is
asked for results. A reservation server answers, so tasks need its key.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from trainmaster.spark import reservation
from trainmaster.spark.reservation import TFOS_SERVER_HOST, Address, Client, Server

_lock = threading.Lock()
_failed: list[Server] = []  # of jobs that have failed: tasks of an action that is tried again ask why


class EndServer:
    """The server of a job. `client` is for tasks. `words_of_end` tells how the job has ended, "" where it runs on after so many seconds.

    `nodes`: how many may report to the server. Raises OSError where TFOS_SERVER_PORT has no free port.
    """

    def __init__(self, context: Any, words_of_end: Callable[[float], str], nodes: int = 1) -> None:
        from pyspark.cloudpickle import register_pickle_by_value

        register_pickle_by_value(reservation)  # executors have nothing of ours
        with _lock:
            while _failed:
                _failed.pop().stop()
        self.server = Server(nodes, words_of_end)
        self.address = self.server.start()
        host = os.environ.get(TFOS_SERVER_HOST) or context.getConf().get("spark.driver.host")  # executors reach it
        self.client = Client(Address(host, self.address[1], self.address.key))

    def end(self, has_failed: bool) -> None:
        """Note the job's end."""
        if has_failed:
            with _lock:
                _failed.append(self.server)
        else:
            self.server.stop()
