"""The tokens of a job on a secure cluster, in words."""

from __future__ import annotations

import time

from trainmaster.client.jobs.past import Facts
from trainmaster.core.spec.quantities import format_seconds


def words(tokens: Facts, now: float) -> str:
    """Say until when a job's tokens are good, and what keeps newer ones away."""
    remaining, at = tokens["until"] - now, time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(tokens["until"]))
    text = f"good until {at}, in {format_seconds(round(remaining))}" if remaining > 0 else f"they ended at {at}"
    return text + (f"; {tokens['trouble']}" if tokens.get("trouble") else "")


def warning(job: str, tokens: Facts) -> str:
    """Return the warning about a job that was submitted with tokens, and with nothing that renews them."""
    return f"{job}: its tokens are {words(tokens, time.time())}; for longer watch it (tm attach), or tm renew {job}"
