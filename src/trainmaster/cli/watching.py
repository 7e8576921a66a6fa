"""What `run`, `attach` and `retry` share: watching to the end, and the exit status that it gives."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.given import print_json, wants_json


def watch_to_end(job: str, logs: bool = True, tail: int | None = None) -> None:
    """Show the job until it ends and exit with its status; Ctrl-C leaves it running."""
    from trainmaster.client.follow import follow
    from trainmaster.client.places import engine_of
    from trainmaster.client.sweep import resume

    items = follow(job, logs=logs, tail=tail, resume=resume)
    if engine_of(job) != "local":
        from trainmaster.client.carried import bringing
        from trainmaster.client.renewal import renewing

        items = bringing(job, renewing(job, items))
    try:
        if wants_json():
            status: dict[str, Any] = {}
            for item in items:
                if item.get("lost", 1.0) >= 1.0:  # of a master that is only about to answer there is nothing to say
                    print_json(item)
                status = item.get("end", status)
        else:
            from trainmaster.client.view import watch

            status = watch(job, items)
    except KeyboardInterrupt:
        from trainmaster.client.view import detached

        detached(job, lambda text: click.echo(f"\n{text}", err=True))
        raise
    raise click.exceptions.Exit(exit_status(status))


def exit_status(status: dict[str, Any]) -> int:
    """0 success, 1 the job failed or was killed, 3 what it ran on failed."""
    if status.get("state") == "succeeded":
        return 0
    from trainmaster.core.reasons import ENGINE, REASONS, US

    reason = REASONS.get((status.get("reason") or {}).get("reason", ""))
    return 3 if reason is not None and reason.fault in (ENGINE, US) else 1
