"""`tm events`: what happened to a job, line by line."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import job_argument, json_option, print_json, wants_json


@click.command("events")
@job_argument
@click.option("-f", "--follow", is_flag=True, help="show what comes, too, until the job ends")
@click.option("--after", type=click.IntRange(0), default=0, help="those after this number")
@click.option("--utc", is_flag=True, help="times in UTC, as clusters and other people's logs have them")
@json_option
def command(job: str, follow: bool, after: int, utc: bool) -> None:
    """Show what happened to JOB, out of its event log."""
    from trainmaster.client.jobs.past import Past
    from trainmaster.client.jobs.sweep import resume
    from trainmaster.client.watch.follow import follow as follow_job
    from trainmaster.words.events import event_line

    coming = (item["event"] for item in follow_job(job, resume=resume) if "event" in item)
    last = after
    for event in coming if follow else Past(job).events(after):
        if event["n"] <= after:
            continue
        if event["n"] > last + 1:
            click.echo(
                f"(events {last + 1} to {event['n'] - 1} were dropped: this job has no storage of its own)", err=True
            )
        last = event["n"]
        if wants_json():
            print_json(event)
        else:
            click.echo(event_line(event, utc))
