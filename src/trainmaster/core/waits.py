"""The words and limits of programs' waits that runtime, agent and master share; small, since every agent imports it."""

from __future__ import annotations

BARRIER, LOCK = "barrier", "lock"
WAITS = 1024  # of one attempt
LONGEST = 256  # characters of a name
