"""The words and limits of programs' waits that runtime, agent and master share; small, since every agent imports it."""

from __future__ import annotations

BARRIER, LOCK, RENDEZVOUS = "barrier", "lock", "rendezvous"
BROKEN, WANTED = "broken", "wanted"  # what members of a round hear: it is over, somebody waits to come in
WAITS = 1024  # of one attempt
LONGEST = 256  # characters of a name
PAYLOAD = 1024  # bytes of the text that a process brings to a rendezvous
