"""Programs that import the runtime: alone, and talking to a real agent's end of the socket with the accounting behind it."""

from __future__ import annotations

import asyncio
import bz2
import contextlib
import gzip
import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Home
from hypothesis import given
from hypothesis import strategies as st
from leasing import Shards
from scripted import Script, job, role
from waiting import until_async

import trainmaster.runtime
from trainmaster.agent.input import leases
from trainmaster.agent.input.leases import Pool
from trainmaster.agent.link.programs import Programs
from trainmaster.core.coordination import Coordination
from trainmaster.core.input.audit import audit
from trainmaster.core.input.ranges import RangeSet
from trainmaster.core.input.shards import CSV, JSONL, File, Options, ShardTable
from trainmaster.core.machine.events import Event
from trainmaster.runtime.reading import Reader, lines

PROGRAM = Path(__file__).parent.parent / "programs" / "read_shards.py"
PYTHON = [sys.executable, "-S"]  # without what is installed: standard library, and what the path is given
LINES = [f"{i} " + "x" * (i * 7 % 90) for i in range(3000)]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A directory that holds `trainmaster/runtime` and nothing else of ours, as a program's path gets it."""
    target = tmp_path / "path" / "trainmaster" / "runtime"
    shutil.copytree(Path(trainmaster.runtime.__file__).parent, target, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "path"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    place = tmp_path / "data"
    place.mkdir()
    (place / "a.txt").write_text("\n".join(LINES[:1500]) + "\n")
    (place / "b.txt").write_text("\r\n".join(LINES[1500:2500]))  # no line end at the end
    (place / "c.txt.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in LINES[2500:]).encode()))
    (place / "_SUCCESS").write_text("")
    (place / ".hidden").write_text("not data\n")
    return place


def listed(data: Path) -> list[tuple[str, int]]:
    return [(str(path), path.stat().st_size) for path in sorted(data.iterdir()) if path.name[0] not in "._"]


class Scene:
    """Agents of one job, with a master in their place: the table, a log, and absence on demand."""

    def __init__(self, home: Home, bare: Path, table: ShardTable) -> None:
        self.home, self.bare, self.shards = home, bare, Shards(table)
        self.log: list[Event] = []
        self.agents: list[Programs] = []
        self.running: list[asyncio.subprocess.Process] = []
        self.away = False
        self.told: list[tuple[Any, ...]] = []
        self.states: list[list[Any]] = []  # of a training, that have what was reported

    async def agent(self, index: int, attempt: int = 1) -> Programs:
        async def lease(name: str, want: int, done: dict[str, Any], back: list[list[int]]) -> Mapping[str, Any]:
            await turn()
            if self.away:
                raise ConnectionError("the master is away")
            if name != self.shards.table.name:
                return {"unknown": True}
            holder = (f"worker:{index}", attempt)
            if done:
                self.report(holder, done)
            self.shards.give_back(holder, back)
            return self.shards.answer(self.shards.lease(holder, want))

        made = Programs(
            str(self.home.runtime / f"worker-{index}-{attempt}.sock"),
            lease,
            on_progress=lambda *told: self.told.append(("progress", *told)),
            on_phase=lambda *told: self.told.append(("phase", *told)),
            on_checkpoint=lambda *told: self.told.append(("checkpoint", *told)),
        )
        await made.start()
        made.begin(attempt)
        self.agents.append(made)
        return made

    def report(self, holder: tuple[str, int], done: dict[str, Any]) -> None:
        self.states += done.get("states", [])
        payload = self.shards.report(holder, done["ranges"], done["records"])
        if payload is not None:
            self.log.append(Event(len(self.log) + 1, 0.0, 1, "shards-done", payload))

    def environment(self, agent: Programs, **more: str) -> dict[str, str]:
        told = {
            "TRAINMASTER_SOCKET": agent.path,
            "TRAINMASTER_ATTEMPT": str(agent.attempt),
            "TRAINMASTER_JOB": "digits-abc",
        }
        return {**os.environ, "PYTHONPATH": str(self.bare), **told, **more}

    async def run(self, agent: Programs, *arguments: str, **more: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *PYTHON,
            *arguments,
            env=self.environment(agent, **more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.running.append(process)
        return process

    async def read(self, agent: Programs, out: Path, **how: Any) -> asyncio.subprocess.Process:
        return await self.run(agent, str(PROGRAM), str(out), json.dumps(how))


@contextlib.asynccontextmanager
async def scene(home: Home, bare: Path, table: ShardTable) -> AsyncIterator[Scene]:
    made = Scene(home, bare, table)
    try:
        yield made
    finally:
        for process in made.running:
            if process.returncode is None:
                process.kill()
            await process.communicate()
        for agent in made.agents:
            await agent.close()


async def turn() -> None:
    """Let everybody else in the loop have one turn, as a message to another process does."""
    passed = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(passed.set_result, None)
    await passed


async def output(process: asyncio.subprocess.Process) -> str:
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, out.decode()
    return out.decode()


def records(*outs: Path) -> list[str]:
    return [line for out in outs for line in out.read_text().splitlines()]


def counted(scene: Scene) -> list[str]:
    verdict = audit(scene.log, {scene.shards.table.name: ShardTable.from_listing(scene.shards.table.listing())})
    assert verdict.complete, verdict.lines()
    return verdict.lines()


# -- reading --


@given(st.lists(st.binary(max_size=12)), st.integers(1, 40), st.booleans())
def test_each_line_is_read_by_exactly_one_shard_wherever_the_cuts_fall(
    parts: list[bytes], size: int, ended: bool
) -> None:
    import io

    plain = [part.replace(b"\n", b"").rstrip(b"\r") for part in parts]
    text = b"\n".join(plain) + (b"\n" if ended and plain else b"")
    if text.startswith(b"\xef\xbb\xbf"):
        return
    expected = text.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    shards = [list(lines(io.BytesIO(text), at, min(at + size, len(text)))) for at in range(0, len(text), size)]
    assert [line for shard in shards for line in shard] == expected


@given(st.lists(st.sampled_from([b"{}", b"[1, 2]", b"", b" "]), max_size=30), st.integers(1, 20), st.booleans())
def test_blank_lines_of_jsonl_are_left_out_wherever_the_cuts_fall(
    tmp_path_factory: pytest.TempPathFactory, lines_written: list[bytes], size: int, is_packed: bool
) -> None:
    path = tmp_path_factory.mktemp("jsonl") / ("x.gz" if is_packed else "x.jsonl")
    content = b"".join(line + b"\n" for line in lines_written)
    path.write_bytes(gzip.compress(content, mtime=0) if is_packed else content)
    table = ShardTable.make([File(str(path), path.stat().st_size, None, JSONL)], Options(size=size), name="train")
    assert table.total == (1 if is_packed else -(-len(content) // size))
    reader = Reader("utf-8", "strict")
    cut = [table.shard(number)[1:] for number in range(table.total)]
    read = [record for place in cut for record in reader.records(*place)]
    reader.close()
    assert read == [line.decode() for line in lines_written if line.strip()]
    assert list(trainmaster.runtime.shards("x", default=str(path), format="jsonl")) == read


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_csv_file_is_a_shard_whose_records_may_hold_line_ends(tmp_path: Path, ending: str) -> None:
    content = b'x,"y\nz"\r\n1,"a\nb"\r\n2,"c ""d"""\n3,"open'
    path = tmp_path / f"x.csv{ending}"
    path.write_bytes(gzip.compress(content) if ending else content)
    table = ShardTable.make([File(str(path), path.stat().st_size, None, CSV)], Options(size=5), name="train")
    assert table.total == 1
    reader = Reader("utf-8", "strict")
    assert list(reader.records(*table.shard(0)[1:])) == ['1,"a\nb"', '2,"c ""d"""', '3,"open']
    reader.close()
    assert list(trainmaster.runtime.shards("x", default=str(path), format="csv")) == [
        '1,"a\nb"',
        '2,"c ""d"""',
        '3,"open',
    ]
    assert len(list(trainmaster.runtime.shards("x", default=str(path)))) == 6


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    import io

    assert list(lines(io.BytesIO(b"\xef\xbb\xbfa\r\nb"), 0, 6)) == [b"a", b"b"]


# -- alone --


def alone(bare: Path, code: str, **environment: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(bare), **environment}
    return subprocess.run([*PYTHON, "-c", code], env=env, capture_output=True, text=True, check=True).stdout


def test_alone_everything_is_harmless_and_the_whole_input_is_read_once_an_epoch(bare: Path, data: Path) -> None:
    code = f"""
from trainmaster import runtime
task = runtime.task()
assert (task.key, task.job, task.attempt, task.world, task.alone) == ("worker:0", "", 1, 1, True)
runtime.progress(0.5, step=3, loss=1.0); runtime.metrics(accuracy=0.5); runtime.saved()
with runtime.phase("compiling"), runtime.checkpoint():
    assert runtime.warning() is None and runtime.warning(print) is None
for record in runtime.shards("train", default={str(data)!r}, epochs=2): print(record)
"""
    assert alone(bare, code).splitlines() == LINES * 2


def test_the_input_named_in_the_environment_wins_over_the_default(bare: Path, data: Path) -> None:
    code = "from trainmaster.runtime import shards\nprint(sum(1 for _ in shards('my-data', default='nowhere')))"
    assert alone(bare, code, TRAINMASTER_INPUT_MY_DATA=f"{data}/a.*") == "1500\n"
    code = "from trainmaster.runtime import shards\ntry: list(shards('x'))\nexcept FileNotFoundError as error: print(error)"
    assert "TRAINMASTER_INPUT_X" in alone(bare, code)


def test_packed_files_and_bytes(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "x.bz2").write_bytes(bz2.compress(b"\xff\nb\n"))
    code = f"from trainmaster.runtime import shards\nprint(list(shards('x', default={str(tmp_path / 'x.bz2')!r}, encoding=None)))"
    assert alone(bare, code) == "[b'\\xff', b'b']\n"


def test_the_runtime_loads_next_to_nothing_and_nothing_of_ours(bare: Path) -> None:
    code = """
import os, sys; before = set(sys.modules)
import trainmaster.runtime
print(*sorted(set(sys.modules) - before - {"__future__"}))
import trainmaster; print(getattr(trainmaster, "__file__", None))
"""
    assert alone(bare, code) == "trainmaster trainmaster.runtime\nNone\n"


def test_the_runtime_is_the_same_inside_the_whole_package(data: Path) -> None:
    whole = Path(trainmaster.runtime.__file__).parent.parent.parent
    code = f"""
import trainmaster; assert trainmaster.__file__
from trainmaster import runtime; print(sum(1 for _ in runtime.shards("x", default={str(data)!r})))
"""
    assert alone(whole, code) == "3000\n"


def test_parquet_is_read_by_row_groups_and_urls_by_fsspec_where_the_program_has_them(
    bare: Path, tmp_path: Path
) -> None:
    import fsspec
    import pyarrow
    import pyarrow.parquet

    rows = [{"n": n, "name": str(n)} for n in range(10)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet", row_group_size=4)
    reader = Reader("utf-8", "strict")
    place = str(tmp_path / "x.parquet")
    assert [list(reader.records(place, "rows", group, group + 1)) for group in range(3)] == [
        rows[:4],
        rows[4:8],
        rows[8:],
    ]
    assert list(trainmaster.runtime.shards("x", default=place)) == rows
    with fsspec.open("memory://runtime/t.txt", "wb") as file:
        file.write(b"a\nbb\nccc\n")
    assert list(reader.records("memory://runtime/t.txt", "lines", 0, 4)) == ["a", "bb"]
    assert list(reader.records("memory://runtime/t.txt", "lines", 4, 9)) == ["ccc"]
    reader.close()
    code = f"from trainmaster.runtime import shards\ntry: list(shards('x', default={place!r}))\nexcept OSError as e: print(e)"
    assert "needs pyarrow.parquet in the program's environment" in alone(bare, code)


def test_what_came_with_the_container_reads_what_the_program_has_nothing_for(bare: Path, tmp_path: Path) -> None:
    """Behind what the program has, and only where its own import failed. (Object stores are tried on real pods.)"""
    lib = tmp_path / "runtime/lib"
    (lib / "trainmaster").mkdir(parents=True)
    (tmp_path / "runtime/begin.py").touch()
    (lib / "pyarrow").mkdir()
    (lib / "pyarrow/__init__.py").touch()
    (lib / "pyarrow/parquet.py").write_text("ParquetFile = 'came along'\n")
    shutil.copytree(Path(trainmaster.runtime.__file__).parent, lib / "trainmaster/runtime")
    program = tmp_path / "program/trainmaster"
    program.mkdir(parents=True)
    (program / "runtime").symlink_to(lib / "trainmaster/runtime")
    code = (
        f"import sys; sys.path.insert(0, {str(program.parent)!r}); from trainmaster.runtime.elsewhere import library\n"
        f"assert {str(lib)!r} not in sys.path; print(library('pyarrow.parquet', 'x').ParquetFile, sys.path[-1] == {str(lib)!r})\n"
        "try: library('nosuch', 'x')\nexcept OSError as e: print(e)"
    )
    told = alone(bare, code)
    assert "came along True" in told
    assert "x: reading this needs nosuch in the program's environment" in told


def test_a_task_knows_itself_by_its_environment(bare: Path, tmp_path: Path) -> None:
    peers = tmp_path / "peers.json"
    peers.write_text(json.dumps({"worker": [{"address": "a"}, {"address": "b"}], "ps": [{"address": "c"}]}))
    names = {"JOB": "digits-abc", "ROLE": "worker", "INDEX": "1", "ATTEMPT": "3", "GENERATION": "2", "RESTARTS": "1"}
    code = "from trainmaster.runtime import task\nt = task(); print(t, t.world, t.restarts, t.alone, t.peers['ps'])"
    told = alone(bare, code, **{f"TRAINMASTER_{k}": v for k, v in names.items()}, TRAINMASTER_PEERS=str(peers))
    assert told == "<Task worker:1 of digits-abc, attempt 3, generation 2> 2 1 False [{'address': 'c'}]\n"


# -- with an agent --


def run(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main, 120))


@pytest.mark.parametrize("shuffle", [False, True])
def test_two_tasks_share_an_input_and_each_record_is_read_once_an_epoch(
    home: Home, bare: Path, data: Path, tmp_path: Path, shuffle: bool
) -> None:
    async def main() -> None:
        table = ShardTable.make(listed(data), Options(size=1000, epochs=2, shuffle=shuffle, seed=1), name="train")
        async with scene(home, bare, table) as s:
            agents = [await s.agent(0), await s.agent(1)]
            outs = [tmp_path / "0", tmp_path / "1"]
            programs = [await s.read(agent, out) for agent, out in zip(agents, outs, strict=True)]
            for program in programs:
                assert "ended" in await output(program)
            assert sorted(records(*outs)) == sorted(LINES * 2)
            assert table.finished
            assert "6,000 records" in counted(s)[0]

    run(main())


def test_a_killed_program_counts_only_what_it_moved_past_and_another_attempt_reads_the_rest(
    home: Home, bare: Path, data: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        table = ShardTable.make(listed(data), Options(size=2000), name="train")
        async with scene(home, bare, table) as s:
            first, out = await s.agent(0), tmp_path / "0"
            program = await s.read(first, out, mode="killed", after=700, batch=3)
            await asyncio.wait_for(program.communicate(), 60)
            assert program.returncode == -9
            await asyncio.wait_for(first.drain(), 60)
            assert 0 < table.figures["done"] < table.total
            first.end()
            assert s.shards.figures["held"] > 0
            s.shards.write_off(("worker:0", 1))
            second, rest = await s.agent(0, attempt=2), tmp_path / "1"
            await output(await s.read(second, rest))
            assert set(records(out, rest)) == set(LINES)  # trained on at least once
            assert "3,000 records" in counted(s)[0]  # and counted exactly once

    run(main())


@pytest.mark.parametrize(
    ("end", "named"),
    [
        (
            "os.kill(os.getpid(), 9)",
            [[2]],
        ),  # a shard before it may be reported or not; this one it was in the middle of
        ("raise ValueError", [[2]]),
        ("other = next(shards); os.kill(os.getpid(), 9)", [[3]]),
        ("list(shards); os.kill(os.getpid(), 9)", []),  # in the middle of none
        ("subprocess.run([sys.executable, '-c', 'import os; os.kill(os.getpid(), 9)']); list(shards)", []),
    ],
)
def test_the_shard_that_a_process_was_in_the_middle_of_is_known_when_it_has_died(
    home: Home, bare: Path, data: Path, end: str, named: list[list[int]]
) -> None:
    table = ShardTable.make(listed(data), Options(size=64), name="train")
    code = f"""
import os, subprocess, sys
from trainmaster import runtime
shards = runtime.shards("train").shards()
for shard in shards:
    if shard.number == 2:
        {end}
        break
"""

    async def main() -> None:
        async with scene(home, bare, table) as made:
            agent = await made.agent(0)
            agent.on_begun = lambda rows: made.told.append(rows)
            process = await made.run(agent, "-c", code)
            await process.communicate()
            await asyncio.wait_for(agent.drain(), 10)
            assert [[row[2] for row in rows] for rows in made.told] == named
            assert all(row[:2] == [process.pid, "train"] and 0 < row[3] < 60 for rows in made.told for row in rows)

    run(main())


def test_what_a_process_shows_of_its_shard_is_read_with_care(home: Home, bare: Path) -> None:
    """A mark that is a pipe, is cut short, or is none, harms nothing."""
    code = """
import os
from trainmaster.runtime.link import Link
pipe, _ = os.pipe()
short = os.memfd_create("short")
for mark in (pipe, short, 999, -1, 2**80, "1"):
    link = Link(os.environ["TRAINMASTER_SOCKET"], lambda: {"mark": mark})
    assert link.ask({"op": "lease", "input": "train", "want": 1}) is not None
os._exit(1)
"""

    async def main() -> None:
        async with scene(home, bare, ShardTable.make([("f", 640)], Options(size=64), name="train")) as made:
            agent = await made.agent(0)
            agent.on_begun = lambda rows: made.told.append(rows)
            process = await made.run(agent, "-c", code)
            out, _ = await process.communicate()
            assert process.returncode == 1, out
            await asyncio.wait_for(agent.drain(), 10)
            assert made.told == []

    run(main())


def test_a_program_that_stops_reading_gives_the_rest_to_others(
    home: Home, bare: Path, data: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        table = ShardTable.make(listed(data), Options(size=2000), name="train")
        async with scene(home, bare, table) as s:
            one, two = await s.agent(0), await s.agent(1)
            stopper = await s.read(one, tmp_path / "0", mode="break", after=200)
            await until_async(lambda: (tmp_path / "0").exists() and len(records(tmp_path / "0")) == 200)
            await output(await s.read(two, tmp_path / "1"))
            assert stopper.returncode is None
            assert table.finished
            counted(s)

    run(main())


def test_the_master_may_be_away_and_come_back_knowing_only_the_log(
    home: Home, bare: Path, data: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        table = ShardTable.make(listed(data), Options(size=500, epochs=3), name="train")
        async with scene(home, bare, table) as s:
            agents = [await s.agent(i) for i in range(2)]
            outs = [tmp_path / str(i) for i in range(2)]
            programs = [await s.read(agent, out) for agent, out in zip(agents, outs, strict=True)]
            for part in range(1, 4):
                await until_async(lambda part=part: s.shards.figures["done"] > part * 0.2 * table.total)
                s.away = True
                await turn()
                fresh = ShardTable.from_listing(table.listing())
                for event in s.log:
                    fresh.apply(event.type, event.data)
                s.shards, s.away = Shards(fresh, ["worker:0", "worker:1"]), False
                for i, agent in enumerate(agents):
                    for ranges in agent.held().values():
                        agent.drop("train", s.shards.hold((f"worker:{i}", 1), ranges))
                    s.shards.hold((f"worker:{i}", 1), agent.held().get("train", []))
                    agent.wake()
            for program in programs:
                await output(program)
            assert sorted(records(*outs)) == sorted(LINES * 3)
            assert "9,000 records" in counted(s)[0]

    run(main())


def test_one_task_of_several_processes_and_a_reader_that_does_not_wait(
    home: Home, bare: Path, data: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        table = ShardTable.make(listed(data), Options(size=1000), name="train")
        async with scene(home, bare, table) as s:
            agent = await s.agent(0)
            outs = [tmp_path / str(i) for i in range(3)]
            programs = [await s.read(agent, out, wait=False, batch=1) for out in outs]
            for program in programs:
                await output(program)
            await asyncio.wait_for(agent.drain(), 60)
            assert sorted(records(*outs)) == sorted(LINES)
            counted(s)

    run(main())


def test_a_prefetching_program_says_itself_what_is_done(home: Home, bare: Path, data: Path, tmp_path: Path) -> None:
    async def main() -> None:
        table = ShardTable.make(listed(data), Options(size=1000), name="train")
        async with scene(home, bare, table) as s:
            await output(await s.read(await s.agent(0), tmp_path / "0", mode="manual"))
            assert records(tmp_path / "0") == LINES
            counted(s)

    run(main())


def test_a_program_that_waits_for_what_its_other_loop_holds_is_reported_so(
    home: Home, bare: Path, data: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        table = ShardTable.make(listed(data), Options(size=1000), name="train")
        async with scene(home, bare, table) as s:
            program = await s.read(await s.agent(0), tmp_path / "0", mode="two-loops", batch=1)
            out, _ = await asyncio.wait_for(program.communicate(), 60)
            assert "shards('train') waits for <Shard 0: " in out.decode()
            assert program.returncode == 1

    run(main())


def test_a_program_may_wait_for_what_another_thread_of_it_holds_and_says_so(
    home: Home, bare: Path, data: Path, tmp_path: Path
) -> None:
    inputs = bare / "trainmaster" / "runtime" / "inputs.py"
    inputs.write_text(inputs.read_text().replace("_OWN_WAIT = 60.0", "_OWN_WAIT = 0.1"))

    async def main() -> None:
        table = ShardTable.make(listed(data), Options(size=1000), name="train")
        async with scene(home, bare, table) as s:
            program = await s.read(await s.agent(0), tmp_path / "0", mode="slow")
            assert (await output(program)).count("which this program has not called done() on") == 1
            assert records(tmp_path / "0") == LINES
            counted(s)

    run(main())


def test_epochs_one_after_the_other(home: Home, bare: Path, data: Path, tmp_path: Path) -> None:
    async def main() -> None:
        table = ShardTable.make(listed(data), Options(size=1000, epochs=3), name="train")
        async with scene(home, bare, table) as s:
            await output(await s.read(await s.agent(0), tmp_path / "0", mode="epochs"))
            assert records(tmp_path / "0") == [f"{epoch} {line}" for epoch in range(3) for line in LINES]
            counted(s)

    run(main())


def test_a_forked_child_leases_for_itself(home: Home, bare: Path, data: Path, tmp_path: Path) -> None:
    async def main() -> None:
        table = ShardTable.make(listed(data), Options(size=1000), name="train")
        async with scene(home, bare, table) as s:
            told = await output(await s.read(await s.agent(0), tmp_path / "0", mode="forked"))
            assert "begun before a fork" in told
            assert sorted(records(tmp_path / "0")) == sorted(LINES)
            counted(s)

    run(main())


def test_an_input_that_is_not_of_shards_is_read_as_it_was_staged(home: Home, bare: Path, data: Path) -> None:
    async def main() -> None:
        async with scene(home, bare, ShardTable.make([], name="train")) as s:
            code = "from trainmaster.runtime import shards\nprint(sum(1 for _ in shards('other')))"
            program = await s.run(await s.agent(0), "-c", code, TRAINMASTER_INPUT_OTHER=str(data))
            assert await output(program) == "3000\n"

    run(main())


def test_what_a_program_tells_reaches_the_agent(home: Home, bare: Path) -> None:
    code = """
from trainmaster import runtime
runtime.progress(step=1)
for step in range(2, 1000): runtime.progress(step / 1000, step=step, loss=1 / step)
runtime.metrics(lost=float("nan"), value=0.12345)
with runtime.phase("saving"):
    with runtime.checkpoint(): pass
    with runtime.phase("inner"): pass
runtime.progress(7.0, step=1000)
"""

    async def main() -> None:
        async with scene(home, bare, ShardTable.make([], name="train")) as s:
            await output(await s.run(await s.agent(0), "-c", code))
            await until_async(lambda: s.told and s.told[-1][:3] == ("progress", 1.0, 1000))
            assert not [item for item in s.told if item[:2] == ("progress", 0.12345)], "a metric is no progress"
            told = [item for item in s.told if item[0] != "progress"]
            assert told == [
                ("phase", "saving"),
                ("checkpoint", "begin", {}),
                ("checkpoint", "saved", {}),
                ("phase", "inner"),
                ("phase", "saving"),
                ("phase", None),
            ]
            steps = [item[2] for item in s.told if item[0] == "progress" and item[2] is not None]
            assert steps == sorted(steps)
            assert len(steps) < 100  # the newest wins
            figures: dict[str, Any] = {}
            for item in s.told:
                figures |= item[3] if item[0] == "progress" else {}
            assert figures == {"loss": pytest.approx(1 / 999), "lost": "nan", "value": 0.12345}

    run(main())


@pytest.mark.parametrize("before", ["", "if os.fork(): os.wait(); os._exit(0)"], ids=["", "in-a-child"])
def test_the_last_report_of_a_program_that_then_is_busy_arrives(
    home: Home, bare: Path, tmp_path: Path, before: str
) -> None:
    code = f"""
import os, time
from trainmaster import runtime
runtime.progress(step=1)
runtime.metrics(loss=1.0)
{before}
runtime.progress(step=2)
runtime.metrics(loss=0.5)
while not os.path.exists({str(tmp_path / "enough")!r}): time.sleep(0.02)
"""

    async def main() -> None:
        async with scene(home, bare, ShardTable.make([], name="train")) as s:
            program = await s.run(await s.agent(0), "-c", code)
            await until_async(lambda: any(item[2] == 2 for item in s.told if item[0] == "progress"))
            await until_async(lambda: any(item[3] == {"loss": 0.5} for item in s.told if item[0] == "progress"))
            (tmp_path / "enough").touch()
            await output(program)

    run(main())


def test_a_checkpoint_is_marked_with_what_was_durable_when_it_began(
    home: Home, bare: Path, data: Path, tmp_path: Path
) -> None:
    code = """
import sys
from trainmaster import runtime
for shard in runtime.shards("train", batch=1).shards():
    list(shard.records())
    with runtime.checkpoint(): pass
"""

    async def main() -> None:
        table = ShardTable.make(listed(data), Options(size=5000), name="train")
        async with scene(home, bare, table) as s:
            await output(await s.run(await s.agent(0), "-c", code))
            marks = [item[2].get("train", 0) for item in s.told if item[:2] == ("checkpoint", "saved")]
            assert len(marks) == table.total
            assert marks == sorted(marks)
            assert all(len(table.marks(mark)) <= 1 for mark in marks)
            done = [sum(b - a for a, b in table.marks(mark)) for mark in marks]
            assert all(n <= shard for shard, n in enumerate(done))  # never more than the program had moved past

    run(main())


@pytest.mark.parametrize(
    ("ends", "together"), [(("well", "well"), "saved"), (("raise", "well"), "failed"), (("kill", "well"), "failed")]
)
def test_a_checkpoint_that_copies_write_together_is_whole_when_all_have_said_so(
    home: Home, bare: Path, ends: tuple[str, str], together: str
) -> None:
    code = """
from trainmaster import runtime
with runtime.checkpoint():
    print("in", flush=True)
    assert input() == "well"
"""

    async def main() -> None:
        async with scene(home, bare, ShardTable.make([], name="train")) as s:
            agent = await s.agent(0)
            copies = [await s.run(agent, "-c", code) for _ in ends]
            for copy in copies:
                assert copy.stdout is not None
                assert await copy.stdout.readline() == b"in\n"
            for left, end, copy in zip((1, 0), ends, copies, strict=True):
                assert s.told[-1] == ("checkpoint", "begin", {})
                if end == "kill":
                    copy.kill()
                await copy.communicate(f"{end}\n".encode())
                await until_async(lambda left=left: len(agent.connections) == left)  # type: ignore[misc]
            assert s.told[-1] == ("checkpoint", together, {})
            assert "1" in await output(
                await s.run(agent, "-c", "from trainmaster import runtime; runtime.saved(); print(1)")
            )
            await until_async(lambda: s.told[-1] == ("checkpoint", "saved", {}))

    run(main())


def test_a_drain_is_over_when_the_master_had_heard_the_last_report_before_the_connection_broke() -> None:
    class Program:
        def reply(self, asked: int, answer: Mapping[str, Any]) -> None:
            """It reads what it is given at once."""
            pool.done(self, {row[0]: 1 for row in answer["shards"]})

    async def lease(name: str, want: int, done: dict[str, Any], back: list[list[int]]) -> Mapping[str, Any]:
        if not done:
            return {"files": [["x", "lines"]], "shards": [[0, 0, 0, 10]], "count": 1}
        asyncio.get_running_loop().call_soon(pool.drop, [[0, 1]])  # the welcome of the next connection
        raise ConnectionError("closed before the answer came")

    async def main() -> None:
        nonlocal pool
        pool = Pool("train", lease)
        exchanging = asyncio.create_task(pool.run())
        try:
            pool.ask(Program(), 1, 1, True)
            await until_async(lambda: pool.held() and not pool._ready)
            await asyncio.wait_for(pool.drain(), 20)
        finally:
            exchanging.cancel()

    pool: Any = None
    run(main())


def test_a_warning_reaches_programs_that_ask_listen_or_come_later(home: Home, bare: Path) -> None:
    ask = """
import time
from trainmaster import runtime
while (warned := runtime.warning()) is None: time.sleep(0.01)
print(warned.why, 0 < warned.left <= 20)
"""
    listen = """
import threading
from trainmaster import runtime
came = threading.Event()
runtime.warning(lambda warned: (print(warned.why), came.set()))
print("listening", flush=True)
came.wait()
"""

    async def main() -> None:
        async with scene(home, bare, ShardTable.make([], name="train")) as s:
            agent = await s.agent(0)
            programs = [await s.run(agent, "-c", ask), await s.run(agent, "-c", listen)]
            await until_async(lambda: sum(connection.greeted for connection in agent.connections) == 2)
            agent.warn(20.0, "preempted")
            assert await output(programs[0]) == "preempted True\n"
            assert await output(programs[1]) == "listening\npreempted\n"
            assert await output(await s.run(agent, "-c", ask)) == "preempted True\n"

    run(main())


def test_a_warning_that_comes_in_the_same_moment_is_reported_once(bare: Path) -> None:
    code = """
import threading
from trainmaster import runtime
from trainmaster.runtime import reports

class Racing(list):
    def append(self, callback):
        super().append(callback)
        hearing.start()
        hearing.join(0.2)

told = reports._get_reports()
hearing = threading.Thread(target=told.heard, args=[{"op": "warning", "seconds": 20.0, "why": "preempted"}])
told.callbacks = Racing()
runtime.warning(lambda warned: print(warned.why))
hearing.join()
"""
    assert alone(bare, code, TRAINMASTER_SOCKET="/nowhere/agent.sock") == "preempted\n"


def test_an_agent_that_comes_late_or_goes_away_is_waited_for(
    home: Home, bare: Path, data: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        table = ShardTable.make(listed(data), Options(size=1000), name="train")
        async with scene(home, bare, table) as s:
            agent = await s.agent(0)
            await agent.close()
            agent.attempt = 1
            program = await s.read(agent, tmp_path / "0", batch=2)
            await until_async(lambda: (tmp_path / "0").exists())
            await agent.start()
            agent.begin(1)
            await until_async(lambda: table.figures["done"] > 0.2 * table.total)
            for connection in list(agent.connections):  # cut in the middle
                connection.abort()
            await output(program)
            assert set(records(tmp_path / "0")) == set(LINES)
            counted(s)

    run(main())


def test_what_is_read_is_not_read_again_where_its_report_needs_a_new_connection(
    home: Home, bare: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "IDLE", 60.0)
    code = """
import sys
from trainmaster import runtime
from trainmaster.runtime import inputs
inputs._REPORT_EVERY = 0.0
with open(sys.argv[1], "w") as out:
    for number, shard in enumerate(runtime.shards("train", batch=8).shards()):
        if number == 2:
            print("cut", flush=True)
            input()
        for line in shard.records():
            print(line, file=out)
"""

    async def main() -> None:
        table = ShardTable.make(listed(data), Options(size=5000), name="train")
        async with scene(home, bare, table) as s:
            agent = await s.agent(0)
            program = await s.run(agent, "-c", code, str(tmp_path / "0"))
            assert program.stdout is not None
            assert await program.stdout.readline() == b"cut\n"
            for connection in list(agent.connections):
                connection.abort()
            await until_async(lambda: not agent.connections)
            out, _ = await program.communicate(b"\n")
            assert (out, program.returncode) == (b"", 0)
            assert sorted(records(tmp_path / "0")) == sorted(LINES)
            counted(s)

    run(main())


def test_an_iterator_that_is_left_at_the_end_of_a_program_says_nothing(home: Home, bare: Path, data: Path) -> None:
    code = "from trainmaster import runtime\nrecords = iter(runtime.shards('train'))\nprint(next(records))"

    async def main() -> None:
        async with scene(home, bare, ShardTable.make(listed(data), Options(size=1000), name="train")) as s:
            assert await output(await s.run(await s.agent(0), "-c", code)) in {f"{line}\n" for line in LINES}

    run(main())


def test_a_program_that_is_killed_has_reported_its_complete_steps_and_no_other(
    home: Home, bare: Path, data: Path, tmp_path: Path
) -> None:
    code = """
from trainmaster import runtime
from trainmaster.runtime import inputs

def read(count):
    return sum(sum(1 for _ in next(shards).records()) for _ in range(count))

shards = runtime.shards("train", batch=8).shards()
inputs.report_at_once("members", ["elastic", 1, 4])
lines = read(1)
ahead = read(1)
print(flush=True)
input()
inputs.hold_reports()
lines += ahead + read(1)
read(1)
inputs.report_at_once("members", ["elastic", 2, 5])
print(flush=True)
input()
inputs.hold_reports()
read(2)
inputs._open[0].flush()
print(lines, flush=True)
input()
"""

    async def main() -> None:
        table = ShardTable.make(listed(data), Options(size=1000), name="train")
        async with scene(home, bare, table) as s:
            agent = await s.agent(0)
            program = await s.run(agent, "-c", code)
            assert program.stdout is not None
            assert program.stdin is not None
            for done in (1, 3):
                assert await program.stdout.readline() == b"\n"
                await until_async(lambda done=done: table.figures["done"] == done)  # type: ignore[misc]
                program.stdin.write(b"\n")
            lines = int(await program.stdout.readline())
            program.kill()
            assert "ended" in await output(await s.read(agent, tmp_path / "0"))
            counted(s)
            assert len(records(tmp_path / "0")) == len(LINES) - lines, "all but the shards of complete steps"
            steps = {step: RangeSet.from_json(ranges).count for _, _, step, ranges in s.states}
            assert steps == {4: 1, 5: 2}, "each with the state that has it"

    run(main())


def test_programs_of_another_attempt_are_refused(home: Home, bare: Path) -> None:
    async def main() -> None:
        async with scene(home, bare, ShardTable.make([("x", 10)], name="train")) as s:
            agent = await s.agent(0)
            assert os.stat(agent.path).st_mode & 0o777 == 0o600
            reader, writer = await asyncio.open_unix_connection(agent.path)
            writer.write(
                b'{"op":"hello","v":"1.0","attempt":7,"pid":1}\n{"op":"lease","id":1,"input":"train","want":1}\n'
            )
            told = (await reader.read()).decode()
            assert "refused" in told
            assert "shards" not in told
            writer.close()
            assert s.shards.figures["held"] == 0

    run(main())


HELLO = b'{"op":"hello","v":"1.0","attempt":1,"pid":1}\n'


def garbage(draw: random.Random) -> Iterator[bytes]:
    yield draw.randbytes(draw.randrange(1, 3000))
    yield b"[" * 20000 + b"\n"
    yield b"x" * 300_000
    yield HELLO + b"x" * 300_000
    yield HELLO + b"1" * 9000 + b"\n"
    values: list[Any] = [
        None,
        -1,
        1e400,
        2**70,
        "x",
        [],
        {},
        [[]],
        [[1]],
        [["a", 1]],
        {"a": []},
        True,
        [2**80],
        "y" * 999,
    ]
    for op in ("hello", "progress", "phase", "checkpoint", "lease", "done", "more", 3, None, []):
        keys = (
            "v",
            "attempt",
            "value",
            "step",
            "metrics",
            "name",
            "state",
            "id",
            "input",
            "want",
            "done",
            "wait",
            "hold",
        )
        frame = {"op": op, **{key: draw.choice(values) for key in keys if draw.random() < 0.5}}
        yield HELLO + json.dumps(frame).encode() + b"\n"
        yield json.dumps(frame).encode() + b"\n"


def test_garbage_on_the_socket_harms_nothing(home: Home, bare: Path, data: Path, tmp_path: Path, seeds: Any) -> None:
    async def main(draw: random.Random) -> None:
        raised: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: raised.append(context))
        table = ShardTable.make(listed(data), Options(size=1000), name="train")
        async with scene(home, bare, table) as s:
            agent = await s.agent(0)
            program = await s.read(agent, tmp_path / "0")
            for piece in garbage(draw):
                made = socket.socket(socket.AF_UNIX)
                made.setblocking(False)
                await asyncio.get_running_loop().sock_connect(made, agent.path)
                with contextlib.suppress(OSError):
                    await asyncio.get_running_loop().sock_sendall(made, piece)
                made.close()
            await output(program)
            await until_async(lambda: table.finished)
            counted(s)
            await until_async(lambda: not agent.connections)
        assert raised == []

    for seed in seeds(3):
        (tmp_path / "0").unlink(missing_ok=True)
        run(main(random.Random(seed)))


# -- barriers and locks --


WAITING = """
import sys, time
from trainmaster import runtime
for round in range(3):
    runtime.barrier("all")
    with runtime.lock("one"):
        print("in", flush=True)
        print("out", flush=True)
    print("round", round, flush=True)
"""


class Waits:
    """The barriers and locks of a job of one task, as its master keeps them."""

    def __init__(self, copies: int) -> None:
        self.script = Script(job(worker=role(1, processes=copies)))
        self.script.start("worker:0")
        self.coordination = Coordination()
        self.agent: Programs | None = None

    def send(self, message: dict[str, Any]) -> None:
        pushes = self.coordination.take(self.script.state, "worker:0", message)
        for push in pushes.values():
            asyncio.get_running_loop().call_soon(self.agent.waits.answered, push)


def test_processes_meet_at_barriers_and_take_turns_at_locks(home: Home, bare: Path) -> None:
    async def main() -> None:
        async with scene(home, bare, ShardTable.make([("f", 640)], name="train")) as made:
            waits = Waits(2)
            agent = waits.agent = await made.agent(0)
            agent.waits._send = waits.send
            programs = [await made.run(agent, "-c", WAITING, TRAINMASTER_COPY=str(copy)) for copy in range(2)]
            for program in programs:
                assert (await output(program)).split() == [
                    word for number in range(3) for word in ("in", "out", "round", str(number))
                ]
            await until_async(lambda: agent.waits.count == 0)

    run(main())


def test_a_lock_is_freed_by_the_death_of_its_holder_and_waits_have_an_end(home: Home, bare: Path) -> None:
    holder = """
import time
from trainmaster import runtime
with runtime.lock("one"):
    print("held", flush=True)
    time.sleep(600)
"""
    late = """
from trainmaster import runtime
for wait in (lambda: runtime.barrier("all", timeout=0.2), runtime.lock("one", timeout=0.2).__enter__):
    try:
        wait()
    except TimeoutError as error:
        print(error, flush=True)
with runtime.lock("one"):
    print("got it")
"""

    async def main() -> None:
        async with scene(home, bare, ShardTable.make([("f", 640)], name="train")) as made:
            waits = Waits(2)
            agent = waits.agent = await made.agent(0)
            agent.waits._send = waits.send
            first = await made.run(agent, "-c", holder)
            assert await asyncio.wait_for(first.stdout.readline(), 60) == b"held\n"
            second = await made.run(agent, "-c", late, TRAINMASTER_COPY="1")
            lines = [await asyncio.wait_for(second.stdout.readline(), 60) for _ in range(2)]
            assert lines == [
                b"barrier all: not everybody had come to it within 0.2 s\n", b"lock one: it was not free within 0.2 s\n",
            ]  # fmt: skip
            first.kill()
            assert await output(second) == "got it\n"
            await until_async(lambda: agent.waits.count == 0)

    run(main())


MEMBER = """
import os, sys
from trainmaster.runtime import elastic
rendezvous = elastic.Rendezvous(heard=lambda word, number: print(word, number, flush=True))
for line in sys.stdin:
    if line == "leave\\n":
        rendezvous.leave()
        print("left", flush=True)
        continue
    try:
        here = rendezvous.join(payload="port " + os.environ["TRAINMASTER_COPY"], step=int(line), timeout=60)
        print(here.number, here.rank, here.size, here.source, here.members[here.rank].payload, flush=True)
    except RuntimeError as error:
        print(error, flush=True)
"""


def test_processes_hear_at_once_that_one_of_them_is_gone(home: Home, bare: Path) -> None:
    async def main() -> None:
        async with scene(home, bare, ShardTable.make([("f", 640)], name="train")) as made:
            waits = Waits(2)
            agent = waits.agent = await made.agent(0)
            agent.waits._send = waits.send
            programs = [await made.run(agent, "-c", MEMBER, TRAINMASTER_COPY=str(copy)) for copy in (0, 1, 1)]

            async def say(number: int, text: str) -> None:
                programs[number].stdin.write(text.encode() + b"\n")

            async def line(number: int) -> str:
                return (await asyncio.wait_for(programs[number].stdout.readline(), 60)).decode().strip()

            await say(0, "3")
            await say(1, "4")
            assert [await line(number) for number in (0, 1)] == ["1 0 2 1 port 0", "1 1 2 1 port 1"]
            await say(2, "0")
            assert "has joined elastic as copy 1 already" in await line(2)
            programs[1].kill()
            assert await line(0) == "broken 1"
            await say(2, "5")
            await until_async(lambda: agent.waits.count == 2)  # else the first one has a round of its own
            await say(0, "5")
            assert [await line(number) for number in (0, 2)] == ["2 0 2 0 port 0", "2 1 2 0 port 1"]
            await say(2, "leave")
            assert [await line(number) for number in (0, 2)] == ["broken 2", "left"]

    run(main())


def test_alone_each_round_has_this_process(bare: Path) -> None:
    head = "from trainmaster.runtime import elastic; place = elastic.Rendezvous(); "
    assert "2 0 1" in alone(
        bare, head + "place.join(); there = place.join(step=3); print(there.number, there.rank, there.size)"
    )


def test_alone_there_is_nobody_to_wait_for(bare: Path) -> None:
    head = "from trainmaster import runtime; "
    told = alone(
        bare, head + "runtime.barrier('all'); [print('in') for _ in (1, 2) if runtime.lock('one').__enter__()]"
    )
    assert told.split() == ["in", "in"]
    told = alone(bare, """
from trainmaster import runtime
for name in ("", "x" * 257, 5):
    try:
        runtime.barrier(name)
    except ValueError as error:
        print(str(error)[:27])
""")  # fmt: skip
    assert told.splitlines() == ["the name of a barrier is a "] * 3


# -- batches --


def test_batches_of_shuffled_records_have_each_record_once_and_count_what_was_used(
    home: Home, bare: Path, data: Path
) -> None:
    code = """
import os, signal, sys
from trainmaster import runtime
number = 0
for batch in runtime.shards("train").batches(64, shuffle=500, seed=3):
    number += 1
    if number == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    for record in batch:
        print(record, flush=True)
"""

    async def main() -> None:
        table = ShardTable.make(listed(data), Options(size=2000), name="train")
        async with scene(home, bare, table) as made:
            first, second = await made.agent(0), await made.agent(1)
            killed = await made.run(first, "-c", code, "12")
            printed, _ = await asyncio.wait_for(killed.communicate(), 60)
            assert killed.returncode == -9
            other = await made.run(second, "-c", code, "0")  # not beside it: that might leave it no twelfth batch
            await asyncio.wait_for(first.drain(), 60)
            first.end()
            made.shards.write_off(("worker:0", 1))
            rest = await output(other)
            seen = [*printed.decode().splitlines(), *rest.splitlines()]
            assert set(seen) == set(LINES), "nothing is counted that was not used"
            assert rest.splitlines() != sorted(rest.splitlines(), key=LINES.index)
            assert table.finished
            assert "3,000 records" in counted(made)[0]

    run(main())


def test_batches_alone(bare: Path, data: Path) -> None:
    head = f"from trainmaster import runtime; shards = runtime.shards('train', default={str(data)!r}, epochs=2); "
    told = alone(bare, head + "[print(record) for batch in shards.batches(7) for record in batch]")
    assert told.splitlines() == LINES * 2
    sizes = alone(bare, head + "print({len(batch) for batch in shards.batches(7, drop_last=True)})")
    assert sizes.split() == ["{7}"]
    one, two, three = (
        alone(bare, head + f"print([b for b in shards.batches(7, shuffle=100, seed={seed})])") for seed in (1, 1, 2)
    )
    assert one == two != three
