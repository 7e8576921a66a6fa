"""The row `netns`: an engine that another package adds (tests/netns_engine). Each test has a cloud of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from conformance.engines import Engine, Submitted, container_process, in_containers
from leftovers import MARK
from parts import need_network_namespaces
from trainmaster_netns.engine import FOLDER, NetnsClient, call
from waiting import until

from trainmaster.core.errors import EngineFailed


class Netns(Engine):
    """A cloud of network namespaces, whose machines see this machine's files."""

    name = "netns"
    interface = "eth0"
    nodes = 2
    lacks: ClassVar = {
        "submitters-place": "a task has a directory, an environment and limits of its own: it finds nothing of its submitter's",
        "local-master": "master and agents are in containers, without sockets, ledger or control groups of this machine",
        "local-data": "inputs, outputs and storage are where every node reaches them: a path of the submitter's is refused",
        "parquet-streams": "an agent, which reads streams, has no pyarrow there: Parquet is read as shards",
        "s3-here": "its machines reach no server of this machine",
        "one-host": "each task has an address of its own, so ports of several may be equal",
        "frameworks": "training takes minutes, and says nothing of an engine that it does not say on other rows",
        "only-engine": "what is tried is not of an engine, and is tried on one",
        "application": "it is about YARN's applications and queues",
    }

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        self._silent: list[str] = []  # machines
        self._cuts: list[threading.Timer] = []
        self.cloud = folder.parent / "cloud"
        self.cloud.mkdir()
        self.share("runtime", Path(os.environ["TRAINMASTER_STATE_DIR"], "runtime"))
        self.share("unpacked", self.cloud / "cache")
        environ = {name: os.environ[name] for name in ("PATH", "HOME", MARK) if name in os.environ}
        command = ["unshare", "--net", sys.executable, "-m", "trainmaster_netns.cloud", str(self.cloud)]
        with (self.cloud / "output").open("wb") as output:
            self._process = subprocess.Popen(command, env=environ, stdout=output, stderr=output)
        until(self._answers, what=(self.cloud / "output").read_text)
        monkeypatch.setenv(FOLDER, str(self.cloud))

    def _answers(self) -> bool:
        try:
            call(str(self.cloud), "applications")
            return True
        except EngineFailed:
            return False

    def place(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def application(self, made: Submitted) -> str:
        return str(json.loads((made.storage / "site.json").read_bytes())["application"])

    def command_lines(self, made: Submitted) -> list[str]:
        return list(in_containers(self.application(made)).values())

    def kill_master(self, made: Submitted) -> None:
        os.kill(container_process(self.application(made), "", "master"), signal.SIGKILL)

    def kill_node(self, node: str) -> None:
        """Switch off the machine's device, of which the cloud knows nothing."""
        self._silent.append(node)
        self._switch(node, "down")

    def cut(self, node: str, seconds: float) -> None:
        """Switch off the machine's device for a while, and return at once."""
        self._switch(node, "down")
        timer = threading.Timer(seconds, self._switch, (node, "up"))
        timer.start()
        self._cuts.append(timer)

    @contextmanager
    def cut_between(self, made: Submitted, node: str, other: str) -> Iterator[None]:
        """Have two machines reach everybody but each other until the end of the block: each has the other's hardware address wrong."""
        pids = [container_process(self.application(made), name, "agent") for name in (node, other)]
        addresses = [self._within(pid, "ip -4 -o addr show eth0").split()[3].partition("/")[0] for pid in pids]
        pairs = list(zip(pids, reversed(addresses), strict=True))
        for pid, peer in pairs:
            self._within(pid, f"ip neigh replace {peer} lladdr 02:00:00:00:00:01 nud permanent dev eth0")
        yield
        for pid, peer in pairs:
            self._within(pid, f"ip neigh del {peer} dev eth0")

    @staticmethod
    def _within(pid: int, command: str) -> str:
        """Run a command in the network of a process, and return what it prints."""
        return subprocess.check_output(["nsenter", f"--net=/proc/{pid}/ns/net", *command.split()], text=True)

    def revive(self) -> None:
        for node in self._silent:
            self._switch(node, "up")

    def _switch(self, node: str, state: str) -> None:
        network = f"--net=/proc/{self._process.pid}/ns/net"
        done = subprocess.run(["nsenter", network, "ip", "link", "set", node, state], capture_output=True, check=False)
        is_gone = b"Cannot find device" in done.stderr  # the machine ended with its container
        assert done.returncode == 0 or is_gone, done.stderr

    def client(self) -> Any:
        return NetnsClient()

    def close(self) -> None:
        for timer in self._cuts:
            timer.cancel()
        try:
            for made in self.jobs:
                application = self.application(made)
                if made.run.status()["state"] in ("pending", "running"):  # a failed test has left it
                    self.client().end(application)
                until(
                    lambda name=application: not in_containers(name), what=lambda name=application: in_containers(name)
                )
        finally:
            self._process.terminate()
            self._process.wait(60)


@pytest.fixture
def netns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Netns]:
    """A cloud for tests that are of this engine alone."""
    need_network_namespaces()
    folder = tmp_path / "place"
    folder.mkdir()
    engine = Netns(folder, monkeypatch)
    try:
        yield engine
    finally:
        engine.close()
