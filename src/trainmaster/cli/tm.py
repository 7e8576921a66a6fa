"""`tm` after its beginning: finds the command, loads it alone, and turns every end into an exit status.

Starting is fast because almost nothing is imported: the names and one-line descriptions of all commands are in a table here. A command's
own module is loaded when it is called; what that module needs beyond click is loaded where it is used.

Exit status: 0 success, 1 the job failed, 2 bad input, 3 the engine failed or a fault of ours, 130 interrupted; 128 and a signal's number.
"""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

import trainmaster
from trainmaster.cli.statuses import BAD_INPUT, FAULT, INTERRUPTED
from trainmaster.cli.subcommands import Subcommands, color_option, suggestion
from trainmaster.words import colours

COMMANDS = {
    "run": "start a job and watch it",
    "submit": "start a job and return",
    "train": "train a model of a model zoo",
    "evaluate": "evaluate a trained model",
    "predict": "predict data with a trained model",
    "list": "the jobs there are, newest first",
    "status": "how a job is doing, or how it ended",
    "top": "jobs live in the terminal",
    "logs": "what the programs printed",
    "events": "what happened to a job, line by line",
    "ui": "the pages of jobs, in a browser",
    "attach": "watch a job that runs",
    "wait": "wait for a job to end",
    "kill": "end a job",
    "dump": "what the processes of a task do now",
    "scale": "more or fewer tasks of a role",
    "chaos": "let faults happen to a job",
    "save": "save a job's outputs while it runs",
    "publish": "a job as a trace or an MLflow run",
    "renew": "newer tokens for a job on a secure cluster",
    "retry": "submit a job again",
    "export": "a job as files that open without a server",
    "remove": "remove a job that is over, with its logs",
    "prune": "remove old jobs, and caches that nobody uses",
    "tensorboard": "TensorBoard over the event files of jobs",
    "audit": "prove that each record was counted once",
    "explain": "where each value of a job comes from",
    "schema": "the JSON Schema of job files",
    "doctor": "whether this machine is ready",
    "cluster": "what a cluster has free; clusters to try an engine",
    "image": "images for jobs on Kubernetes",
    "zoo": "model zoos: begin one, make it an image",
    "elasticdl": "ElasticDL's command line, word for word",
    "completion": "completion of commands and jobs for a shell",
}


class Commands(Subcommands):
    """All commands. `tm help COMMAND` and `tm version` are what others have for `--help` and `--version`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._folder = ""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == "help":
            self.main([*args[1:], "--help"], prog_name="tm", standalone_mode=False)
            ctx.exit()
        if args == ["version"]:
            self.main(["--version"], prog_name="tm", standalone_mode=False)
            ctx.exit()
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # which click would make a failure of
            raise click.exceptions.Exit(_discard_output()) from None


@click.group(
    cls=Commands,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A JOB is an id, an unambiguous beginning of one, a name (the job of it that runs, else the newest), or a handle like "
    "local://HOST/ID. tm explain NAME says what an error's name in brackets means.",
)
@click.version_option(trainmaster.__version__, message="trainmaster %(version)s")
@click.option("--json", is_flag=True, help="print JSON, for programs")
@color_option
@click.pass_context
def tm(ctx: click.Context, json: bool) -> None:
    """Run deep-learning programs, unchanged, on the machines you have."""
    ctx.meta["json"] = json


_FULL = (errno.ENOSPC, errno.EDQUOT)


def run(args: Sequence[str]) -> NoReturn:
    """Run a command and exit with its status."""
    ours = list(args[: args.index("--")] if "--" in args else args)
    try:
        status = tm.main(list(args), prog_name="tm", standalone_mode=False)
    except click.exceptions.Exit as end:
        status = end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        status = BAD_INPUT
    except (KeyboardInterrupt, click.Abort) as interrupt:
        status = 128 + getattr(interrupt.__cause__, "number", INTERRUPTED - 128)  # click makes an Abort of it
    except Exception as error:  # noqa: BLE001 - the last place that can report one
        status = _report_error(error, "--json" in ours)
    sys.exit(status if isinstance(status, int) else 0)


def _report_error(error: Exception, as_json: bool) -> int:
    """Print an error, with `as_json` on stdout as one JSON value too; returns its exit status."""
    from trainmaster.core.spec.redaction import redact_text

    message, lines, name, status = _of_stdout(error) or _parts(error)
    message, *lines = map(redact_text, (message, *lines))  # they quote what the user wrote
    brackets = f"  [{name}]" if name else ""  # under which docs/errors.md says more
    text = click.style("error: ", fg="red", bold=True) + "\n  ".join([message + brackets, *lines])
    with contextlib.suppress(OSError):  # nobody reads stderr any more: the exit status says what it says
        click.echo(text, err=True, color=colours.of_echo())
    if as_json:
        import json

        click.echo(json.dumps({"error": {"message": message, "lines": lines, "anchor": name, "status": status}}))
    return status


def _of_stdout(error: Exception) -> tuple[str, list[str], str, int] | None:
    """Return the same where our own output cannot be written; the rest of it is discarded."""
    import os

    if not isinstance(error, OSError) or error.filename is not None or error.errno not in _FULL:
        return None
    try:
        os.write(sys.stdout.fileno(), b"\n")  # the error does not say what was written to
    except OSError as failure:
        _discard_output()
        return f"could not print: {failure.strerror}", ["see where the output goes"], "", FAULT
    return None


def _parts(error: Exception) -> tuple[str, list[str], str, int]:
    """Return message, further lines, anchor and status. Errors that a user can mend are in words; a fault of ours carries its traceback."""
    if isinstance(error, click.UsageError):
        return *_usage(error), "", BAD_INPUT
    if isinstance(error, click.ClickException):
        return error.format_message(), [], "", BAD_INPUT
    from trainmaster.core.errors import TrainmasterError

    if isinstance(error, TrainmasterError):
        return error.message, [line for line in (error.place, error.mend) if line], error.anchor, error.status
    if isinstance(error, OSError) and error.errno in _FULL:  # a full disk, wherever it is, is not our fault
        from trainmaster.client.jobs.places import state_dir
        from trainmaster.log.storage import storage_failed

        return _parts(storage_failed("write", str(error.filename or state_dir()), error))
    import traceback

    traceback.print_exception(error)
    return "this is a fault of trainmaster; please report it with the lines above", [], "", FAULT


def _usage(error: click.UsageError) -> tuple[str, list[str]]:
    message = error.format_message().rstrip(".")
    for integer in ("a valid integer range", "a valid integer"):  # click's words
        message = message.replace(integer, "a whole number")
    lines = [f"{error.ctx.command_path} --help"] if error.ctx else []
    if isinstance(error, click.NoSuchOption):
        known = (
            [name for parameter in error.ctx.command.get_params(error.ctx) for name in parameter.opts]
            if error.ctx
            else []
        )
        from trainmaster.cli.synonyms import INSTEAD, OPTIONS

        name = error.option_name.replace("_", "-")  # torchrun takes both
        instead = INSTEAD.get(name, "") if "--processes" in known else ""
        hint = f"; {instead}" if instead else suggestion(name, known, OPTIONS)
        message = f"there is no option {error.option_name}{hint}"
        if error.ctx and getattr(error.ctx.command, "takes_command", False):
            lines.insert(
                0, f"a command, with its own options, comes after --: {error.ctx.command_path} -- python train.py"
            )
    return message[:1].lower() + message[1:], lines


def _discard_output() -> int:
    """Discard what Python would still flush at exit, since the reader of our output has left; returns the exit status."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
