"""Count the forks that led to this process: what was begun before one is the parent's."""

from __future__ import annotations

FORKED = "this iterator was begun before a fork, and is the parent's: begin one in each process"

count = 0  # since the module was loaded; `inputs` counts
