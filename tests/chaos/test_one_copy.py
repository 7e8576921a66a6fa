"""The master is killed, and agents and programs, and tasks finish, also while there is no master, in an order that is drawn: each task runs
once all the time, what has finished does not run again, and nothing leaks.

What runs is read off the engine's own list of containers and off the machine's processes, not off the job's log. On YARN the containers of
two attempts of an application were confused: after one death of a master and one of an agent three copies of a task ran, and containers
leaked.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from chaos.faults import KillMaster
from conformance.engines import Engine, Local, Submitted, container_process, python, workers, yarn_on
from conformance.test_kubernetes_faults import kubernetes_on
from hadoop import own_hadoop
from waiting import until

from trainmaster.clusters.hadoop import Settings, pages
from trainmaster.host import processes
from trainmaster.host.linux import lives, look

LIMIT = 240.0  # s for a kill to be followed; reached by a failure alone
WAIT = python("""
    import os, time
    print("ready", flush=True)
    while not os.path.exists("{folder}/go-" + os.environ["TRAINMASTER_INDEX"]):
        time.sleep(0.05)
""")


@attrs.define
class Row:
    """An engine, and its own list of what it runs."""

    engine: Any
    tasks = 4

    def containers(self, job: Submitted) -> list[str]:
        """Return the names of the containers that the engine has for tasks of the job, as the job's events name them."""
        raise NotImplementedError

    def agent(self, job: Submitted, task: str) -> int:
        """Return the process of a task's agent."""
        raise NotImplementedError

    def kill_master(self, job: Submitted) -> None:
        self.engine.kill_master(job)

    def left_behind(self, job: Submitted) -> Any:
        """Return what the engine still has of a job that has ended."""
        return self.containers(job)

    def holders(self, job: Submitted) -> Counter[str]:
        """Count the containers of each task; one that the job's log does not name stands for itself."""
        tasks = {event["container"]: event["task"] for event in job.told("granted")}
        return Counter(tasks.get(name, name) for name in self.containers(job))


class LocalRow(Row):
    def holders(self, job: Submitted) -> Counter[str]:
        return Counter(mark.task for mark in processes.living(job.id, processes.AGENT))

    def left_behind(self, job: Submitted) -> Any:
        return processes.living(job.id)

    def agent(self, job: Submitted, task: str) -> int:
        return next(mark.process.pid for mark in processes.living(job.id, processes.AGENT) if mark.task == task)

    def kill_master(self, job: Submitted) -> None:
        until(lambda: KillMaster().strike(job.id, random.Random()), LIMIT, what="a master to kill")


class YarnRow(Row):
    def containers(self, job: Submitted) -> list[str]:
        """Of the ResourceManager, which counts what was granted and never started too, and of the nodes."""
        cluster, application = self.engine.cluster, self.engine.application(job)
        report = pages.ask(cluster.place.ports["resourcemanager.http"], f"/ws/v1/cluster/apps/{application}")
        attempts = pages.ask(
            cluster.place.ports["resourcemanager.http"], f"/ws/v1/cluster/apps/{application}/appattempts"
        )
        if not report or not attempts:
            return ["the ResourceManager does not answer"]
        masters = {attempt["containerId"] for attempt in attempts["appAttempts"]["appAttempt"]}
        of = application.removeprefix("application_")
        names = [
            path.name
            for path in cluster.folder.glob(f"node-*/local/usercache/*/appcache/{application}/container_*")
            if f"_{of}_" in path.name and path.name not in masters and _has_process(path)
        ]
        count = report["app"]["runningContainers"] - 1  # its master's
        return names + ["granted, and never started"] * (count - len(names))

    def left_behind(self, job: Submitted) -> Any:
        """Of the nodes, and of the ResourceManager's counts, for it lists no container of an application that has ended."""
        counts = pages.ask(self.engine.cluster.place.ports["resourcemanager.http"], "/ws/v1/cluster/metrics")
        return self.containers(job) or not counts or counts["clusterMetrics"]["containersAllocated"]

    def agent(self, job: Submitted, task: str) -> int:
        container = [event["container"] for event in job.told("granted") if event["task"] == task][-1]
        return container_process(self.engine.application(job), container, "agent")


class KubernetesRow(Row):
    tasks = 2  # a pod takes seconds on a small machine

    def containers(self, job: Submitted) -> list[str]:
        pods = [pod for pod in self.engine.pods(job) if pod["metadata"]["labels"].get("trainmaster/part") != "master"]
        return [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") in ("Pending", "Running")]

    def agent(self, job: Submitted, task: str) -> int:
        container = [event["container"] for event in job.told("granted") if event["task"] == task][-1]
        (pod,) = (pod for pod in self.engine.pods(job) if pod["metadata"]["name"] == container)
        return min(self.engine._processes(pod))


def _has_process(folder: Path) -> bool:
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.readlink(f"/proc/{entry}/cwd").startswith(f"{folder}"):
                return True
        except OSError:  # it ended meanwhile
            continue
    return False


@pytest.fixture(
    params=[
        "local",
        pytest.param("yarn", marks=[pytest.mark.xdist_group("hadoop"), pytest.mark.full]),
        pytest.param("kubernetes", marks=[pytest.mark.xdist_group("kubernetes"), pytest.mark.full]),
    ]
)
def row(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Row]:
    if request.param == "yarn":
        with (
            own_hadoop(Settings(nodes=2, properties={"yarn.resourcemanager.am.max-attempts": "1000"})) as cluster,
            yarn_on(cluster, tmp_path, monkeypatch) as engine,
        ):
            yield YarnRow(engine)
    elif request.param == "kubernetes":
        cluster, server = request.getfixturevalue("on_kubernetes"), request.getfixturevalue("s3_for_pods")
        with kubernetes_on(cluster, server, tmp_path, monkeypatch) as engine:
            yield KubernetesRow(engine)
    else:
        folder = tmp_path / "place"
        folder.mkdir()
        local = Local(folder)
        try:
            yield LocalRow(local)
        finally:
            local.close()


def programs(engine: Engine) -> dict[int, str]:
    """Return pid -> task of the programs that run on this machine, where all nodes are."""
    mark, tasks = f"{engine.folder}/go-".encode(), {}
    for entry in os.listdir("/proc"):
        try:
            if not entry.isdigit() or mark not in Path(f"/proc/{entry}/cmdline").read_bytes():
                continue
            variables = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile
            continue
        for variable in variables:
            if variable.startswith(b"TRAINMASTER_INDEX="):
                tasks[int(entry)] = f"worker:{variable.partition(b'=')[2].decode()}"
    return tasks


def kill(pid: int) -> None:
    """Kill a process, and see it dead: else what is looked at next may still be from before."""
    process = look(pid)
    os.kill(pid, signal.SIGKILL)
    until(lambda: process is None or not lives(pid, process.start), what=f"the death of {pid}")


@attrs.define
class Play:
    row: Row
    job: Submitted
    choice: random.Random
    left: list[str]  # the tasks that were not told to finish
    finished: dict[str, int] = attrs.field(factory=dict)  # the others, and the attempts of theirs that ran then
    struck: list[str] = attrs.field(factory=list)

    def kill_master(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.struck.append("master")
        epoch = self.job.status()["epoch"]
        self.row.kill_master(self.job)
        meanwhile()
        self.job.until_status("the next master", lambda status: status["epoch"] > epoch, LIMIT)

    def finish_without_master(self) -> None:
        task = self.draw()
        attempt = self.job.task(task)["attempt"]
        self.kill_master(lambda: self.finish(task, attempt))

    def kill_agent(self) -> None:
        self.end_attempt("agent", lambda task: kill(self.row.agent(self.job, task)))

    def kill_program(self) -> None:
        def kill_programs(task: str) -> None:
            for pid, owner in programs(self.row.engine).items():
                if owner == task:
                    kill(pid)

        self.end_attempt("program", kill_programs)

    def end_attempt(self, what: str, kill_it: Callable[[str], None]) -> None:
        """Kill what runs a task, and return when the master has begun its next attempt: until then all may look as before."""
        task = self.choice.choice(self.left)
        self.struck.append(f"{what} of {task}")
        before = self.job.task(task)["attempt"]
        kill_it(task)
        until(lambda: self.job.task(task)["attempt"] > before, LIMIT, what=lambda: (self.struck, self.job.said()))

    def finish_one(self) -> None:
        task = self.draw()
        self.finish(task, self.job.task(task)["attempt"])

    def draw(self) -> str:
        return self.left.pop(self.choice.randrange(len(self.left)))

    def finish(self, task: str, attempt: int) -> None:
        self.finished[task] = attempt
        self.struck.append(f"end of {task}")
        (self.row.engine.folder / f"go-{task.partition(':')[2]}").touch()

    def settle(self) -> None:
        """Return when each task that is left runs, in one container, and there is no other."""
        expected = Counter(self.left)

        def settled() -> bool:
            copies = Counter(programs(self.row.engine).values())
            assert max(copies.values(), default=0) <= 1, (self.struck, copies, self.job.events())
            if copies != expected or self.row.holders(self.job) != expected:
                return False
            states = {task["task"]: task["state"] for task in self.job.status()["tasks"]}
            return all(states[task] == "running" for task in self.left)

        until(
            settled,
            LIMIT,
            what=lambda: (self.struck, programs(self.row.engine), self.row.holders(self.job), self.job.said()),
        )

    def strikes(self) -> list[Callable[[], None]]:
        """Draw the order of all that is done; the last task finishes after it."""
        each = [self.kill_agent, self.kill_program] * (self.row.tasks // 2)
        ends = [self.finish_one] * (self.row.tasks - 2)
        drawn = [self.kill_master, self.finish_without_master, *each, *ends]
        self.choice.shuffle(drawn)
        return [self.kill_master, *drawn]  # the first one in any case: what follows meets containers of two masters


def test_each_task_runs_once_whatever_is_killed_after_the_master(row: Row, seeds: Any) -> None:
    for seed in seeds(1):
        runs_once(row, seed)


def runs_once(row: Row, seed: int) -> None:
    for old in row.engine.folder.glob("go-*"):
        old.unlink()
    command = [word.replace("{folder}", str(row.engine.folder)) for word in WAIT]
    job = row.engine.submit(
        workers(command, row.tasks, restart={"scope": "task", "limit": 1000}), timeouts={"grace": "5m"},
        engines={**row.engine.own().get("engines", {}), "yarn": {"attempts": 1000}},
    )  # fmt: skip
    play = Play(row, job, random.Random(seed), [f"worker:{index}" for index in range(row.tasks)])
    play.settle()
    for strike in play.strikes():
        strike()
        play.settle()
    play.finish_one()
    job.succeeded(LIMIT)
    assert {task["task"]: task["attempt"] for task in job.status()["tasks"]} == play.finished, play.struck
    until(lambda: not programs(row.engine), what="the programs' end")
    until(lambda: not row.left_behind(job), LIMIT, what=lambda: ("the containers' end", row.left_behind(job)))
