"""List and search 10,000 jobs in `tm ui`: the time of its start with an index and without, of a list and a search, and its memory.

    python benchmarks/pages_list.py [--jobs 10000]

The jobs are storages with real logs, made by the log's own writer. Times are medians of 20 requests from another process.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from trainmaster.core.machine.events import Event, encode
from trainmaster.core.spec.reading import job_from, job_to
from trainmaster.log.storage import LocalStorage
from trainmaster.log.writer import open_writer

STATES = ("succeeded", "succeeded", "succeeded", "failed", "killed")
RUNNING = 10  # of the jobs
TIMES = 20
NAMES = ("digits", "letters", "faces", "speech", "words")


def make(root: Path, count: int) -> None:
    """Make the storages of so many jobs; the last ones run."""
    for number in range(count):
        name = NAMES[number % len(NAMES)]
        job = f"{name}-{number:06}".translate(str.maketrans("0189", "abcd"))
        described = job_to(job_from({"name": name, "roles": {"worker": {"command": "python train.py", "replicas": 4}}}))
        at = time.time() - 60.0 * (count - number)
        facts = [
            ("submitted", {"id": job, "job": described}),
            ("generation-formed", {"group": 0, "generation": 1, "members": [], "ranks": {}}),
        ]
        facts += [
            ("progressed", {"task": "worker:0", "attempt": 1, "value": step / 20, "step": step}) for step in range(20)
        ]
        if number < count - RUNNING:
            facts.append(("ended", {"state": STATES[number % len(STATES)], "reason": "exit"}))
        writer = open_writer(LocalStorage(root / job), 1, 0)
        writer.append([encode(Event(n, at + n, 1, kind, data)) for n, (kind, data) in enumerate(facts, 1)], sync=False)
        writer.close()


def first_list(root: Path) -> tuple[subprocess.Popen[str], float, str, int]:
    """Start `tm ui`; return it, the seconds until the first list is there, its cookie and its port."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "trainmaster.cli", "ui", "--no-browser", "--jobs", str(root)], stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert process.stdout
    address = urlsplit(process.stdout.readline().strip())
    port = address.port or 0
    response, _ = ask(port, f"/?{address.query}", "")
    cookie = response.getheader("set-cookie", "").partition(";")[0]
    _, text = ask(port, "/", cookie)
    assert "jobs/" in text
    return process, time.monotonic() - began, cookie, port


def ask(port: int, path: str, cookie: str) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", path, headers={"cookie": cookie, "accept": "text/html"})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response, text


def median(port: int, path: str, cookie: str) -> tuple[float, float]:
    """Return the median and the longest time of a request, in ms."""
    times = []
    for _ in range(TIMES):
        began = time.monotonic()
        response, _ = ask(port, path, cookie)
        assert response.status == 200
        times.append((time.monotonic() - began) * 1000)
        time.sleep(0.1)
    return statistics.median(times), max(times)


def memory(pid: int) -> float:
    """Return the highest resident memory of a process so far, in MiB."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024  # type: ignore[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    count = parser.parse_args().jobs
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make(root, count)
        print(f"{count} jobs, load {os.getloadavg()[0]:.1f}")
        for kind in ("without an index", "with an index"):
            process, seconds, cookie, port = first_list(root)
            try:
                print(f"start {kind}: {seconds:.2f} s to the first list")
                for path in ("/", "/?page=50", "/?q=state:failed+digits", "/?q=nothing"):
                    print("  {}: {:.0f} ms (at most {:.0f})".format(path, *median(port, path, cookie)))
                print(f"  memory: {memory(process.pid):.0f} MiB")
            finally:
                process.send_signal(signal.SIGINT)
                process.wait()


if __name__ == "__main__":
    main()
