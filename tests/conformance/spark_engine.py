"""The row `spark`: tasks of a Spark application, on a real standalone cluster of two workers; the application is the whole run's."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, ClassVar

from conformance.engines import Engine, Submitted, in_containers
from conformance.kubernetes_engine import masters_here
from spark import Driver
from waiting import until

from trainmaster.host import places


class Spark(Engine):
    """A Spark application, whose executors see this machine's files. The master is a process beside the driver."""

    name = "spark"
    nodes = 2
    lacks: ClassVar = {
        "submitters-place": "a task has a directory, an environment and limits of its own: it finds nothing of its submitter's",
        "local-master": "agents are in Spark's tasks, without sockets, ledger or control groups of this machine",
        "local-data": "inputs, outputs and storage are where every node reaches them: a path of the submitter's is refused",
        "parquet-streams": "an agent, which reads streams, has no pyarrow there: Parquet is read as shards",
        "s3-here": "its executors reach no server of this machine",
        "nodes": "the loss of a worker is the loss of its executors, which tests of this engine alone try",
        "second-master": "master, driver and tasks live and die together",
        "logs-of-the-stopped": "its jobs name no storage: of an attempt that was stopped no log is kept",
        "numpy": "its Python has pyspark and nothing else",
        "frameworks": "training takes minutes, and says nothing of an engine that it does not say on other rows",
        "only-engine": "what is tried is not of an engine, and is tried on one",
        "application": "it is about YARN's applications and queues",
    }

    def __init__(self, folder: Path, driver: Driver) -> None:
        super().__init__(folder)
        self.driver = driver
        self.share("runtime", Path(os.environ["TRAINMASTER_STATE_DIR"], "runtime"))
        self._bridges = places.runtime_dir() / "spark"
        self._bridges.symlink_to(driver.sockets)

    def own(self) -> dict[str, Any]:
        return {"engines": {"spark": {"application": self.driver.application}}}

    def place(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def application(self, made: Submitted) -> str:
        return str(json.loads((made.storage / "site.json").read_bytes())["application"])

    def command_lines(self, made: Submitted) -> list[str]:
        return list(in_containers(f"trainmaster-{made.id}-").values())

    def kill_master(self, made: Submitted) -> None:
        for pid in masters_here(made.id):
            os.kill(pid, signal.SIGKILL)

    def client(self) -> Any:
        from trainmaster.engines.spark.client import SparkClient

        return SparkClient()

    def close(self) -> None:
        for made in self.jobs:
            if made.run.status()["state"] in ("pending", "running"):  # a failed test has left it
                self.client().end(self.application(made))
            until(lambda made=made: not self.command_lines(made), what=lambda made=made: self.command_lines(made))
        self._bridges.unlink()
