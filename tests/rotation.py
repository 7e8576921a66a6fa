"""The choice among the full tests that CI makes, for it has not the time for all of them at every landing.

A *landing* is one submission that CI looks at. `.ci/landing` numbers it and names the commit that the last one ended with, which
`tools/landing` writes and `make check` demands; so what has changed since is known. `Choice` has the rule, which the end of a run prints:

- TURN: a tenth of the full tests runs at each landing, so each runs at least at every tenth.
- NEAR: of the others, those run that the change is about: it touches the test's own file, or a file that `REACH` says it is about.
- FAR: then those that it can reach at all, through code that they share with others, as long as there is time.
- NONE: the rest waits for its turn, since the change cannot touch it.

NEAR and FAR begin only while the landing is young (`LATEST`), so that a change of everything ends in time too; what is left waits for its
turn. `make test-full` and `make soak` leave nothing out.
"""

from __future__ import annotations

import re
import subprocess
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path

TURNS = 10
_ROOT = Path(__file__).parent.parent


class Choice(IntEnum):
    """Why a full test runs at a landing, in the order in which such tests run; NONE does not."""

    TURN = 0
    NEAR = 1
    FAR = 2
    NONE = 3


LATEST: Mapping[Choice, float] = {
    Choice.NEAR: 50.0,
    Choice.FAR: 38.0,
}  # minutes of a landing after which no such test begins
RULE = (
    f"rule: 1/{TURNS} of the full tests in turn; then, until minute {LATEST[Choice.NEAR]:.0f}, those that the change is about;"
    f" then, until minute {LATEST[Choice.FAR]:.0f}, those that it can reach"
)

NO_TEST, ALL = r"(?!)", r""
ON_HADOOP, ON_KUBERNETES, ON_SPARK = r"yarn|hadoop|hdfs|viewfs", r"kube|test_configmaps", r"spark"
# Files by how their paths begin, the tests that are about them, and those that they can reach; tests by what their ids contain. The first
# row that fits counts. The last one has what all tests share.
REACH: Sequence[tuple[str, str, str]] = (
    (r".*\.md$|docs/|benchmarks/|LICENSE|mkdocs\.yml|\.gitignore|\.ci/|tools/landing", NO_TEST, NO_TEST),
    (r"tests/simulation/|src/trainmaster/simulation/", r"tests/simulation/|test_yarn_traces", NO_TEST),
    (r"tests/(web/|browser\.py)|src/trainmaster/web/pages/|tools/pages|constraints/pages", r"tests/web/", NO_TEST),
    (r"tests/(rotation|parts)\.py|tests/.*test_\w+\.py", NO_TEST, NO_TEST),  # a test's own file is another matter
    (r"tests/(hadoop|kdc|unmanaged)|tests/programs/.*java|tools/(hadoop|formats)", NO_TEST, ON_HADOOP),
    (r"tests/(kubernetes|conformance/kubernetes_engine)\.py|tools/kubernetes", NO_TEST, ON_KUBERNETES),
    (r"tests/spark\.py|constraints/spark", NO_TEST, ON_SPARK),
    (r"tests/(netns_engine/|conformance/netns_engine\.py)", r"\[netns", NO_TEST),
    (r"tests/ring_framework/", NO_TEST, NO_TEST),  # none of its tests is full
    (r"tests/s3\.py|tools/s3server", r"test_stores|test_storage", ON_KUBERNETES),
    (r"tests/postgres\.py", NO_TEST, NO_TEST),  # none of its tests is full
    (r"examples/", r"test_digits|tests/frameworks/", NO_TEST),
    (r"src/trainmaster/(hadoop/|engines/yarn/|log/(hdfs|dfs)|data/(store/hdfs|formats/(jvm|hadoop_formats)|java))", ON_HADOOP, NO_TEST),
    (r"src/trainmaster/clusters/kubernetes/", r"test_cluster_kubernetes", ON_KUBERNETES),
    (r"src/trainmaster/clusters/hadoop/", r"test_cluster_hadoop", ON_HADOOP),
    (r"src/trainmaster/((clusters|engines)/)?spark/", rf"{ON_SPARK}|tfrecords", NO_TEST),
    (r"src/trainmaster/clusters/", r"test_cluster_", f"{ON_HADOOP}|{ON_KUBERNETES}|{ON_SPARK}"),
    (r"src/trainmaster/(kube/|engines/kubernetes/)", ON_KUBERNETES, NO_TEST),
    (r"src/trainmaster/log/configmaps", r"test_configmaps", ON_KUBERNETES),
    (r"src/trainmaster/engines/(contract|registry|changes|runtime_archive)\.py", r"tests/(chaos|simulation)/|\[(local|netns)", ALL),
    (r"src/trainmaster/engines/local/", r"\[local|test_kills|test_one_copy", r"kubernetes-client"),
    (r"src/trainmaster/integrations/", r"dialects", NO_TEST),
    (r"src/trainmaster/((runtime|data)/feed/|agent/input/feeds|core/input/feed|master/connections/feeders)", r"test_(spark_)?feed", ALL),
    (r"src/trainmaster/(frameworks|runtime)/", r"tests/frameworks/|test_digits|test_channel", ALL),
    (ALL, r"tests/(chaos|simulation|web)/|\[local", ALL),
)  # fmt: skip


def changed_files(commit: str) -> list[str]:
    """Return the files that differ from `commit`, relative to the repository. Raise CalledProcessError where git does not know it."""
    command = ["git", "diff", "--name-only", commit, "HEAD"]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True).stdout.split()


def turn_of(unit: str) -> int:
    """Return the turn at which a unit runs in any case, from 0 on. A unit is a test's id, or a file whose tests take turns together."""
    return zlib.crc32(unit.encode()) % TURNS


def choice(test: str, unit: str, turn: int, files: Iterable[str]) -> Choice:
    """Return why the full test with this id runs at a landing that changes `files`."""
    if turn_of(unit) == turn % TURNS:
        return Choice.TURN
    rows = [next(row for row in REACH if re.match(row[0], file)) for file in files]
    if test.partition("::")[0] in files or any(re.search(near, test) for _, near, _ in rows):
        return Choice.NEAR
    return Choice.FAR if any(re.search(far, test) for _, _, far in rows) else Choice.NONE


def is_late(chosen: Choice, minutes: float) -> bool:
    """Tell whether a test that was chosen so is left out of a landing that is so old."""
    return minutes > LATEST.get(chosen, float("inf"))


def summary(untouched: Mapping[str, str], late: Mapping[str, str], turn: int) -> list[str]:
    """Return the rule, how many tests were left out and why, and when they come, as lines. The arguments map tests to their units."""
    absent = {**untouched, **late}
    counts = Counter((turn_of(unit), Path(test.partition("::")[0]).stem) for test, unit in absent.items())
    numbers = f"{len(untouched)} full tests that the change cannot touch, {len(late)} for want of time"
    lines = [RULE, f"turn {turn % TURNS} of {TURNS}: left out are {numbers}"]
    for later in sorted({at for at, _ in counts}):
        files = ", ".join(f"{file} {count}" for (at, file), count in sorted(counts.items()) if at == later)
        lines.append(f"left out until turn {later}: {files}")
    return lines
