"""The page of a log: a log of 2 GiB beside one of 20 KiB, and a search.

    python benchmarks/log_page.py [--runs 15]

In one process: from the request to the last byte of the page, of the log's end, of its beginning, and of the line at a position in
between; then the first part of a search for what is not there, 64 MiB of lines. The large log has 64 MiB of lines at its beginning and
at its end, and a hole between. It is removed afterwards. The peer is our own page of the small log: the large one should open as fast.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import figures

sys.path.insert(0, str(figures.ROOT / "tests"))
from printed_logs import PrintedLogs, get

SIZE, SMALL, LINES = 2 * 2**30, 20 * 2**10, 64 * 2**20  # bytes
LARGE, LITTLE = "large:0", "small:0"


def write(place: Path) -> PrintedLogs:
    from trainmaster.core.spec.job import Logs

    facts = PrintedLogs(place, LARGE, LITTLE, logs=Logs(limit=4 * SIZE, first=SIZE))
    line = b"2026-11-26 10:00:00 \x1b[32mINFO\x1b[0m step %010d loss 0.0123 grad 0.4567\n"
    block = b"".join(line % n for n in range(LINES // len(line % 0)))
    with facts.path(LARGE, 1).open("wb") as file:
        file.write(block)
        file.seek(SIZE - len(block))
        file.write(block)
    facts.path(LITTLE, 1).write_bytes(block[: block.rfind(b"\n", 0, SMALL) + 1])
    return facts


async def times(facts: PrintedLogs, runs: int) -> dict[str, list[float]]:
    from trainmaster.web.contract import Reader
    from trainmaster.web.pages.app import job_pages

    application = job_pages(facts, lambda request: Reader())  # type: ignore[arg-type]
    addresses = {
        "large end": f"/logs/{LARGE}", "small end": f"/logs/{LITTLE}", "large beginning": f"/logs/{LARGE}?after=0",
        "small beginning": f"/logs/{LITTLE}?after=0", "large middle": f"/logs/{LARGE}?at={SIZE - 2**20}",
        "small middle": f"/logs/{LITTLE}?at=9000",
        "search": f"/logs/{LARGE}?find=nowhere",
    }  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in addresses}
    for run in range(runs + 1):
        for name, address in addresses.items():
            began = time.perf_counter()
            answer = await get(application, address)
            if answer.status != 200 or "step" not in answer.text:
                raise RuntimeError(f"{address}: {answer.status}")
            if run:  # the first one loads templates
                seconds[name].append(time.perf_counter() - began)
    return seconds


def measure(runs: int) -> list[figures.Row]:
    with tempfile.TemporaryDirectory() as place:
        seconds = asyncio.run(times(write(Path(place)), runs))
    note = "64 KiB of lines beside 20 KiB"
    rows = [
        figures.Row(f"the {part} of a log of 2 GiB", seconds[f"large {part}"], "s", 0.15, "20 KiB", seconds[f"small {part}"], note=note)
        for part in ("end", "beginning", "middle")
    ]  # fmt: skip
    return [*rows, figures.Row("a search through 64 MiB", seconds["search"], "s", 2.0)]


if __name__ == "__main__":
    figures.main(measure, 15, __doc__)
