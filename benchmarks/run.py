"""Runs every benchmark, one after another, and writes what came out between the marks in benchmarks/README.md.

    make bench        or        python benchmarks/run.py [NAME ...]

A table keeps its date, its load and its machine; where only some are run, the others' stay as they were measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import figures

HERE = Path(__file__).parent
README = HERE / "README.md"
# Those that print rows as `figures` has them.
ROWS = (
    "first_line",
    "bulk_output",
    "help",
    "log_page",
    "memory",
    "checkpoint_memory",
    "tasks200",
    "training_speed",
    "scaling",
    "warm_restart",
    "grown_worker",
    "elastic_in_place",
    "all_reduce",
    "elastic_local",
    "agents10000",
    "upkeep",
    "metrics",
    "hdfs_log",
    "hdfs_staging",
    "yarn_start",
    "yarn_tasks200",
    "kubernetes_start",
    "kubernetes_deaths",
    "elastic_kubernetes",
    "kubernetes_tasks1000",
    "pages",
    "feed_readers",
    "feed_ring",
    "ps_tables",
    "ps_server",
    "ps_moving",
    "ps_accuracy",
    "zoo_iris",
    "deepfm",
    "spark_feed",
    "spark_start",
    "spark_inference",
)
TEXTS = (
    "checkpoint_copies",
    "event_log",
    "hadoop_rpc",
    "shards",
    "simulation",
    "elastic_cluster",
    "elastic_accuracy",
    "goodput",
)  # print tables of their own


def main() -> None:
    asked = sys.argv[1:] or [*ROWS, *TEXTS]
    unknown = sorted({*asked} - {*ROWS, *TEXTS})
    if unknown:
        sys.exit(f"there is no benchmark {unknown[0]}; there are: {', '.join([*ROWS, *TEXTS])}")
    failed = []
    with figures.place() as environ:
        for name in asked:
            print(f"{name} ...", flush=True)
            command = [sys.executable, str(HERE / f"{name}.py")] + ["--json"] * (name in ROWS)
            load = os.getloadavg()[0]
            done = subprocess.run(command, env=environ, capture_output=True, text=True)
            if done.returncode and (name in ROWS or not done.stdout.strip()):
                print(done.stderr, file=sys.stderr)
                failed.append(name)
                continue
            body = table(json.loads(done.stdout)) if name in ROWS else f"```text\n{done.stdout.strip()}\n```"
            print(body, flush=True)
            write(name, f"`python benchmarks/{name}.py`, {time.strftime('%Y-%m-%d %H:%M')}, "
                        f"load average at the start {load:.2f}, {figures.machine()}\n\n{body}")  # fmt: skip
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def table(told: dict[str, object]) -> str:
    rows = [figures.Row(**row) for row in told["rows"]]  # type: ignore[attr-defined]
    lines = [f"{told['runs']} runs, in turn; min / median / max", "", "| " + " | ".join(figures.HEAD) + " |"]
    lines.append("|" + "---|" * len(figures.HEAD))
    return "\n".join(lines + ["| " + " | ".join(row.cells()) + " |" for row in rows])


def write(name: str, body: str) -> None:
    """Put `body` between the marks of `name`."""
    text = README.read_text()
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    if begin not in text:
        text = f"{text.rstrip()}\n\n## {name}\n\n{begin}{end}\n"
    before, _, rest = text.partition(begin)
    README.write_text(f"{before}{begin}{body}\n{end}{rest.partition(end)[2]}")


if __name__ == "__main__":
    main()
