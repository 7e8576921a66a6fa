"""Watch a running program: samples for the pages, its memory where no control group limits it, and whether it still makes progress.

A look is taken each `EVERY` seconds, and often while memory nears its limit. The rules themselves are plain functions in `stall`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from trainmaster.agent.attempt.threads import DiskThread
from trainmaster.agent.watch import stall
from trainmaster.agent.watch.progress import Progress
from trainmaster.agent.watch.samples import EVERY, Sample, Sampler, network
from trainmaster.agent.watch.stacks import stacks
from trainmaster.agent.watch.stall import Observation
from trainmaster.host.process_tree import kin

NEAR = 0.6  # of the limit; above it memory is looked at every
OFTEN, SOON = 0.2, 0.5  # s; while memory is watched, the longer one
FIRST = 1.0  # s until the first sample
DRIVER_WITHIN = 1.0  # s that a look waits for the driver of the accelerators


@attrs.frozen(slots=True)
class Limits:
    """The limits of a program. `memory` in bytes, None where the kernel enforces it; times in seconds, None for never."""

    memory: int | None = None
    stall: float | None = None


class Watching:
    """One program's watch. `finishing` is set to (since, limit) once a peer has finished."""

    def __init__(
        self, limits: Limits, progress: Progress, printed: Callable[[], int], report: Callable[[dict[str, Any]], None], *,
        devices: Sequence[str] = (), own_network: bool = False,
    ) -> None:  # fmt: skip
        self._limits, self._progress, self._printed, self._report = limits, progress, printed, report
        self._sampler = Sampler()
        self._devices, self._own_network = devices, own_network
        self._gpus: Any = None
        self._driver = DiskThread()
        self._asked: asyncio.Future[list[dict[str, Any]]] | None = None  # what the driver has not answered yet
        self._rates: list[dict[str, Any]] = []
        self.finishing: tuple[float, float | None] | None = None
        self.highest = 0  # bytes of memory

    async def run(self) -> tuple[str, dict[str, Any]]:
        """Look until something is wrong; then return its reason and figures."""
        loop = asyncio.get_running_loop()
        watch = stall.begin(Observation(loop.time(), self._progress.progress, self._printed()))
        sampled, used = loop.time() - EVERY + FIRST, 0
        while True:
            await asyncio.sleep(self._pause(used, EVERY - (loop.time() - sampled)))
            sample = self._sampler.look(self._limits.memory)
            used = sample.memory
            self.highest = max(self.highest, used)
            if self._limits.memory is not None and sample.memory > self._limits.memory:
                return "out-of-memory", {"used": sample.memory, "limit": self._limits.memory}
            now = loop.time()
            if now - sampled < EVERY - OFTEN / 2:
                continue
            sampled = now
            await self._report_sample(sample)
            watch = stall.observe(watch, self._observation(sample, now))
            since, limit = self.finishing or (None, None)
            hang = stall.verdict(watch, self._limits.stall, limit, since)
            if hang is not None:
                return hang.reason, {"seconds": hang.seconds}

    def _pause(self, used: int, remaining: float) -> float:
        """Return the seconds until the next look; `remaining`: those until the next sample is due."""
        memory = self._limits.memory
        if memory is None:
            return max(OFTEN, remaining)
        return min(max(OFTEN, remaining), OFTEN if used > NEAR * memory else SOON)

    def _observation(self, sample: Sample, now: float) -> Observation:
        busiest = max((gpu["util"] for gpu in self._rates), default=0.0)
        moved = sample.moved + network(self._own_network)
        return Observation(
            now, self._progress.progress, self._printed(), sample.cpu_seconds, busiest, moved, self._progress.phase
        )

    async def _report_sample(self, sample: Sample) -> None:
        if self._devices:
            self._rates = await self._use_of_gpus()
        self._report({
            "type": "sample", "cpu": round(sample.cpu, 3), "memory": sample.memory, "processes": sample.processes, "gpus": self._rates,
            "progress": self._progress.value, "step": self._progress.step, "phase": self._progress.phase,
        })  # fmt: skip

    async def _use_of_gpus(self) -> list[dict[str, Any]]:
        """Return the use of the program's accelerators; nothing while their driver does not answer: all else is watched on."""
        within = 0.0
        if self._asked is None:
            if self._gpus is None:
                from trainmaster.agent.watch.gpus import Gpus

                self._gpus = Gpus(self._devices)
            self._asked, within = asyncio.get_running_loop().create_future(), DRIVER_WITHIN
            self._driver.do(self._gpus.use, self._asked.set_result)
        if not (await asyncio.wait([self._asked], timeout=within))[0]:
            return []
        answer, self._asked = self._asked.result(), None
        return answer

    def show_stacks(self, show: Callable[[str], None]) -> bool:
        """Call `show` with lines that show what each process of the program does now; then return True. It may block."""
        for line in stacks(kin(os.getpid())):
            show(line)
        return True
