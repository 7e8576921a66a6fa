"""From submit to the first instruction of both programs of a 2-worker job on a warm YARN, beside Hadoop's own distributed shell.

    python benchmarks/yarn_start.py [--runs 5]

Both ask the same cluster, in turn, for two containers of the same size whose program appends the time to a file; ours is `tm run`, from
its exec, the peer Hadoop's `distributedshell.Client`, from the exec of its JVM. Before the first run each has run a few times, so that
what is kept on the cluster (our runtime archive) is there, and the daemons' JVMs are warm. Also measured: the import of what submits, and
the same in Python alone.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import figures
import yarn_place

from trainmaster.clusters.hadoop import Settings, jars

CALM = 3.0  # s in which the cluster clears up after the run before, of whichever side
WARM = 4  # runs of each before those that count
SHELL = "org.apache.hadoop.yarn.applications.distributedshell"


def program(times: Path) -> str:
    return f"date +%s.%N | tee -a {times}"  # the distributed shell appends redirections of its own


def ours(times: Path) -> list[str]:
    return [figures.TM, "run", "--engine", "yarn", "-n", "2", "--memory", "128MiB", "--", "sh", "-c", program(times)]


def peer(times: Path, environ: Mapping[str, str]) -> list[str]:
    (jar,) = jars.jars(lambda line: None).glob("hadoop-yarn-applications-distributedshell-*.jar")
    command = ["java", "-cp", environ["HADOOP_CLASSPATH"], f"{SHELL}.Client", "-jar", str(jar)]
    command += ["-shell_command", program(times), "-num_containers", "2"]
    return [*command, "-container_memory", "256", "-master_memory", "256"]


def taken(command: list[str], times: Path, environ: Mapping[str, str]) -> tuple[float, float]:
    """Seconds to the later program's first instruction, and to the command's end."""
    times.unlink(missing_ok=True)
    time.sleep(CALM)
    began = time.time()
    done = subprocess.run(command, env=environ, cwd=times.parent / "empty", capture_output=True, text=True)
    ended = time.time()
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return max(yarn_place.stamps(times, 2)) - began, ended - began


def imported(code: str, environ: Mapping[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-c", code], env=environ, check=True)
    return time.perf_counter() - began


def measure(runs: int) -> list[figures.Row]:
    first: tuple[list[float], list[float]] = ([], [])
    whole: tuple[list[float], list[float]] = ([], [])
    imports: tuple[list[float], list[float]] = ([], [])
    with yarn_place.place(Settings(nodes=2)) as (environ, folder):
        times = folder / "times"
        (folder / "empty").mkdir()
        for run in range(-WARM, runs):
            for side, command in enumerate((ours(times), peer(times, environ))):
                line, end = taken(command, times, environ)
                if run >= 0:
                    first[side].append(line)
                    whole[side].append(end)
        for _ in range(3 * runs):
            imports[0].append(
                imported("import trainmaster.client.submit.submit, trainmaster.engines.yarn.client", environ)
            )
            imports[1].append(imported("", environ))
    name = "distributed shell"
    return [
        figures.Row("first instruction of both programs, from submit", first[0], "s", None, name, first[1], 4.0),
        figures.Row("the command's whole run", whole[0], "s", None, name, whole[1]),
        figures.Row("import of the client, Python's start included", imports[0], "s", 0.25, "python -I -c ''", imports[1]),
    ]  # fmt: skip


if __name__ == "__main__":
    figures.main(measure, 5, __doc__)
