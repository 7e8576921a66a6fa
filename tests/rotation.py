"""The choice among the full tests that CI makes, for it has not the time for all of them at every landing.

A *landing* is one submission that CI looks at. Landings are numbered in `.ci/landing`, which also names the commit that the last one ended
with; so what has changed since is known. The rule:

- A full test runs where the change touches the test's own file, or code that `REACH` says it is about.
- All other full tests, which the change reaches through code that all engines share or not at all, take turns: a third of them runs at
  each landing, so each runs at least at every third. What they prove of shared code, the short tests prove at every landing as well.

What is left out is printed with the turn at which it comes. `make test-full` and `make soak` leave nothing out.
"""

from __future__ import annotations

import re
import subprocess
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

TURNS = 3
_ROOT = Path(__file__).parent.parent

# Code, by how its path goes on after src/trainmaster/, and the tests about it, by what their ids contain.
REACH: Sequence[tuple[str, str]] = (
    (r"hadoop/", r"test_hadoop|test_hdfs|test_viewfs|yarn"),
    (
        r"(log/(hdfs|dfs)|data/(hdfs|jvm|hadoop_formats|java))",
        r"test_hadoop_formats|test_hdfs|test_viewfs|test_stor|\[yarn",
    ),
    (r"engines/yarn/", r"yarn"),
    (r"clusters/(hadoop|jars|kerberos|classes|pages)", r"test_cluster_hadoop"),
    (r"kube/", r"kube|test_configmaps"),
    (r"log/configmaps", r"test_configmaps"),
    (r"engines/kubernetes/", r"\[kubernetes|test_kubernetes|test_kube_engine|_kubernetes\.py"),
    (r"clusters/kubernetes/", r"test_cluster_kubernetes"),
    (r"engines/local/", r"\[local"),
    (r"(frameworks|runtime)/", r"tests/frameworks/|test_digits"),
    (r"integrations/", r"dialects"),
    (r"(core|simulation)/", r"tests/simulation/"),
)


def changed_files(commit: str) -> list[str]:
    """Return the files that differ from `commit`, relative to the repository. Raise CalledProcessError where git does not know it."""
    command = ["git", "diff", "--name-only", commit, "HEAD"]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True).stdout.split()


def turn_of(test: str) -> int:
    """The turn at which a test runs in any case, 0 to 2, by its id. The parameters of one test come at different turns."""
    return zlib.crc32(test.encode()) % TURNS


def is_chosen(test: str, turn: int, files: Iterable[str]) -> bool:
    """Tell whether the full test with this id runs at a landing that changes `files`."""
    return (
        turn_of(test) == turn % TURNS
        or test.partition("::")[0] in files
        or any(
            re.match(rf"src/trainmaster/{code}", file) and re.search(tests, test)
            for file in files
            for code, tests in REACH
        )
    )


def summary(absent: Iterable[str], turn: int) -> list[str]:
    """Return lines for the end of a run that say how many tests of which files were left out, and when they come."""
    counts = Counter((turn_of(test), Path(test.partition("::")[0]).stem) for test in absent)
    lines = [f"turn {turn % TURNS} of {TURNS}: {sum(counts.values())} full tests are left out"]
    for later in sorted({at for at, _ in counts}):
        files = ", ".join(f"{file} {count}" for (at, file), count in sorted(counts.items()) if at == later)
        lines.append(f"left out until turn {later}: {files}")
    return lines
