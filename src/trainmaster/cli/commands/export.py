"""`tm export`: a job as files that open without a server."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import job_argument, json_option, print_json, wants_json


@click.command("export")
@job_argument
@click.argument("directory", required=False, type=click.Path(file_okay=False))
@json_option
def command(job: str, directory: str | None) -> None:
    """Write JOB's pages, logs, events and samples into DIRECTORY (default: its id), whose index.html opens in any browser.

    Parts that cannot be read are named, and the rest is written.
    """
    import asyncio
    from pathlib import Path

    from rich.console import Console

    from trainmaster.core.errors import BadInput
    from trainmaster.log.storage import storage_failed

    folder = Path(directory or job)
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty", mend="name a directory that is not there yet", anchor="not-empty")

    async def write() -> None:
        from trainmaster.client.ui.facts import Watched
        from trainmaster.client.ui.sources import OfThisMachine, secret_values
        from trainmaster.web.pages.export import export
        from trainmaster.web.redacted import redacted

        def say(name: str, why: str) -> None:
            terminal.update(name)
            if why:
                click.echo(f"{name} is not there: {why}", err=True)

        with Console(stderr=True).status(f"reading the log of {job}") as terminal:
            source = OfThisMachine(job)
            facts = Watched(source, source.description())
            await facts.open()
            await export(redacted(facts, secret_values(source)), folder, say)

    try:
        asyncio.run(write())
    except OSError as error:
        raise storage_failed("write the job's files", str(folder), error) from error
    page = str(folder / "index.html")
    if wants_json():
        print_json({"page": page})
    else:
        click.echo(page)
