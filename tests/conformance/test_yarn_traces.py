"""What the real engine tells, and in which order, is what the simulated engine may tell: recorded here, and as it was recorded before.

The engine runs in the test, as the master of an application that has no container for one; its containers wait for a file and end. What a
run records is put where RECORD_TRACES says; `tests/simulation/traces` is made so, and replayed without a cluster.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from unmanaged import its_token, killed, submitted
from waiting import until_async

from trainmaster.clusters.hadoop import Cluster
from trainmaster.core.containers import Request
from trainmaster.core.spec.reading import job_from
from trainmaster.engines.containers import Containers
from trainmaster.engines.yarn.master.engine import YarnMaster
from trainmaster.hadoop import yarn
from trainmaster.hadoop.conf import load, rpc_protection
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.security.auth import Simple
from trainmaster.simulation.traces import reproduce, told

pytestmark = [pytest.mark.xdist_group("hadoop"), pytest.mark.full]

LIMIT = 240.0
SMALL, LARGE, NEVER = 128 << 20, 3000 << 20, 1 << 40  # bytes of a container; of the second, each node has room for one
Key = tuple[str, int]


@attrs.define
class Recording:
    """An engine, and all that was asked of it and told by it."""

    containers: Containers
    cluster: Cluster
    folder: Path
    sizes: dict[Key, int] = attrs.field(factory=dict)
    asked: list[Key] = attrs.field(factory=list)
    rows: list[dict[str, Any]] = attrs.field(factory=list)

    async def open(self) -> None:
        self.rows.append({"do": "open", "keys": []})
        self.containers.begin(1)
        await asyncio.shield(self.containers.opening)

    async def ask(self, *keys: Key, memory: int = SMALL) -> None:
        """The whole set of what is not granted yet."""
        self.rows.append({"do": "ask", "keys": [list(key) for key in keys]})
        made = []
        for task, serial in keys:
            size = self.sizes.setdefault((task, serial), memory)
            made.append(Request(task, serial, "worker", int(task.partition(":")[2]), size, 0.05))
        self.containers.ask(made)

    async def release(self, key: Key) -> None:
        self.rows.append({"do": "release", "keys": [list(key)]})
        self.containers.release(*key)

    def happens(self, what: str, key: Key | None = None) -> None:
        self.rows.append({"happens": what, **({"key": list(key)} if key else {})})

    def exits(self, key: Key) -> None:
        """The container's command ends, with status 7."""
        self.happens("exit", key)
        self.file(key).touch()

    def file(self, key: Key) -> Path:
        return self.folder / f"{key[0].replace(':', '-')}-{key[1]}"

    async def until(self, what: str, key: Key | None = None) -> dict[str, Any]:
        wanted = {"tells": what, **({"key": list(key)} if key else {})}

        def there() -> dict[str, Any] | None:
            return next((row for row in self.rows if wanted.items() <= row.items()), None)

        found = await until_async(there, LIMIT, what=lambda: f"{wanted} in {self.rows}")
        assert found is not None
        return found

    async def listen(self) -> None:
        await until_async(lambda: hasattr(self.containers, "opening"))
        async for change in self.containers.changes():
            fields = {
                name: getattr(change, name) for name in ("status", "reason", "detail") if getattr(change, name, None)
            }
            self.rows.append({**told(change), **fields})


def recorded(cluster: Cluster, folder: Path, scene: Callable[[Recording], Awaitable[None]]) -> list[dict[str, Any]]:
    async def run() -> list[dict[str, Any]]:
        conf, who = load(cluster.conf_dir), Simple("tester")
        job = job_from({"roles": {"worker": {"command": "true", "replicas": 4}}})
        async with yarn.ResourceManager.of(conf, who) as manager:
            application = await submitted(manager)

            def context(spec: Any) -> y.ContainerLaunchContextProto:
                file = shlex.quote(str(folder / f"{spec['task'].replace(':', '-')}-{spec['serial']}"))
                return y.ContainerLaunchContextProto(command=[f"until test -e {file}; do sleep 0.05; done; exit 7"])

            engine = YarnMaster(
                job, lambda request, devices: {"task": request.task, "serial": request.serial}, context,
                lambda token: yarn.Scheduler.of(conf, token), await its_token(manager, application), yarn.ResourceManager.of(conf, who),
                rpc_protection(conf),
            )  # fmt: skip
            containers = Containers(engine, lambda: ())
            made = Recording(containers, cluster, folder)
            listening = asyncio.create_task(made.listen())
            try:
                await made.open()
                await scene(made)
                listening.cancel()  # the ends that follow are of no scene
                await containers.close("succeeded")
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
                await killed(manager, application)
            return made.rows

    return asyncio.run(run())


A, B, C = ("worker:0", 1), ("worker:1", 1), ("worker:2", 1)


async def life(made: Recording) -> None:
    """Two are granted, one ends by itself, the other is given back; the first is asked for again."""
    await made.ask(A)
    await made.ask(A, B)
    await made.until("granted", A)
    await made.until("granted", B)
    made.exits(A)
    await made.until("exited", A)
    await made.release(B)
    await made.until("exited", B)
    again = ("worker:0", 2)
    await made.ask(again)
    await made.until("granted", again)


async def no_room(made: Recording) -> None:
    """The third waits until the first has ended; one more is given back while it waits."""
    await made.ask(A, B, memory=LARGE)
    for key in (A, B):
        await made.until("granted", key)
    await made.ask(C, ("worker:3", 1), memory=LARGE)
    await made.until("waiting")
    await made.release(("worker:3", 1))
    await made.until("exited", ("worker:3", 1))
    made.exits(A)
    await made.until("exited", A)
    await made.until("granted", C)


async def too_large(made: Recording) -> None:
    """What is never granted is refused, and all else goes on."""
    made.happens("refuse")
    await made.ask(A, memory=NEVER)
    await made.until("refused", A)
    await made.ask(B)
    await made.until("granted", B)


async def restarted(made: Recording) -> None:
    """The ResourceManager is killed and comes back: it is told all again, and what ran goes on."""
    await made.ask(A, B)
    for key in (A, B):
        await made.until("granted", key)
    made.cluster.daemon("resourcemanager").kill()
    await made.ask(C)
    made.cluster.daemon("resourcemanager").start()
    await made.until("granted", C)
    made.exits(B)
    await made.until("exited", B)


async def node_lost(made: Recording) -> None:
    """A node dies, and what was on it is lost; it is asked for anew."""
    await made.ask(A, B, memory=LARGE)  # one on each node
    for key in (A, B):
        await made.until("granted", key)
    made.happens("lost", A)
    node = next(number for number in (1, 2) if made.cluster.node_id(number) == made.containers.book._entries[A].node)
    made.cluster.daemon(f"nodemanager-{node}").kill()
    await made.until("lost", A)
    made.cluster.daemon(f"nodemanager-{node}").start()
    again = ("worker:0", 2)
    await made.ask(again, memory=LARGE)
    await made.until("granted", again)
    made.file(A).touch()  # what the dead node's container still was


SCENES = {"life": life, "no-room": no_room, "too-large": too_large, "restarted": restarted, "node-lost": node_lost}


@pytest.mark.parametrize("name", SCENES)
def test_the_simulated_engine_can_do_what_the_real_one_does(hadoop: Cluster, tmp_path: Path, name: str) -> None:
    trace = recorded(hadoop, tmp_path, SCENES[name])
    if folder := os.environ.get("RECORD_TRACES"):
        lines = ",\n ".join(json.dumps(row) for row in trace)
        Path(folder, f"{name}.json").write_text(f"[{lines}]\n")
    reproduce(trace)
