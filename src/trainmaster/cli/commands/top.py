"""`tm top`: jobs live in the terminal."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import JobName, json_option, print_json, wants_json


@click.command("top")
@click.argument("job", type=JobName(), metavar="[JOB]", required=False)
@json_option
def command(job: str | None) -> None:
    """Show JOB, or all jobs that run, live in the terminal: state, progress, cores, memory, events. Ctrl-C ends it; the jobs go on.

    --json prints the present statuses once.
    """
    import contextlib
    import sys

    from trainmaster.client.jobs.listing import headlines
    from trainmaster.client.jobs.sweep import resume
    from trainmaster.client.watch.connect import status
    from trainmaster.client.watch.follow import follow
    from trainmaster.core.errors import BadInput
    from trainmaster.words.text import ended_lines

    if wants_json():
        from trainmaster.client.jobs.listing import present_statuses

        print_json(present_statuses(headlines(), status) if job is None else status(job))
        return
    if not sys.stdout.isatty():
        raise BadInput(
            "tm top needs a terminal to draw on, and stdout is not one",
            mend="programs read tm status JOB --json",
            anchor="no-terminal",
        )
    from trainmaster.client.watch.top import top_job, top_jobs

    if job is None:
        with contextlib.suppress(KeyboardInterrupt):
            top_jobs(headlines, status)
        return
    with contextlib.suppress(KeyboardInterrupt):
        for line in ended_lines(top_job(job, follow(job, resume=resume))):
            click.echo(line)
