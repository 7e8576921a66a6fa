"""`tm train`, `tm evaluate` and `tm predict`, and the same in an ElasticDL command line: `tm elasticdl train ...`.

Their options are made from the table of ElasticDL's flags. They describe a job, which is submitted and watched as `tm run` does. An
ElasticDL command line runs on Kubernetes unless `--engine` or the settings say otherwise. It returns once the job is submitted, as in
ElasticDL. Its flags may be shortened; those of another of its commands are named and do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from trainmaster.cli.exits import detach_option, exit_status_option
from trainmaster.cli.options import completing
from trainmaster.cli.options.given import engine_option, json_option, print_json, wants_json
from trainmaster.cli.options.showing import output_choice, output_options
from trainmaster.integrations.elasticdl.flags import BY_NAME, FILE, FLAGS, abbreviated, of
from trainmaster.zoo.flags import BOOL, Flag

THEIRS = "kubernetes"  # ElasticDL's own engine
_DOCS = {
    "train": (
        "Train the model of a model file.",
        "tm train --model_zoo zoo --model_def points.points.custom_model --training_data zoo/data/train --output model",
    ),
    "evaluate": (
        "Evaluate a trained model on data.",
        "tm evaluate --model_zoo zoo --model_def points.points.custom_model --validation_data test --checkpoint_dir_for_init model",
    ),
    "predict": (
        "Predict data with a trained model.",
        "tm predict --model_zoo zoo --model_def points.points.custom_model --prediction_data zoo/data/new --checkpoint_dir_for_init model",
    ),
}  # fmt: skip
# The help of flags that mean something else in an ElasticDL command line.
_THEIR_DOCS = {
    "model_zoo": "the directory of model files: in the image, where the engine runs pods; below /",
    "namespace": "on Kubernetes  [default: default]",
}


class ModelCommand(click.Command):
    """A command whose help shows its options by sections. `is_theirs`: it takes an ElasticDL command line."""

    def __init__(self, *args: Any, verb: str, is_theirs: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self.verb, self.is_theirs = verb, is_theirs

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names = [name for parameter in self.get_params(ctx) for name in parameter.opts]
        if self.is_theirs:
            args = [_whole(word, names) for word in args]
        else:
            _refuse_others(args, self.verb, names)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            flag = BY_NAME.get(str(parameter.name))
            if (record := parameter.get_help_record(ctx)) is not None:
                sections.setdefault(flag.section if flag else "Options of tm", []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _whole(word: str, names: list[str]) -> str:
    """Return a word with its flag at full length, where the flag was shortened as ElasticDL's parser allows."""
    name, mark, value = word.partition("=")
    return f"{abbreviated(name, names)}{mark}{value}" if name.startswith("--") and len(name) > 2 else word


def _refuse_others(args: list[str], verb: str, names: list[str]) -> None:
    for word in args:
        name = word.partition("=")[0]
        flag = BY_NAME.get(name.removeprefix("--")) if name.startswith("--") else None
        if flag is not None and name not in names:
            raise click.UsageError(
                f"{name} belongs to {' and '.join(f'tm {other}' for other in flag.verbs)}, not to tm {verb}",
                click.get_current_context(silent=True),
            )


def _option(flag: Flag) -> Callable[[Any], Any]:
    """Return the click option of a flag. A flag for true or false needs no value."""
    more: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if flag.metavar == BOOL else {}
    default = f"  [default: {flag.default}]" if flag.default else ""
    complete = completing.files if flag.metavar in ("DIR", "URL", FILE) else None
    return click.option(
        f"--{flag.name}", flag.name, metavar=flag.metavar, help=flag.doc + default, hidden=not flag.section,
        shell_complete=complete, **more,
    )  # fmt: skip


def model_command(verb: str, is_theirs: bool = False) -> click.Command:
    """Return the command of a verb. `is_theirs`: for an ElasticDL command line."""

    def run(**options: Any) -> None:
        if is_theirs:
            options |= {
                "tasks": (),
                "quiet": False,
                "timestamps": False,
                "prefix": None,
                "exits_as": "job",
                "detach": "leave",
            }
        _run(verb, is_theirs, options)

    summary, example = _DOCS[verb]
    if is_theirs:
        example = (
            f"tm elasticdl {verb} ... is elasticdl {verb} ..., word for word; it returns once the job is submitted"
        )
    run.__doc__ = (
        f"{summary}{'' if is_theirs else ' It is one job, which is watched until it ends.'}\n\n\b\n{example}\n"
    )
    function: Any = run
    for option in (json_option, *(() if is_theirs else (detach_option, exit_status_option, output_options))):
        function = option(function)
    for option in reversed(_own_options(THEIRS if is_theirs else "local")):
        function = option(function)
    for flag in reversed(FLAGS if is_theirs else of(verb)):
        function = _option(flag._replace(doc=_THEIR_DOCS.get(flag.name, flag.doc)) if is_theirs else flag)(function)
    command: click.Command = click.command(verb, cls=ModelCommand, verb=verb, is_theirs=is_theirs)(function)
    return command


def _own_options(engine: str) -> list[Callable[[Any], Any]]:
    return [
        engine_option(engine),
        click.option("--set", "sets", metavar="PATH=VALUE", multiple=True, shell_complete=completing.keys,
                     help="any key of the job file, like roles.worker.env.A=b"),
        click.option("--dry-run", is_flag=True, help="print the job file and what would be asked for; nothing is started"),
        click.option("--idempotency-key", default="", metavar="KEY", help="a job submitted before under this key is returned instead"),
    ]  # fmt: skip


def _run(verb: str, is_theirs: bool, parameters: dict[str, Any]) -> None:
    from trainmaster.integrations.dialect import Option, OwnOptions
    from trainmaster.integrations.elasticdl.jobs import translated

    own = {name: parameters.pop(name) for name in ("engine", "sets", "dry_run", "idempotency_key")}
    words = {
        name: Option(parameters.pop(name), f"flag --{name}")
        for name in list(BY_NAME)
        if parameters.get(name) is not None
    }
    others = [name for name in words if verb not in BY_NAME[name].verbs]
    if words.get("dataset_fn") and "feed" not in words:
        words["feed"] = Option(words.pop("dataset_fn").text, "flag --dataset_fn")
    sets = tuple(Option(text, "flag --set") for text in own["sets"])
    options = OwnOptions(own["engine"], own["dry_run"], wants_json(), own["idempotency_key"], sets)
    described_words = {name: word for name, word in words.items() if name not in others}
    translation = translated(verb, described_words, options, is_theirs)
    from trainmaster.cli.remarks import note

    for text in (
        *(f"--{name}: nothing to do; it belongs to {BY_NAME[name].verbs[0]}" for name in others),
        *translation.remarks,
    ):
        note(text)
    _submit(translation, words["yaml"].text if "yaml" in words else "", parameters)


def _submit(translation: Any, file: str, shown: dict[str, Any]) -> None:
    """Print, write or submit the job, and watch it unless the command returns at once."""
    from trainmaster.cli.remarks import naming_origins
    from trainmaster.cli.starting import say_submitted, start
    from trainmaster.cli.watching import watch_to_end
    from trainmaster.client.watch.leaving import letting_go
    from trainmaster.integrations import dialect

    described, options = translation.described, translation.options
    with letting_go(shown["detach"]) as begun:
        with translation.speaking(), naming_origins(described):
            if file:
                write(translation, file)
            if options.dry_run:
                if options.as_json:
                    print_json(dialect.checked(translation)[0])
                for text in () if options.as_json else dialect.shown(translation):
                    click.echo(text)
            if file or options.dry_run:
                return
            choice = output_choice(described.job, shown["tasks"], shown["quiet"], shown["timestamps"], shown["prefix"])
            start(described, options.key, begun, spoken=translation.spoken)
        if translation.stays:
            watch_to_end(begun, choice=choice, exits_as=shown["exits_as"], retell=translation.retold)
        elif options.as_json:
            from trainmaster.client.jobs.handles import handle_of

            print_json({"job": begun.job, "handle": str(handle_of(begun.job))})
        else:
            say_submitted(begun.job)


def write(translation: Any, file: str) -> None:
    """Write the job file, or the objects where the engine makes some. Raises BadInput where the file cannot be written."""
    from trainmaster.client.submit.preview import lines
    from trainmaster.core.errors import BadInput
    from trainmaster.engines import registry
    from trainmaster.integrations import dialect

    engine = translation.options.engine
    plan, comments = dialect.checked(translation)
    has_objects = registry.engine(engine).capabilities.dry_run_objects
    text = "\n".join(lines(plan)) + "\n" if has_objects else "\n".join([*comments, dialect.job_file(translation)])
    try:
        with open(file, "w", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise BadInput(
            f"{file} cannot be written: {error.strerror}",
            place=f"flag --yaml: {file}",
            mend="name another file",
            anchor="no-file",
        ) from error
    content = (
        "the objects, without secrets and files; to start the job, leave --yaml out"
        if has_objects
        else f"the job file: tm run {file}"
    )
    click.echo(f"{file} has {content}", err=True)
