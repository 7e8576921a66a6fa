"""YARN's account of a container that ended, in our reasons.

The numbers are those of `org.apache.hadoop.yarn.api.records.ContainerExitStatus`; a positive number is the command's own.
"""

from __future__ import annotations

import re
from typing import Any

from trainmaster.engines import statuses
from trainmaster.engines.statuses import OUT_OF_REACH, TERMINATED

ABORTED = -100  # the container was given back, or its node is gone: the diagnostics tell which
REASONS: dict[int, str] = {
    **statuses.REASONS,
    -101: "disks-failed",
    -102: "preempted",
    -103: "out-of-memory",  # virtual memory
    -104: "out-of-memory",
    -106: "killed-by-engine",  # by the ResourceManager
    -107: "killed-by-engine",  # after the application's end
    -108: "killed-by-engine",  # by its node, in favour of another container
    -109: "killed-by-engine",  # by its node, for what it wrote to its log directory
    -1000: "localization-failed",  # ContainerExitStatus.INVALID, which a failed localization leaves
}
_OTHERS = "killed-by-engine"  # the negative numbers of later YARNs
_USED = re.compile(r"([\d.]+ ?[KMGT]?B) of ([\d.]+ ?[KMGT]?B) (?:physical|virtual) memory used")
_UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


def lost(status: int, diagnostics: str) -> bool:
    """Tell whether the container's node is gone: its programs may still run."""
    return status == ABORTED and "lost" in diagnostics.lower()


def blames(status: int) -> bool:
    """Tell whether a container that nobody took back ended through no fault of a program's: our agent, which outlives programs, did not run
    there, or failed.
    """
    return (status > 0 and status not in (OUT_OF_REACH, TERMINATED)) or status in (-1000, -101)


def reason(status: int, diagnostics: str, node: str) -> tuple[str | None, dict[str, Any]]:
    """Return the reason, where YARN knows one, and its figures."""
    name = REASONS.get(status, _OTHERS if status < ABORTED else None)
    if name == "out-of-memory" and (amounts := _USED.search(diagnostics)):
        return name, {"used": _bytes(amounts[1]), "limit": _bytes(amounts[2])}
    if name in ("localization-failed", "killed-by-engine"):
        return name, {"detail": line(diagnostics), "node": node}
    if name == "preempted":
        return name, {"by": "other jobs of the cluster"}
    return name, {"node": node}


def given_up(diagnostics: str) -> tuple[str, dict[str, Any]]:
    """Return why YARN starts no master any more, by its diagnostics of the application: the reason of the last master's end, and its
    figures.
    """
    status = re.search(r"exitCode: (-?\d+)", diagnostics)
    node = re.search(r"no Python >= 3\.11 on (\S+):", diagnostics)  # as `runtime_archive` says it, and YARN repeats
    name, figures = reason(int(status[1]), diagnostics, node[1] if node else "") if status else (None, {})
    if name in ("no-python", "out-of-memory", "localization-failed"):
        return name, figures
    times = re.search(r"failed (\d+) times", diagnostics)
    return "master-failed", {
        "masters": int(times[1]) if times else 1,
        "detail": _last_words(diagnostics) or line(diagnostics),
    }


def _last_words(diagnostics: str) -> str:
    """Return the error that a master wrote as it died: YARN repeats the end of its stderr."""
    errors = re.findall(r"^error: (.+)$|^Traceback .*\n(?:[ \t].*\n)+(.+)$", diagnostics, re.MULTILINE)
    return "".join(errors[-1]).strip()[:300] if errors else ""


def line(diagnostics: str) -> str:
    """Return the most telling line of YARN's diagnostics: the first that names what went wrong, without Java's stack."""
    lines = [row.strip() for row in diagnostics.splitlines() if row.strip() and not row.startswith(("\tat ", "Caused"))]
    text = next((row for row in lines if "Exception" in row or "rror" in row), lines[0] if lines else "")
    return re.sub(r"^(?:[\w.$]+(?:Exception|Error): )+", "", text)[:300]


def _bytes(text: str) -> int:
    number, unit = re.fullmatch(r"([\d.]+) ?(\w+)", text).groups()  # type: ignore[union-attr]
    return int(float(number) * _UNITS.get(unit, 1))
