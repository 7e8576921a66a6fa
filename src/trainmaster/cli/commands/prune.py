"""`tm prune`: remove old jobs, and caches that nobody uses."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import Duration, json_option


@click.command("prune")
@click.option(
    "--older", metavar="DURATION", type=Duration(), default=None, help="ended, or not used, for so long: like 30d"
)
@click.option("--keep", metavar="N", type=click.IntRange(0), help="all but the N jobs that ended last")
@click.option(
    "--every", metavar="DURATION", type=Duration(), help="again and again, with --yes, until it is interrupted"
)
@click.option("--jobs/--no-jobs", "with_jobs", default=True, help="remove jobs too, or clear caches alone")
@click.option("--dry-run", is_flag=True, help="show what would go; remove nothing")
@click.option("-y", "--yes", is_flag=True, help="remove without a question")
@json_option
def command(
    older: float | None, keep: int | None, every: float | None, with_jobs: bool, dry_run: bool, yes: bool
) -> None:  # fmt: skip
    """Remove jobs that ended long ago, as `tm remove` does, and what nobody uses any more of caches.

    Caches are those of this machine, and on HDFS those of a Hadoop cluster at hand while no job of yours runs there. --keep alone removes
    jobs, and leaves caches.
    """
    import threading

    from trainmaster.cli.pruning import prune

    if older is None and keep is None:
        raise click.UsageError("say which jobs: --older DURATION, --keep N, or both", click.get_current_context())
    if every is not None and not yes:
        raise click.UsageError("nobody is there to be asked each time: add --yes", click.get_current_context())
    while True:
        prune(older, keep, with_jobs, dry_run, yes)
        if every is None:
            return
        threading.Event().wait(every)
