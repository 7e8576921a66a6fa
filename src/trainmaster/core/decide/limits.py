"""The times and counts that decisions use, beside those that the job names. An event carries those that its future depends on."""

from __future__ import annotations

KILL_TIME = 5.0  # s between the KILL of a program and the certainty that it is gone
LEASE = KILL_TIME + 2.0  # s beyond its grace and its program's that an agent out of reach may still run something
SHORT_LIFE = 30.0  # s that a master lives at least, unless it dies of what it has to do
TAKEOVERS = 20  # masters in a row that failed sooner than that, having done nothing; then the job ends
STOP = (
    KILL_TIME + 120.0
)  # s beyond its program's grace that an agent has to stop an attempt: it stores the last of its checkpoint
COMMIT = 1800.0  # s that an agent has to commit: where a store cannot rename, all is copied
LEAVE = 60.0  # s that agents have for storing their logs at the end
GROWTH_BACKOFF = 30.0  # s before a container is asked for again that a group was to grow by, and that was lost
SETTLE = 10.0  # s within which the root cause of a failure is settled
SOON = 1.0  # s that a death by an outside signal waits for the engine's word before it is final
UNTIMED = 1e12  # elapsed s of a failure that nobody timed: it comes after all that were
