"""`tm submit --xlearning ...` and `tm submit --submarine ...`: a job in the words of another system.

The words after the flag are that system's. `--engine`, `--dry-run`, `--set`, `--idempotency-key` and `--json` may stand before it, or among
its words. XLearning's client stays until the job's end and has its own exit statuses: 0 success, 1 could not submit, 2 the job failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from trainmaster.cli.options.given import print_json, wants_json
from trainmaster.cli.remarks import naming_origins, note
from trainmaster.cli.starting import say_submitted, start
from trainmaster.cli.watching import watch_to_end

NOT_SUBMITTED, FAILED = 1, 2  # of XLearning


def submit_as(dialect: str, words: Sequence[str], engine: str, dry_run: bool, key: str) -> None:
    """Translate the words and do what they ask. `engine`: "" where the user has named none."""
    from trainmaster.client.watch.leaving import letting_go
    from trainmaster.core.errors import TrainmasterError

    with letting_go() as begun:
        try:
            translation = _submit(
                import_module(f"trainmaster.integrations.{dialect}"), words, engine, dry_run, key, begun
            )
        except TrainmasterError as error:
            error.status = NOT_SUBMITTED if dialect == "xlearning" else error.status
            raise
        if begun.job and not translation.stays:
            say_submitted(begun.job)
        elif begun.job:
            try:
                watch_to_end(begun, retell=translation.retold)
            except click.exceptions.Exit as end:
                status = FAILED if end.exit_code and dialect == "xlearning" else end.exit_code
                raise click.exceptions.Exit(status) from None


def _submit(dialect: Any, words: Sequence[str], engine: str, dry_run: bool, key: str, begun: Any) -> Any:
    """Submit the job that the words describe, or do what else they ask for; return what they were translated to."""
    from trainmaster.client.spec.settings import default_engine
    from trainmaster.integrations.dialect import ENGINE, Verb, checked, shown

    translation = dialect.translated(words, engine or default_engine(ENGINE))
    if isinstance(translation, Verb):
        _do(translation, dialect)
        return translation
    options = translation.options
    if options.as_json:
        click.get_current_context().find_root().meta["json"] = True
    for text in translation.remarks:
        note(text)
    with translation.speaking(), naming_origins(translation.described):
        if dry_run or options.dry_run:
            if wants_json():
                print_json(checked(translation)[0])
            for text in () if wants_json() else shown(translation):
                click.echo(text)
            return translation
        translation.check_inputs()
        start(translation.described, options.key or key, begun, spoken=translation.spoken)
    return translation


def _do(verb: Any, dialect: Any) -> None:
    if verb.name == "help":
        from trainmaster.integrations.dialect import usage

        click.echo("\n".join(usage(dialect.WHAT, dialect.USAGE, dialect.OPTIONS)))
        return
    from trainmaster.client.jobs.handles import resolve

    job = resolve(verb.job)
    parameters = (
        {"jobs": (job,), "why": "", "name": None, "no_wait": False, "force": False}
        if verb.name == "kill"
        else {"job": job}
    )
    command = import_module(f"trainmaster.cli.commands.{'kill' if verb.name == 'kill' else 'status'}").command
    click.get_current_context().invoke(command.callback, **parameters)
