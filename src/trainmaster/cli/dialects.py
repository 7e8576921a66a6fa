"""`tm submit --xlearning ...` and `tm submit --submarine ...`: a job said in the words of another system.

What follows the flag is that system's. `--engine`, `--dry-run`, `--set`, `--idempotency-key` and `--json` may stand before it, or among
its words. XLearning's client stays until the job's end and has its own exit statuses: 0 success, 1 could not submit, 2 the job failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from trainmaster.cli.given import print_json, wants_json
from trainmaster.cli.remarks import naming_origins, warn

NOT_SUBMITTED, FAILED = 1, 2  # of XLearning


def submit_as(dialect: str, words: Sequence[str], engine: str, dry_run: bool, key: str) -> None:
    """Translate the words and do what they ask. `engine`: "" where nobody has said one."""
    from trainmaster.core.errors import TrainmasterError

    try:
        told, job = _begun(import_module(f"trainmaster.integrations.{dialect}"), words, engine, dry_run, key)
    except TrainmasterError as error:
        error.status = NOT_SUBMITTED if dialect == "xlearning" else error.status
        raise
    if job and not told.stays:
        click.echo(job)
        click.echo(f"watch it: tm attach {job}   its output: tm logs -f {job}   end it: tm kill {job}", err=True)
    elif job:
        from trainmaster.cli.watching import watch_to_end

        try:
            watch_to_end(job, retell=told.retold)
        except click.exceptions.Exit as end:
            raise click.exceptions.Exit(FAILED if end.exit_code and dialect == "xlearning" else end.exit_code) from None


def _begun(dialect: Any, words: Sequence[str], engine: str, dry_run: bool, key: str) -> tuple[Any, str]:
    """What was asked, and the job that was submitted; "" where none was."""
    from trainmaster.client.submit import submit
    from trainmaster.integrations.dialect import ENGINE, Verb, checked, shown

    told = dialect.translated(words, engine or ENGINE)
    if isinstance(told, Verb):
        _do(told, dialect)
        return told, ""
    options, asked = told.options, told.described
    if options.as_json:
        click.get_current_context().find_root().meta["json"] = True
    for text in told.remarks:
        click.echo(click.style("note: ", fg="cyan") + text, err=True)
    with told.speaking(), naming_origins(asked):
        if dry_run or options.dry_run:
            if wants_json():
                print_json(checked(told)[0])
            for text in () if wants_json() else shown(told):
                click.echo(text)
            return told, ""
        told.check_inputs()
        job = submit(asked.job, base=asked.base, key=options.key or key, fork=True, engine=asked.engine)
    warn(asked, told.spoken)
    return told, job


def _do(verb: Any, dialect: Any) -> None:
    if verb.name == "help":
        from trainmaster.integrations.dialect import usage

        click.echo("\n".join(usage(dialect.WHAT, dialect.USAGE, dialect.OPTIONS)))
        return
    from trainmaster.client.handles import resolve

    job = resolve(verb.job)
    given = {"jobs": (job,), "why": "", "no_wait": False, "force": False} if verb.name == "kill" else {"job": job}
    command = import_module(f"trainmaster.cli.{'kill' if verb.name == 'kill' else 'status'}").command
    click.get_current_context().invoke(command.callback, **given)
