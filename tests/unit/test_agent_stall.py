"""When a program counts as hanging, over made-up observations; and what a tree of processes is seen to use."""

from __future__ import annotations

import asyncio
import glob
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from trainmaster.agent.watch import gpus, stall, watching
from trainmaster.agent.watch.progress import Progress
from trainmaster.agent.watch.python_stacks import LAYOUTS
from trainmaster.agent.watch.samples import Sampler
from trainmaster.agent.watch.stacks import stacks
from trainmaster.agent.watch.stall import Observation, Stall, Watch, verdict
from trainmaster.agent.watch.watching import Limits, Watching
from trainmaster.host.linux import look

STALL = 1800.0


def watched(observations: Iterable[Observation]) -> Watch:
    first, *rest = observations
    watch = stall.begin(first)
    for observation in rest:
        watch = stall.observe(watch, observation)
    return watch


def every(seconds: float, until: float, **more: object) -> list[Observation]:
    return [Observation(n * seconds, **more) for n in range(int(until / seconds) + 1)]  # type: ignore[arg-type]


def test_a_program_that_reports_nothing_and_does_nothing_is_stalled_after_the_limit() -> None:
    assert verdict(watched(every(3, STALL - 3)), STALL) is None
    assert verdict(watched(every(3, STALL)), STALL) == Stall("stalled", STALL)
    assert verdict(watched(every(3, 10 * STALL)), None) is None


def test_any_use_is_a_sign_of_life_for_one_that_reports_nothing() -> None:
    quiet = every(3, 2 * STALL)
    for name, step in (("output", 1), ("cpu_seconds", 0.5), ("moved", 1 << 20), ("gpu", 1.0)):
        busy = [Observation(o.at, **{name: step * n if name != "gpu" else step}) for n, o in enumerate(quiet)]  # type: ignore[arg-type]
        assert verdict(watched(busy), STALL) is None, name


def test_an_idle_interpreter_is_no_sign_of_life() -> None:
    idle = [Observation(o.at, cpu_seconds=0.001 * n, moved=100 * n) for n, o in enumerate(every(3, STALL))]
    assert verdict(watched(idle), STALL) == Stall("stalled", STALL)


def test_once_progress_was_reported_only_progress_counts() -> None:
    stuck = [Observation(0.0), Observation(10.0, progress=1)]
    stuck += [
        Observation(10.0 + n, progress=1, output=n, cpu_seconds=8.0 * n, gpu=1.0) for n in range(1, int(STALL) + 1)
    ]
    assert verdict(watched(stuck[:-1]), STALL) is None
    assert verdict(watched(stuck), STALL) == Stall("stalled", STALL)


def test_a_slow_program_has_ten_times_its_own_gap() -> None:
    slow = [Observation(600.0 * n, progress=n) for n in range(20)]
    last = slow[-1]
    waiting = watched([*slow, Observation(last.at + 5999, progress=last.progress)])
    assert verdict(waiting, STALL) is None
    assert verdict(stall.observe(waiting, Observation(last.at + 6000, progress=last.progress)), STALL) == Stall(
        "stalled", 6000.0
    )


def test_a_named_phase_takes_what_it_takes_and_the_clock_begins_anew_after_it() -> None:
    saving = [
        Observation(0.0, progress=1),
        *(Observation(100.0 * n, progress=1, phase="saving") for n in range(1, 1000)),
    ]
    watch = watched(saving)
    assert verdict(watch, STALL) is None
    end = watch.last.at
    watch = stall.observe(watch, Observation(end + 10, progress=1))
    assert verdict(stall.observe(watch, Observation(end + STALL, progress=1)), STALL) is None
    assert verdict(stall.observe(watch, Observation(end + 10 + STALL, progress=1)), STALL) is not None
    other = watched(Observation(100.0 * n, progress=1, phase="evaluating") for n in range(19))
    assert verdict(other, STALL) is not None


def test_after_a_peer_has_finished_only_progress_or_output_counts() -> None:
    spinning = [Observation(3.0 * n, output=100, cpu_seconds=3.0 * n, gpu=1.0) for n in range(400)]
    watch = watched(spinning)
    assert verdict(watch, STALL, 600.0, None) is None
    assert verdict(watch, STALL, 600.0, watch.last.at - 599) is None
    assert verdict(watch, STALL, 600.0, watch.last.at - 600) == Stall("hung-after-peer-finished", 600.0)
    printing = stall.observe(watch, Observation(watch.last.at + 3, output=101))
    assert verdict(printing, STALL, 600.0, 0.0) is None


@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.booleans(), st.booleans()), min_size=1, max_size=60), st.floats(1, 1000)
)
def test_a_verdict_comes_never_before_the_limit_of_silence(steps: list[tuple[float, bool, bool]], limit: float) -> None:
    at, progress, last_sign = 0.0, 0, 0.0
    watch = stall.begin(Observation(0.0))
    for gap, progressed, exempt in steps:
        at += gap
        progress += progressed
        watch = stall.observe(watch, Observation(at, progress, phase="saving" if exempt else ""))
        if progressed or exempt:
            last_sign = at
        found = verdict(watch, limit)
        assert found is None or (found.seconds >= limit and at - last_sign >= limit - 1e-6)


class Lost(Exception):
    """What the library says of a device that has fallen off the bus."""


def test_a_device_that_is_lost_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(index: int) -> str:
        if index == 0:
            raise Lost
        return f"GPU-{index}"

    told = SimpleNamespace(
        NVMLError=Lost, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 4, nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetUUID=str, nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=1, total=2),
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=50),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", told)
    monkeypatch.setattr(gpus, "DRIVER", "/dev/null")
    found = gpus.Gpus(["GPU-0", "GPU-1", "2"]).use()
    assert found == [{"index": index, "util": 0.5, "memory": 1, "total": 2} for index in (1, 2)]


def test_a_driver_that_hangs_keeps_nothing_from_being_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples go on without the use of devices, memory is limited, and the agent can end while the driver still hangs."""
    answers = threading.Event()
    asked: list[threading.Thread] = []
    samples: list[dict[str, Any]] = []

    def hang() -> None:
        asked.append(threading.current_thread())
        answers.wait()

    monkeypatch.setitem(
        sys.modules, "pynvml", SimpleNamespace(NVMLError=Lost, nvmlInit=hang, nvmlDeviceGetCount=lambda: 0)
    )
    monkeypatch.setattr(gpus, "DRIVER", "/dev/null")
    monkeypatch.setattr(watching, "EVERY", 0.3)
    monkeypatch.setattr(watching, "DRIVER_WITHIN", 0.05)
    limits = Limits(memory=64 << 20)
    process: list[subprocess.Popen[bytes]] = []

    def report(sample: dict[str, Any]) -> None:
        samples.append(sample)
        if len(samples) == 3:
            code = "b = bytearray(200 << 20); import time; time.sleep(1000)"
            process.append(subprocess.Popen([sys.executable, "-c", code], process_group=0))

    async def scene() -> tuple[str, dict[str, Any]]:
        return await Watching(limits, Progress(), lambda: 0, report, devices=["0"]).run()

    try:
        reason, _ = asyncio.run(scene())
    finally:
        for each in process:
            os.killpg(each.pid, signal.SIGKILL)
            each.wait()
        answers.set()
    assert reason == "out-of-memory"
    assert {str(sample["gpus"]) for sample in samples} == {"[]"}
    assert len(asked) == 1, "a driver that hangs is asked once"
    assert asked[0].daemon


def test_a_tree_is_seen_with_what_it_uses() -> None:
    code = (
        "import os, time\nb = bytearray(50 << 20)\npid = os.fork()\n"
        "if pid == 0:\n    while True: pass\nprint('ready', flush=True)\ntime.sleep(1000)"
    )
    sampler = Sampler()
    before = sampler.look()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, process_group=0)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        sample = sampler.look()
        assert sample.processes == before.processes + 2
        assert 50 << 20 < sample.memory - before.memory < 90 << 20, "pages that both share count once"
        until(lambda: sampler.look().cpu_seconds > sample.cpu_seconds + 0.2)
        until(lambda: sampler.look().cpu > 0.2)
        assert any(f"pid {process.pid} " in line for line in stacks(sampler.seen))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


PYTHONS = [sys.executable, *sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.1[1-3].*/bin/python3")))]


@pytest.mark.parametrize("python", PYTHONS)
def test_the_stacks_of_all_threads_are_read_while_a_process_goes_on(python: str, tmp_path: Path) -> None:
    program = tmp_path / "größe.py"
    program.write_text("""
import os, sys, threading, time
def waits():
    time.sleep(1000)
class Größe:
    def spins(self):
        while True: pass
threading.Thread(target=waits, daemon=True).start()
pid = os.fork()
os.write(1, b"ready\\n")
(lambda: Größe().spins() if pid
    else
        waits())()
""")
    process = subprocess.Popen([python, program], stdout=subprocess.PIPE, text=True, process_group=0)
    try:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == ["ready\n", "ready\n"]
        sampler = Sampler()

        def seen() -> str:
            sampler.look()
            return "\n".join(stacks(one for one in sampler.seen if one.group == process.pid))

        file = f'  File "{program}", line'
        spins = f"{file} 7 in Größe.spins\n{file} 11 in <lambda>\n{file} 11 in <module>"
        waits = f"{file} 4 in waits\n{file} 13 in <lambda>\n{file} 11 in <module>"
        text = until(lambda: text if spins in (text := seen()) and waits in text else "", what=seen)
        assert text.count("pid ") == 2
        assert text.count("(most recent call first)") == 3, "a thread of one process, and the main ones of both"
        assert text.count(f"{file} 4 in waits") == 2
        assert process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_of_what_is_no_python_only_the_kernel_tells() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            until(lambda: b"sleep" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
            present = look(process.pid)
            assert present is not None
            (line,) = stacks([present])
            assert line.startswith(f"pid {process.pid} sleep state ")
        finally:
            process.kill()


def stacks_of(python: str, program: str) -> list[str]:
    """Return the lines of a process of this Python once its program says that it is ready."""
    with subprocess.Popen([python, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            present = look(process.pid)
            assert present is not None
            return list(stacks([present]))
        finally:
            process.kill()


OLDER = sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3")))


@pytest.mark.parametrize("python", [python for python in OLDER if python not in PYTHONS])
def test_a_python_whose_stacks_cannot_be_read_is_named(python: str) -> None:
    lines = stacks_of(python, "import time; print('ready', flush=True); time.sleep(1000)")
    assert lines[1:] in ([], ["  (its stacks cannot be read: its Python is not one of 3.11, 3.12, 3.13)"])
    version = Path(os.path.realpath(python)).name.removeprefix("python")
    assert len(lines) == 2 or int(version.partition(".")[2]) < 7, "_PyRuntime is there from 3.7 on"


HARM = """
import ctypes, sys, time
def waits():
    print("ready", flush=True)
    time.sleep(1000)
code, runtime = waits.__code__, ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
def write(address, value):
    ctypes.c_uint64.from_address(address).value = value
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_a_table_of_lines_that_ends_too_early_harms_nobody(python: str) -> None:
    entry = 1 << 7 | 13 << 3 | 7  # its number of lines never ends
    harm = f"ctypes.memset(id(code.co_linetable) + 32, {entry}, len(code.co_linetable))"
    lines = stacks_of(python, f"{HARM}{harm}\nwaits()")
    assert lines[2:] == ["  (its frames changed while they were read)"]


@pytest.mark.parametrize("python", PYTHONS)
def test_interpreters_that_lead_in_a_circle_have_an_end(python: str) -> None:
    version = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2])"], stdout=-1, text=True, check=True
    )
    layout = LAYOUTS[tuple(map(int, version.stdout.split()))]  # type: ignore[index]
    harm = f"""
circle = ctypes.create_string_buffer(1 << 14)
write(ctypes.addressof(circle) + {layout.following}, ctypes.addressof(circle))
write(runtime + {layout.interpreters}, ctypes.addressof(circle))
"""
    assert len(stacks_of(python, f"{HARM}{harm}\nwaits()")) == 1


@pytest.mark.parametrize("python", [python for python in PYTHONS if "/3.13" in python])
def test_a_build_without_the_lock_of_the_interpreter_is_named(python: str) -> None:
    lines = stacks_of(python, f"{HARM}write(runtime + 16, 1)\nwaits()")
    assert lines[1:] == ["  (its stacks cannot be read: its Python is a free-threaded build)"]


# -- whole scenes, in simulated time: a look each three seconds --

DEFAULT = 1800.0  # s, the default of timeouts.stall


def looks(seconds: float, at: float = 0.0, **more: Any) -> list[Observation]:
    """Return what is seen of a program that computes with all its devices, and prints nothing."""
    return [Observation(at + n, cpu_seconds=at + n, gpu=1.0, **more) for n in range(3, int(seconds) + 3, 3)]


def first_verdict(observations: Iterable[Observation], limit: float) -> tuple[float, Stall] | None:
    """Return when a stall is found first, in s, and that."""
    watch = stall.begin(Observation(0.0))
    for observation in observations:
        watch = stall.observe(watch, observation)
        if (found := verdict(watch, limit)) is not None:
            return observation.at, found
    return None


def trained(seconds: float, at: float = 0.0, done: int = 0) -> list[Observation]:
    """Return what is seen of a program that reports ten steps a second."""
    return [
        Observation(at + n, progress=done + 10 * n, cpu_seconds=at + n, gpu=1.0) for n in range(3, int(seconds) + 3, 3)
    ]


def test_a_collective_that_spins_is_found() -> None:
    spinning = [*trained(600), *looks(2 * DEFAULT, 600, progress=6000)]
    assert first_verdict(spinning, DEFAULT) == (600 + DEFAULT, Stall("stalled", DEFAULT))


def test_a_quiet_evaluation_of_twenty_minutes_lives() -> None:
    evaluation = [*trained(600), *looks(1200, 600, progress=6000), *trained(60, 1800, 6000)]
    assert first_verdict(evaluation, DEFAULT) is None


@pytest.mark.parametrize("phase", ["saving", "waiting for the other members"])
def test_a_quiet_phase_that_is_named_lives_with_a_short_limit(phase: str) -> None:
    saving = [*trained(600), *looks(1200, 600, progress=6000, phase=phase), *trained(60, 1800, 6000)]
    assert first_verdict(saving, 300.0) is None
    unnamed = [*trained(600), *looks(1200, 600, progress=6000), *trained(60, 1800, 6000)]
    assert first_verdict(unnamed, 300.0) == (900.0, Stall("stalled", 300.0))


def test_evaluations_that_are_usual_live_with_a_short_limit() -> None:
    """An evaluation of twenty minutes now and then, each epoch reported, most of which take four: ten times that are waited for."""
    epochs, at, done = [*trained(3)], 3.0, 30
    for gap in (240.0, 240.0, 240.0, 1200.0, 240.0, 1200.0):
        done += 1
        epochs += [*looks(gap - 3, at, progress=done - 1), Observation(at + gap, progress=done)]
        at += gap
    assert first_verdict(epochs, 300.0) is None
