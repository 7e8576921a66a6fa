"""The local engine with real processes: what a master is told, and that nothing of a container is left when it is told so."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
from pathlib import Path

import pytest
from local_machine import GIB, Master, agents, forked, holding, master, of, pid_of, request
from waiting import until_async

from trainmaster.core.errors import EngineFailed
from trainmaster.core.machine.stimuli import ContainerExited, Granted, Refused, Waiting
from trainmaster.engines.local import agents as agents_of
from trainmaster.engines.local import template
from trainmaster.engines.local.ledger import Ledger
from trainmaster.engines.local.queue import Capacity
from trainmaster.host import places, processes
from trainmaster.host.machine import DriverSilent

TWO = of(cores=2.0)


def alive(pid: int) -> bool:
    return processes.start_time(pid) is not None


def test_containers_are_granted_run_and_end() -> None:
    async def scene() -> None:
        async with master("a", TWO, {"w:1": {"exit": 3}}) as job:
            job.side.ask([request("w:0"), request("w:1")])
            granted = await job.told_of(Granted, 2)
            assert [one.task for one in granted] == ["w:0", "w:1"]
            assert granted[0].node == places.node_name()
            assert alive(pid_of(granted[0].container))
            assert [*await job.told_of(ContainerExited)] == [ContainerExited("w:1", 1, 3)]
            free = (await job.side.free())[0]
            assert (free.free_cores, free.free_memory) == (1.0, 7 * GIB)
        assert job.told[-1] == ContainerExited("w:0", 1, -signal.SIGTERM)
        assert Ledger().entries() == []
        assert places.live_jobs() == []

    asyncio.run(scene())


def test_a_template_forked_before_the_loop_serves_the_first_containers() -> None:
    link = template.fork(lambda: lambda spec: os._exit(spec["serial"]))

    async def scene() -> None:
        async with master("a", TWO, link=link) as job:
            job.side.ask([request("w:0", serial=7)])
            assert (await job.told_of(ContainerExited))[0].status == 7
            assert job.engine.template == link.pid

    asyncio.run(scene())


def test_asks_are_idempotent() -> None:
    async def scene() -> None:
        async with master("a", TWO) as job:
            for _ in range(3):
                job.side.ask([request("w:0"), request("w:1", 2.0)])
            await job.told_of(Granted)
            job.side.ask([request("w:0")])
            assert len(job.of(Waiting)) == 1
            assert Ledger().asks() == []
            job.side.release("w:1", 1)
            job.side.release("w:0", 1)
            job.side.release("w:0", 1)
            await until_async(lambda: {one.task for one in job.of(ContainerExited)} == {"w:0", "w:1"})
            assert len(set(job.of(Granted))) == 1

    asyncio.run(scene())


def test_a_waiter_is_woken_when_a_holder_is_killed_by_force() -> None:
    async def scene() -> None:
        with forked(holding("x", request("w:0", 2.0), capacity=TWO)) as pid:
            async with master("a", TWO) as job:
                job.side.ask([request("w:0")])
                waiting = (await job.told_of(Waiting))[0]
                assert (waiting.resource, waiting.asked, waiting.free, waiting.position) == ("cores", "1", "0", 1)
                os.kill(pid, signal.SIGKILL)
                await job.told_of(Granted)  # the poll is an hour: this came by the death itself

    asyncio.run(scene())


def test_what_one_job_gives_back_goes_to_the_next_and_waiting_is_reported_when_it_changes() -> None:
    async def scene() -> None:
        async with master("a", TWO) as one, master("b", TWO) as other, master("c", TWO) as third:
            one.side.ask([request("w:0", 2.0)])
            await one.told_of(Granted)
            other.side.ask([request("w:0", 2.0)])
            third.side.ask([request("w:0", 2.0)])
            assert (await third.told_of(Waiting))[0].position == 2
            one.side.release("w:0", 1)
            await other.told_of(Granted)
            assert [told.position for told in await third.told_of(Waiting, 2)] == [2, 1]
            assert third.of(Granted) == []
            await other.close()
            await third.told_of(Granted)

    asyncio.run(scene())


def test_a_higher_priority_goes_first_among_those_who_wait() -> None:
    async def scene() -> None:
        with forked(holding("x", request("w:0", 2.0), capacity=TWO)) as pid:
            async with master("low", TWO) as low, master("high", TWO) as high:
                low.side.ask([request("w:0", 2.0)])
                high.side.ask([request("w:0", 2.0, priority=5)])
                await high.told_of(Waiting)
                os.kill(pid, signal.SIGKILL)
                await high.told_of(Granted)
                assert low.of(Granted) == []

    asyncio.run(scene())


def test_a_gang_starts_whole_or_waits() -> None:
    async def scene() -> None:
        with forked(holding("x", request("w:0", 0.5), capacity=TWO)) as pid:
            async with master("a", TWO) as job:
                job.side.ask([request("w:0", gang="g"), request("w:1", gang="g")])
                await job.told_of(Waiting)
                assert job.of(Granted) == []
                os.kill(pid, signal.SIGKILL)
                await job.told_of(Granted, 2)

    asyncio.run(scene())


def test_what_can_never_run_here_is_refused() -> None:
    async def scene() -> None:
        async with master("a", TWO) as job:
            exclude = {"exclude": [places.node_name()]}
            job.side.ask([request("w:0", memory=9 * GIB), request("v:0", nodes=exclude), request("u:0")])
            refused = await job.told_of(Refused, 2)
            assert refused[0].detail == "w:0 needs 9 GiB of memory, this machine has 8 GiB for jobs"
            assert "nodes.exclude" in refused[1].detail
            await job.told_of(Granted)

    asyncio.run(scene())


def test_an_agent_that_does_not_go_is_killed() -> None:
    async def scene() -> None:
        async with master("a", TWO, {"w:0": {"deaf": True}}, patience=0.3) as job:
            job.side.ask([request("w:0")])
            await job.told_of(Granted)
            job.side.release("w:0", 1)
            assert (await job.told_of(ContainerExited))[0].status in (-signal.SIGKILL, -signal.SIGTERM)

    asyncio.run(scene())


def test_nothing_of_a_killed_agent_runs_when_its_exit_is_reported(tmp_path: Path) -> None:
    async def scene() -> None:
        left, program = tmp_path / "left", tmp_path / "program"
        async with master("a", TWO, {"w:0": {"left": str(left), "program": str(program)}}) as job:
            job.side.ask([request("w:0")])
            granted = (await job.told_of(Granted))[0]
            await until_async(lambda: left.exists() and program.exists())
            os.kill(pid_of(granted.container), signal.SIGKILL)
            assert (await job.told_of(ContainerExited))[0].status == -signal.SIGKILL
            assert not alive(int(left.read_text()))
            assert not alive(int(program.read_text()))

    asyncio.run(scene())


def test_agents_outlive_a_killed_template_and_a_new_one_is_made(tmp_path: Path) -> None:
    async def scene() -> None:
        program = tmp_path / "program"
        async with master("a", TWO, {"w:0": {"program": str(program)}}) as job:
            job.side.ask([request("w:0")])
            agent = pid_of((await job.told_of(Granted))[0].container)
            await until_async(program.exists)
            first = job.engine.template
            assert first is not None
            os.kill(first, signal.SIGKILL)
            await until_async(lambda: job.engine.template not in (None, first))
            assert alive(agent)
            assert job.of(ContainerExited) == []
            job.side.ask([request("w:1")])
            await job.told_of(Granted, 2)
            os.kill(agent, signal.SIGKILL)
            assert await job.told_of(ContainerExited) == [ContainerExited("w:0", 1)]
            assert not alive(int(program.read_text()))

    asyncio.run(scene())


def _kill_template(job: Master) -> None:
    """Kill it while nobody else has a turn: what is ordered next is written before its death is noticed."""
    template = job.engine.template
    assert template is not None
    os.kill(template, signal.SIGKILL)
    while alive(template):
        pass


def test_an_order_to_a_template_that_has_just_died_is_a_lost_container() -> None:
    async def scene() -> None:
        async with master("a", TWO) as job:
            job.side.ask([request("w:0")])
            await job.told_of(Granted)
            _kill_template(job)
            job.side.ask([request("w:1")])
            assert [(one.task, one.reason) for one in await job.told_of(ContainerExited)] == [("w:1", "agent-lost")]
            job.side.ask([request("w:1", serial=2)])
            await job.told_of(Granted, 2)

    asyncio.run(scene())


def test_what_a_death_of_the_template_frees_is_started_once() -> None:
    """What it had not answered is lost, and its place is given at once to who waits for it: by an order to the next template."""

    async def scene() -> None:
        async with master("a", TWO) as job:
            job.side.ask([request("w:0")])
            await job.told_of(Granted)
            _kill_template(job)
            job.side.ask([request("w:1"), request("w:2")])
            assert (await job.told_of(ContainerExited))[0].task == "w:1"
            started = (await job.told_of(Granted, 2))[1]
            assert started.task == "w:2"
            job.side.release("w:2", 1)
            assert (await job.told_of(ContainerExited, 2))[1] == ContainerExited("w:2", 1, -signal.SIGTERM)
            assert len(processes.living("a", processes.TEMPLATE)) == 1

    asyncio.run(scene())


def test_a_successor_takes_the_living_over_and_the_earlier_master_is_refused() -> None:
    async def scene() -> None:
        first = Master("a", TWO)
        await first.open(1)
        first.side.ask([request("w:0"), request("w:1")])
        granted = await first.told_of(Granted, 2)
        second = Master("a", TWO)
        await second.open(2, "w:0", "w:1")
        assert {(one.task, one.container) for one in await second.told_of(Granted, 2)} == {
            (one.task, one.container) for one in granted
        }
        with pytest.raises(EngineFailed, match="epoch 2"):
            first.side.ask([request("w:2")])
        os.kill(pid_of(granted[0].container), signal.SIGKILL)
        assert (await second.told_of(ContainerExited))[0].task == "w:0"
        second.side.ask([request("w:0", serial=2)])
        await second.told_of(Granted, 3)
        second.side.release("w:1", 1)
        await second.told_of(ContainerExited, 2)
        await second.close()
        first._reading.cancel()
        await first.engine._agents.close()

    asyncio.run(scene())


def _a_master_with_an_agent() -> None:
    """A master of job `a` that dies, when it is told to, with an agent running."""

    async def scene() -> None:
        job = Master("a", TWO)
        await job.open(1)
        job.side.ask([request("w:0")])
        await job.told_of(Granted)

    asyncio.new_event_loop().run_until_complete(scene())


def test_a_template_without_master_stays_for_its_agents_and_no_longer() -> None:
    with forked(_a_master_with_an_agent) as pid:
        living = processes.living("a")
        assert {one.kind for one in living} == {"master", "template", "agent"}
    process = {one.kind: one.process for one in living}
    assert not alive(pid)

    async def scene() -> None:
        successor = Master("a", TWO)
        await successor.open(2, "w:0")
        assert [one.task for one in await successor.told_of(Granted)] == ["w:0"]
        assert process["template"].alive
        assert process["agent"].alive
        successor.side.release("w:0", 1)
        assert await successor.told_of(ContainerExited) == [ContainerExited("w:0", 1)]
        await until_async(lambda: not process["template"].alive)
        await successor.close()

    asyncio.run(scene())


def test_what_an_earlier_master_had_started_without_knowing_is_not_started_again() -> None:
    with forked(_a_master_with_an_agent):
        (agent,) = [made.process for made in processes.living("a", processes.AGENT)]
    Ledger().forget("a")  # it died before it could note that its order was obeyed

    async def scene() -> None:
        successor = Master("a", TWO)
        await successor.open(2)
        successor.side.ask([request("w:0")])
        assert pid_of((await successor.told_of(Granted))[0].container) == agent.pid
        assert [made.process for made in processes.living("a", processes.AGENT)] == [agent]
        successor.side.release("w:0", 1)
        await successor.told_of(ContainerExited)
        await successor.close()

    asyncio.run(scene())


def test_a_template_that_cannot_start_is_reported_as_a_lost_container() -> None:
    async def scene() -> None:
        async with master("a", TWO) as job:
            job.engine._agents._command = [*agents()[:-1], "no_such_module:run"]
            job.side.ask([request("w:0")])
            assert (await job.told_of(ContainerExited))[0].reason == "agent-lost"

    asyncio.run(scene())


def test_exits_are_told_though_the_ledger_cannot_be_written() -> None:
    """Somebody sits on its lock meanwhile; what it was owed is made up for, and others get what was freed."""

    async def scene() -> None:
        async with master("a", TWO, poll=0.05) as job, master("b", TWO, poll=0.05) as other:
            job.side.ask([request("w:0", 2.0)])
            granted = (await job.told_of(Granted))[0]
            for one in (job, other):
                one.engine._ledger.wait_at_most(0)
            stubborn = Ledger()
            with stubborn.turn():
                other.side.ask([request("w:0", 2.0)])
                os.kill(pid_of(granted.container), signal.SIGKILL)
                await job.told_of(ContainerExited)
                assert (await other.told_of(Waiting))[
                    0
                ].detail == "the ledger of this machine cannot be used: database is locked"
                assert other.of(Granted) == []
            await other.told_of(Granted)
            assert [entry.hold.job for entry in Ledger().entries()] == ["b"]

    asyncio.run(scene())


def test_a_container_that_begins_is_reported_though_the_ledger_cannot_be_written() -> None:
    async def scene() -> None:
        async with master("a", TWO, poll=0.05) as job:
            ledger = job.engine._ledger

            def full(*told: object) -> None:
                ledger.run = run  # type: ignore[method-assign]
                raise sqlite3.OperationalError("database or disk is full")

            run, ledger.run = ledger.run, full  # type: ignore[method-assign]
            job.side.ask([request("w:0")])
            agent = pid_of((await job.told_of(Granted))[0].container)
            await until_async(lambda: [entry.process.pid for entry in Ledger().entries() if entry.running] == [agent])

    asyncio.run(scene())


def test_an_engine_that_hears_no_more_of_its_containers_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*told: object) -> None:
        raise PermissionError("what is left of it cannot be looked at")

    async def scene() -> None:
        first = Master("a", TWO, {"w:0": {"exit": 0}})
        await first.open(1)
        with monkeypatch.context() as patch:
            patch.setattr(agents_of, "_clear", broken)
            first.side.ask([request("w:0")])
            with pytest.raises(PermissionError, match="cannot be looked at"):
                await first._reading
        await first.engine._agents.close()
        second = Master("a", TWO)
        await second.open(2, "w:0")
        assert [(one.task, one.reason) for one in await second.told_of(ContainerExited)] == [("w:0", "agent-lost")]
        await second.close()

    asyncio.run(scene())


def test_devices_are_asked_for_apart_from_the_loop_and_by_those_alone_who_wait_for_some() -> None:
    asked, go = list[bool](), threading.Event()

    def slow(gpus: bool) -> Capacity:
        asked.append(gpus)
        assert not gpus or go.wait(60)
        return Capacity(2.0, 8 * GIB, ("GPU-a",) if gpus else ())

    async def scene() -> None:
        async with master("a", slow) as job, master("b", slow) as other:
            job.side.ask([request("w:0")])
            await job.told_of(Granted)
            assert not any(asked)
            other.side.ask([request("w:0", gpus=1)])
            await until_async(lambda: any(asked))
            job.side.release("w:0", 1)
            await job.told_of(ContainerExited)  # while the driver takes its time
            go.set()
            assert (await other.told_of(Granted))[0].devices == ("GPU-a",)

    asyncio.run(scene())


def test_a_driver_that_does_not_answer_holds_up_no_ask_and_no_release() -> None:
    hangs = True

    def capacity(gpus: bool) -> Capacity:
        if gpus and hangs:
            raise DriverSilent("the NVIDIA driver has not answered for 20 s")
        return Capacity(2.0, 8 * GIB, ("GPU-a",) if gpus else ())

    async def scene() -> None:
        nonlocal hangs
        async with master("a", capacity, poll=0.02) as job:
            job.side.ask([request("w:0", gpus=1), request("w:1", gpus=1)])
            assert (await job.told_of(Waiting))[0].detail == "the NVIDIA driver has not answered for 20 s"
            job.side.release("w:1", 1)
            assert (await job.told_of(ContainerExited))[0].task == "w:1"
            job.side.ask([request("w:0", gpus=1)])
            assert (await job.side.free())[0].gpus == 0
            hangs = False
            assert (await job.told_of(Granted))[0].devices == ("GPU-a",)

    asyncio.run(scene())
