"""States that a program saves by the runtime: what comes back, what is whole, what is kept, and who stores it."""

from __future__ import annotations

import collections
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from parts import mounted
from savers import end_all
from waiting import until

from trainmaster.runtime import checkpoint
from trainmaster.runtime.states import memory_slots, saver, state_format, stored_states
from trainmaster.runtime.states.memory_slots import Slot, Slots
from trainmaster.runtime.states.stored_states import Folder, Remote, headers, reading, store

SOURCE = Path(state_format.__file__).parents[3]


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs of these tests are alone, and what they started has ended."""
    for name in list(os.environ):
        if name.startswith("TRAINMASTER_") and name not in ("TRAINMASTER_TEST",):
            monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(saver, "_savers", {})
    yield
    end_all()


def agent_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Memory as an agent offers it: this process is the agent."""
    held = [os.memfd_create("test") for _ in range(memory_slots.COUNT)]
    monkeypatch.setenv(memory_slots.VARIABLE, ":".join(f"/proc/{os.getpid()}/fd/{number}" for number in held))
    return held


def next_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what this process has saved, as a new program would not know it."""
    end_all()
    monkeypatch.setattr(saver, "_savers", {})


def stored(folder: Path) -> list[int]:
    return [header["step"] for header in headers(Folder(str(folder)))]


def save_stored(step: int, state: dict[str, Any], folder: Path, **how: Any) -> None:
    checkpoint.save(step, state, at=str(folder), **how)
    checkpoint.wait()


# -- the format --


def test_not_a_number_comes_back(tmp_path: Path) -> None:
    save_stored(1, {"x": math.nan}, tmp_path)
    assert math.isnan(checkpoint.load(at=str(tmp_path))["x"])  # type: ignore[index]


@pytest.mark.parametrize("value", [object(), lambda: None, [1, {"a": open}]], ids=["object", "function", "nested"])
def test_what_cannot_be_saved_is_named_with_its_place(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TypeError, match=r"state\['here'\].* cannot be saved"):
        checkpoint.save(1, {"here": value}, at=str(tmp_path))
    assert stored(tmp_path) == []


# -- sets in a place --


def header_of(number: int, value: float) -> tuple[dict[str, Any], Any]:
    header, leaves = state_format.pack(number, {"x": bytes([int(value)]) * 40_000, "y": b"abc"})

    def pieces(index: int) -> Iterator[memoryview]:
        address, keep = leaves[index].source()
        yield state_format.view_of(address, leaves[index].size)
        del keep

    return {**header, "number": number}, pieces


class Cut(BaseException):
    """The machine stops."""


def test_a_crash_at_any_point_of_storing_leaves_the_set_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each system call that changes the disk is the last one, in turn; a write may be half done."""
    calls = ("write", "fsync", "rename", "unlink", "open")
    for last in range(1000):
        folder = tmp_path / str(last)
        place = Folder(str(folder))
        for number in (1, 2):
            store(place, *header_of(number, float(number)), keep=2)
        made = 0

        def cut(name: str, last: int = last) -> Any:
            act = getattr(os, name)

            def call(*arguments: Any, **more: Any) -> Any:
                nonlocal made
                made += 1
                if made > last:
                    if name == "write" and made == last + 1:
                        act(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                    raise Cut
                return act(*arguments, **more)

            return call

        with monkeypatch.context() as patched:
            for name in calls:
                patched.setattr(os, name, cut(name))
            try:
                store(place, *header_of(3, 3.0), keep=2)
                is_cut = False
            except Cut:
                is_cut = True
        newest = next(headers(place))
        assert newest["number"] in (2, 3)
        with reading(place, newest) as read:
            assert state_format.unpack(newest, read)["x"][0] == newest["number"]
        store(place, *header_of(4, 4.0), keep=2)
        assert stored(folder)[0] == 4
        assert len(stored(folder)) == 2
        assert len(list(folder.iterdir())) == 4, "what was left of a set that was cut short is removed"
        if not is_cut:
            assert last > 10
            return
    raise AssertionError("it never came to its end")


def test_a_set_whose_bytes_are_not_those_written_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2, 3, 4):
        save_stored(step, {"x": bytes([step]) * 40_000}, tmp_path, every=0)
    next_program(monkeypatch)
    assert stored(tmp_path) == [4, 3, 2], "the newest three are kept"
    files = sorted(tmp_path.glob("*.bin"))
    files[2].write_bytes(files[2].read_bytes()[:-1])
    files[1].write_bytes(b"\1" + files[1].read_bytes()[1:])
    loaded = checkpoint.load(at=str(tmp_path))
    assert loaded is not None
    assert (loaded.step, int(loaded["x"][0])) == (2, 2)
    assert "step 3" in capsys.readouterr().err
    (tmp_path / "state-00000002.json").write_text('{"v": "1.0", "num')
    assert checkpoint.load(at=str(tmp_path)) is None
    save_stored(9, {"x": 1}, tmp_path)
    assert stored(tmp_path)[0] == 9, "a number is never used twice"
    assert not (tmp_path / "state-00000002.bin").exists()


def test_the_newest_sets_are_kept_and_other_files_are_nobodys_business(tmp_path: Path) -> None:
    (tmp_path / "mine.pt").write_text("mine")
    for step in range(5):
        save_stored(step, {"x": step}, tmp_path, keep=2, every=0)
    assert stored(tmp_path) == [4, 3]
    assert (tmp_path / "mine.pt").read_text() == "mine"


def test_a_url_is_a_place_where_fsspec_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = Remote(f"local://{tmp_path}/a/b")
    assert list(headers(place)) == []
    for number in range(1, 5):
        store(place, *header_of(number, float(number)), keep=2)
    newest = next(headers(place))
    with reading(place, newest) as read:
        assert state_format.unpack(newest, read)["x"][0] == 4.0
    assert sorted(path.name for path in (tmp_path / "a/b").iterdir()) == [
        f"state-0000000{number}.{kind}" for number in (3, 4) for kind in ("bin", "json")
    ]
    url = f"local://{tmp_path}/c"
    checkpoint.save(6, {"x": b"abcd"}, at=url)
    checkpoint.wait()
    next_program(monkeypatch)
    loaded = checkpoint.load(at=url)
    assert loaded is not None
    assert loaded["x"] == b"abcd"


def test_a_full_disk_fails_a_set_and_training_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file where the directory should be stands for any place that cannot be written."""
    place = tmp_path / "ckpt"
    assert checkpoint.load(at=str(place / "sub")) is None
    place.write_text("")
    checkpoint.save(1, {"x": 1}, at=str(place / "sub"), every=0)
    with pytest.raises(OSError, match="step 1 cannot be stored"):
        checkpoint.wait()
    assert "could not be stored" in capsys.readouterr().err
    place.unlink()
    checkpoint.save(2, {"x": 2}, at=str(place / "sub"), every=0)
    checkpoint.wait()
    assert stored(place / "sub") == [2]


def test_a_state_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    code = f"""
        from trainmaster.runtime import checkpoint
        loaded = checkpoint.load(at={str(tmp_path)!r})
        print(loaded.step, loaded["x"])
    """
    with mounted(tmp_path, "size=4m"):
        save_stored(1, {"x": b"1"}, tmp_path)
        checkpoint.save(2, {"x": os.urandom(8 << 20)}, at=str(tmp_path), every=0)
        with pytest.raises(OSError, match=r"step 2 cannot be stored.*No space left"):
            checkpoint.wait()
        assert stored(tmp_path) == [1]
        assert run(code).stdout == "1 b'1'\n"
        checkpoint.save(3, {"x": b"3"}, at=str(tmp_path), every=0)
        checkpoint.wait()
        assert run(code).stdout == "3 b'3'\n"


def test_nobody_waits_in_vain_for_a_state_that_a_fault_of_ours_keeps_from_being_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait that began after the fault said that the state was stored."""
    with monkeypatch.context() as patch:
        patch.setattr(saver.Saver, "_have_stored", lambda self, order: {}["fault"])
        checkpoint.save(1, {"x": 1}, at=str(tmp_path))
        until(lambda: saver.saver_at(str(tmp_path))._thread is None)
    for _ in range(2):
        with pytest.raises(OSError, match=r"step 1 cannot be stored.*KeyError"):
            checkpoint.wait()
    save_stored(2, {"x": 2}, tmp_path)
    assert stored(tmp_path) == [2]


# -- memory --


def test_a_successor_begins_from_memory_where_it_is_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = agent_memory(monkeypatch)
    save_stored(1, {"x": bytes([1]) * 40_000}, tmp_path, every=1000)
    for step in (2, 3, 4):
        checkpoint.save(step, {"x": bytes([step]) * 40_000}, at=str(tmp_path), every=1000)
    assert stored(tmp_path) == [1]
    code = f"""
        from trainmaster.runtime import checkpoint
        loaded = checkpoint.load(at={str(tmp_path)!r})
        print(loaded.step, loaded.source, int(loaded["x"][-1]), flush=True)
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run(code).stdout == "4 memory 4\n"
    other = checkpoint.load(at=str(tmp_path / "other"))
    assert other is None, "memory belongs to one place"
    checkpoint.wait()
    for number in held:
        os.close(number)


@pytest.mark.parametrize("name", [".state-00000002.bin.part", "state-00000002.bin"])
def test_a_state_whose_set_was_cut_short_is_stored_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The program that saves it is killed, and so is the storing of its newest state."""
    held = agent_memory(monkeypatch)
    code = f"""
        import os, signal
        from trainmaster.runtime import checkpoint
        checkpoint.save(1, {{"x": 1}}, at={str(tmp_path)!r}, every=1000)
        checkpoint.wait()
        checkpoint.save(2, {{"x": 2}}, at={str(tmp_path)!r}, every=1000)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run(code).returncode == -signal.SIGKILL
    (tmp_path / name).write_bytes(b"half")
    loaded = checkpoint.load(at=str(tmp_path))
    assert loaded is not None
    assert (loaded.step, loaded.source) == (2, "memory")
    checkpoint.wait()
    assert stored(tmp_path) == [2, 1]
    for number in held:
        os.close(number)


def test_places_of_one_program_share_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A successor finds the states of the place to which the first program saved first, whichever place it uses first itself."""
    held = agent_memory(monkeypatch)
    last, best, pretrained = (str(tmp_path / name) for name in ("last", "best", "pretrained"))

    def states() -> list[tuple[int, str, bytes]]:
        loads = (checkpoint.load(at=at) for at in (best, last))
        return [(loaded.step, loaded.source, loaded["x"][-2:]) for loaded in loads if loaded is not None]

    first = f"""
        import os, signal
        from trainmaster.runtime import checkpoint
        for at in ({pretrained!r}, {best!r}):
            assert checkpoint.load(at=at) is None
        for step in (1, 2, 3):
            for at in ({last!r}, {best!r}):
                checkpoint.save(step, {{"x": at.encode() * 5_000 + b"%d" % step}}, at=at, every=1000)
            if step == 1:
                checkpoint.wait()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run(first).returncode == -signal.SIGKILL
    assert states() == [(1, "stored", b"t1"), (3, "memory", b"t3")]
    for step in (4, 5, 6):
        checkpoint.save(step, {"x": b"best%d" % step}, at=best, every=1000)
    assert states() == [(6, "memory", b"t6"), (3, "memory", b"t3")]
    next_program(monkeypatch)
    for at, content in ((last, last.encode() * 5_000 + b"3"), (best, b"best6")):
        loaded = checkpoint.load(at=at, memory=False)
        assert loaded is not None
        assert loaded["x"] == content
    for number in held:
        os.close(number)


def test_memory_that_is_made_ahead_still_belongs_to_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    held = agent_memory(monkeypatch)
    slots = Slots("place")
    for number in (1, 2):
        header, leaves = state_format.pack(number, {"x": bytes(number * 40_000)})
        slots.free(None).fill(number, slots.place, header, leaves)
    newest, ahead = slots.newest, slots.free(None)
    assert newest is not None
    ahead.clear(slots.place)
    ahead.reserve(newest.used, warm=True)
    successor = Slots("place").newest
    assert successor is not None
    assert successor.number == 2
    for number in held:
        os.close(number)


def test_a_copy_that_was_cut_short_leaves_the_state_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that fills a slot is killed within it, again and again: its successor has a whole state each time."""
    held = agent_memory(monkeypatch)

    def fill(steps: range) -> None:
        slots = Slots("place")
        for step in steps:
            header, leaves = state_format.pack(step, {"x": bytes([step]) * 40_000})
            if step == steps[-1]:
                leaves[0].source = lambda: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment,return-value]
            slots.free(None).fill(step, slots.place, header, leaves)

    for begin in (1, 4, 7):
        process = multiprocessing.get_context("fork").Process(target=fill, args=(range(begin, begin + 4),))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        newest = Slots("place").newest
        assert newest is not None
        assert newest.number == begin + 2
        assert newest.header["number"] == newest.number
    for number in held:
        os.close(number)


def test_a_state_is_never_copied_over_the_newest_or_the_one_at_work() -> None:
    slots = Slots("place")
    held: list[Slot] = []
    for number in range(1, 8):
        slot = slots.free(held[-2] if len(held) > 1 else None)
        assert slot not in held[-2:]
        header, leaves = state_format.pack(number, {"x": bytes(number * 8000)})
        slot.fill(number, slots.place, header, leaves)
        assert slots.newest is slot
        held.append(slot)
    assert len({id(slot) for slot in held}) == 3


def test_too_little_memory_is_reported_once_and_each_state_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rooms = iter(range(1000, 1100))
    monkeypatch.setattr(memory_slots, "free_memory", lambda: next(rooms))
    for step in (1, 2):
        checkpoint.save(step, {"x": bytes(5)}, at=str(tmp_path), every=1000)
        assert stored(tmp_path)[0] == step, "before it returns"
    assert capsys.readouterr().err.count("states are stored while training waits") == 1
    loaded = checkpoint.load(at=str(tmp_path))
    assert loaded is not None
    assert (loaded.step, loaded.source) == (2, "stored")


def test_memory_that_a_limit_refuses_is_reported_once_and_each_state_is_stored(tmp_path: Path) -> None:
    """A copy in memory has a header and some room more than the file that is stored: the limit is between the two."""
    code = f"""
        import resource
        from trainmaster.runtime import checkpoint
        resource.setrlimit(resource.RLIMIT_FSIZE, (101_000, 101_000))
        for step in (1, 2):
            checkpoint.save(step, {{"x": bytes(100_000)}}, at={str(tmp_path)!r}, every=1000)
            loaded = checkpoint.load(at={str(tmp_path)!r})
            print(loaded.step, loaded.source)
    """
    program = run(code)
    assert program.stdout == "1 stored\n2 stored\n", program.stderr
    assert program.stderr.count("states are stored while training waits") == 1
    assert "File too large" in program.stderr


def test_free_memory_is_that_of_the_tightest_group(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    assert memory_slots.free_memory(str(proc), str(groups)) == 5000 * 1024
    (proc / "self/cgroup").write_text("0::/a/b\n")
    (groups / "a/b").mkdir(parents=True)
    for folder, limit in ((groups / "a/b", "max"), (groups / "a", "3000000")):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("2500000\n")
        (folder / "memory.stat").write_text("anon 1\ninactive_file 400000\n")
    assert memory_slots.free_memory(str(proc), str(groups)) == 900_000


# -- who stores, and when --


def run(code: str, **more: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), **more}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environ, capture_output=True, text=True, check=False
    )


def test_the_newest_state_is_stored_at_the_programs_end(tmp_path: Path) -> None:
    code = f"""
        from trainmaster import runtime
        for step in range(20):
            runtime.checkpoint.save(step, {{"x": step}}, at={str(tmp_path)!r}, every=1000)
    """
    assert run(code).returncode == 0
    assert stored(tmp_path)[0] == 19
    assert len(stored(tmp_path)) <= 2, "those between stayed in memory"


def test_a_program_without_a_job_has_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_stored(1, {"x": 1}, Path())
    assert stored(tmp_path / "checkpoint") == [1] if (tmp_path / "checkpoint").exists() else stored(tmp_path) == [1]
    checkpoint.save(2, {"x": 1})
    checkpoint.wait()
    assert stored(tmp_path / "checkpoint") == [2]
    monkeypatch.setenv("TRAINMASTER_CHECKPOINT", str(tmp_path / "job"))
    checkpoint.save(3, {"x": 1})
    checkpoint.wait()
    assert stored(tmp_path / "job") == [3]


def test_a_killed_program_leaves_no_process_and_no_half_set(tmp_path: Path) -> None:
    code = f"""
        import os, sys
        from trainmaster.runtime import checkpoint
        checkpoint.save(1, {{"x": b"x" * 100_000_000}}, at={str(tmp_path)!r})
        print("saved", flush=True)
        sys.stdin.read()
    """
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    until(lambda: not [path for path in tmp_path.iterdir() if path.suffix == ".part"] or not stored(tmp_path))
    assert stored(tmp_path) in ([], [1])
    save_stored(2, {"x": 2}, tmp_path)
    assert stored(tmp_path)[0] == 2


def test_only_rank_zero_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"cluster": {"chief": ["a"], "worker": ["b"]}}
    for variables in (
        {"RANK": "1"},
        {"TRAINMASTER_INDEX": "1"},
        {"TRAINMASTER_COPY": "2"},
        {"TF_CONFIG": json.dumps({**cluster, "task": {"type": "worker", "index": 0}})},
    ):
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            checkpoint.save(1, {"x": 1}, at=str(tmp_path))
        checkpoint.wait()
        assert stored(tmp_path) == []
    monkeypatch.setenv("TF_CONFIG", json.dumps({**cluster, "task": {"type": "chief", "index": 0}}))
    save_stored(1, {"x": 1}, tmp_path)
    assert stored(tmp_path) == [1]


def test_with_shards_each_state_is_stored_and_announced_when_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent marks a set with what was read when its copy began: so no copy begins before the last one is stored."""
    told: list[tuple[str, list[int]]] = []
    monkeypatch.setenv("TRAINMASTER_CHECKPOINT", str(tmp_path))
    monkeypatch.setattr(saver.reports, "begin_checkpoint", lambda: told.append(("begin", stored(tmp_path))))
    monkeypatch.setattr(saver.reports, "end_checkpoint", lambda well: told.append(("saved", stored(tmp_path))))
    for step in (1, 2, 3):
        checkpoint.save(step, {"x": step}, every=1000)
    checkpoint.wait()
    assert told == [
        ("begin", []), ("saved", [1]), ("begin", [1]), ("saved", [2, 1]), ("begin", [2, 1]), ("saved", [3, 2, 1]),
    ]  # fmt: skip


def test_a_warning_has_the_newest_state_stored_at_once(tmp_path: Path) -> None:
    save_stored(1, {"x": 1}, tmp_path, every=1000)
    checkpoint.save(2, {"x": 2}, at=str(tmp_path), every=1000)
    assert stored(tmp_path) == [1]
    saver.saver_at(str(tmp_path)).hurry()
    until(lambda: stored(tmp_path) == [2, 1])
    checkpoint.save(3, {"x": 3}, at=str(tmp_path), every=1000)
    until(lambda: stored(tmp_path) == [3, 2, 1])


def test_the_process_that_stores_has_idle_priority_and_is_replaced_where_time_presses(tmp_path: Path) -> None:
    save_stored(1, {"x": 1}, tmp_path, every=0)
    checkpoint.save(2, {"x": 2}, at=str(tmp_path), every=0)
    one = saver.saver_at(str(tmp_path))
    until(lambda: stored(tmp_path) == [2, 1])
    assert one._process is not None
    pid = one._process._process.pid
    until(lambda: os.sched_getscheduler(pid) == os.SCHED_IDLE)
    checkpoint.save(3, {"x": 3}, at=str(tmp_path), every=1000)
    checkpoint.wait()
    assert one._process is not None
    if one._process._process.pid != pid:
        assert os.sched_getscheduler(one._process._process.pid) == os.SCHED_OTHER


def test_what_it_was_before_still_works() -> None:
    with checkpoint() as inside:
        assert isinstance(inside, checkpoint)
    with pytest.raises(KeyError), checkpoint():
        raise KeyError


def test_the_runtime_alone_saves_without_numpy_and_torch(tmp_path: Path) -> None:
    code = f"""
        import sys
        from trainmaster.runtime import checkpoint
        checkpoint.save(1, {{"x": b"abc", "y": [1, 2]}}, at={str(tmp_path)!r})
        checkpoint.wait()
        print(checkpoint.load(at={str(tmp_path)!r}), {{"torch", "numpy"}} & sys.modules.keys())
    """
    done = subprocess.run(
        [sys.executable, "-S", "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "{'x': b'abc', 'y': [1, 2]} set()\n", done.stderr


def test_a_state_dict_of_another_kind_of_dictionary_is_saved(tmp_path: Path) -> None:
    state = {"counts": collections.Counter("aab"), "default": collections.defaultdict(list, a=[1])}
    save_stored(1, state, tmp_path)
    loaded = checkpoint.load(at=str(tmp_path))
    assert loaded == {"counts": {"a": 2, "b": 1}, "default": {"a": [1]}}
    assert stored_states.numbers(Folder(str(tmp_path))) == [1]


def member(at: Path) -> subprocess.Popen[str]:
    """Start a program that saves as it is told, a line each: `RANK STEP EVERY`, and answers once its states are stored."""
    code = f"""
        import sys
        from trainmaster.runtime import checkpoint
        checkpoint.load(at={str(at)!r})
        print("ready", flush=True)
        for line in sys.stdin:
            rank, step, every = line.split()
            checkpoint.save(int(step), {{"x": int(step)}}, at={str(at)!r}, every=float(every), rank=int(rank))
            if every == "0":
                checkpoint.wait()
            print("saved", flush=True)
    """
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    return program


def have_saved(program: subprocess.Popen[str], rank: int, step: int, every: int = 0) -> None:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(f"{rank} {step} {every}\n")
    program.stdin.flush()
    assert program.stdout.readline() == "saved\n"


def test_a_member_that_takes_over_saving_is_newer_than_the_one_before(tmp_path: Path) -> None:
    """Both began before anything was saved; the first one comes back as rank 0 later."""
    first, second = member(tmp_path), member(tmp_path)
    try:
        for step in (10, 20, 30, 40, 50):
            have_saved(first, 0, step)
            have_saved(second, 1, step)
        for step in (60, 70, 80, 90):
            have_saved(second, 0, step)
            assert stored(tmp_path)[0] == step
            have_saved(first, 1, step)
        have_saved(first, 0, 100)
        assert stored(tmp_path) == [100, 90, 80]
        loaded = checkpoint.load(at=str(tmp_path))
        assert loaded is not None
        assert loaded.step == 100
    finally:
        for program in (first, second):
            program.kill()
            program.communicate()


def test_memory_of_a_member_that_saved_before_is_older_than_what_the_next_one_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first member has states in memory that were never stored, so its numbers went further than those at the place."""
    held = agent_memory(monkeypatch)
    first = member(tmp_path)
    monkeypatch.delenv(memory_slots.VARIABLE)
    second = member(tmp_path)
    try:
        have_saved(first, 0, 10)
        for step in range(11, 30):
            have_saved(first, 0, step, every=1000)
        first.kill()
        for step in (25, 26, 27):  # from what it had seen itself
            have_saved(second, 0, step)
        assert stored(tmp_path) == [27, 26, 25]
    finally:
        for program in (first, second):
            program.kill()
            program.communicate()
    monkeypatch.setenv(memory_slots.VARIABLE, ":".join(f"/proc/{os.getpid()}/fd/{number}" for number in held))
    loaded = checkpoint.load(at=str(tmp_path))
    assert loaded is not None
    assert (loaded.step, loaded.source) == (27, "stored")
    for number in held:
        os.close(number)
