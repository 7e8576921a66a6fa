"""Hadoop's own classes as an oracle: `says("constants", CLASS)` is what `tests/programs/HadoopSays.java` prints."""

from __future__ import annotations

import subprocess
from pathlib import Path

from trainmaster.clusters.hadoop.jars import jars, java

PROGRAM = Path(__file__).parent / "programs/HadoopSays.java"


def says(command: str, *arguments: str | Path) -> str:
    line = [java(), "-XX:TieredStopAtLevel=1", "-cp", f"{jars()}/*", str(PROGRAM), command, *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
