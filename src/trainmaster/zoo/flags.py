"""ElasticDL's flags that `python -m trainmaster.zoo train|evaluate|predict` takes, and their parser.

Names, defaults and meanings are ElasticDL's. A flag is `--NAME VALUE`, or `--NAME` alone where its value is true or false. A task refuses
the flags of others. `tm train` and its like have these flags too, and some for the job (`integrations.elasticdl.flags`): so a text says
what a flag is in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from .errors import BadModel, did_you_mean

TRAIN, EVALUATE, PREDICT = TASKS = ("train", "evaluate", "predict")
SINGLE, PARAMETER_SERVER, ALLREDUCE = STRATEGIES = ("Local", "ParameterServerStrategy", "AllreduceStrategy")
# How a value is written, as the help shows it.
COUNT, BYTES, BOOL = "N", "BYTES", "[true|false]"
# Sections of the help.
MODEL, DATA, TRAINING, RESULTS, JOB = "Model", "Data", "Training", "Checkpoints and results", "Job"
_TRAIN, _EVALUATES = (TRAIN,), (TRAIN, EVALUATE)


class Flag(NamedTuple):
    """A flag. `verbs`: the tasks that have it. `least`: of a number. A `metavar` of A|B|C names all that the value may be."""

    name: str
    metavar: str
    default: str
    section: str
    doc: str
    verbs: tuple[str, ...] = TASKS
    least: int = 0

    @property
    def is_number(self) -> bool:
        return self.metavar in (COUNT, BYTES)

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(self.metavar.split("|")) if "|" in self.metavar and self.metavar != BOOL else ()


FLAGS = (
    Flag("model_zoo", "DIR", "", MODEL, "the directory of model files; it is sent with the job"),
    Flag("model_def", "DIR.MODULE.NAME", "", MODEL, "the model: dir.module.function_or_class of the zoo"),
    Flag("model_params", "K=V;K=V", "", MODEL, "arguments of the model's function"),
    Flag("loss", "NAME", "loss", MODEL, "the loss function in the model file", _TRAIN),
    Flag("optimizer", "NAME", "optimizer", MODEL, "the function that makes the optimizer", _TRAIN),
    Flag("feed", "NAME", "feed", MODEL, "the function that makes batches of records; also --dataset_fn"),
    Flag("eval_metrics_fn", "NAME", "eval_metrics_fn", MODEL, "the function that gives the metrics", _EVALUATES),
    Flag("callbacks", "NAME", "callbacks", MODEL, "the function that gives callbacks", _TRAIN),
    Flag("custom_data_reader", "NAME", "custom_data_reader", MODEL, "the function that makes a reader"),
    Flag("prediction_outputs_processor", "NAME", "PredictionOutputsProcessor", MODEL, "the class that gets each prediction", (PREDICT,)),
    Flag("training_data", "URL", "", DATA, "what is trained on: a path, a pattern or a URL", _TRAIN),
    Flag("validation_data", "URL", "", DATA, "what the model is evaluated on", _EVALUATES),
    Flag("prediction_data", "URL", "", DATA, "what is predicted", (PREDICT,)),
    Flag("data_reader_params", "K=V;K=V", "", DATA, "arguments of the reader: reader_type (CSV, Text, RecordIO); of CSV sep and columns"),
    Flag("minibatch_size", COUNT, "64", DATA, "records of a batch", least=1),
    Flag("num_minibatches_per_task", COUNT, "8", DATA, "batches of a shard, where files can be cut so; files: default by size", least=1),
    Flag("num_epochs", COUNT, "1", DATA, "how often every record is read", _TRAIN, 1),
    Flag("distribution_strategy", "|".join(STRATEGIES), SINGLE, TRAINING, "how workers share the model"),
    Flag("get_model_steps", COUNT, "1", TRAINING, "the model is fetched from the servers every so many steps", _TRAIN, 1),
    Flag("grads_to_wait", COUNT, "1", TRAINING, "gradients that make one synchronous step", _TRAIN, 1),
    Flag("sync_version_tolerance", COUNT, "0", TRAINING, "versions that a gradient may be late", _TRAIN),
    Flag("use_async", BOOL, "false", TRAINING, "whether each gradient is applied at once", _TRAIN),
    Flag("lr_staleness_modulation", BOOL, "false", TRAINING, "whether late gradients count less; with --use_async", _TRAIN),
    Flag("embedding_size", BYTES, "2097152", TRAINING, "larger embeddings move to the servers", _TRAIN),
    Flag("evict_unused", "DURATION", "", TRAINING, "rows of tables that were in no batch for so long are removed, as by 7d", _TRAIN),
    Flag("evaluation_steps", COUNT, "0", TRAINING, "the model is evaluated every so many steps, and at the end", _TRAIN),
    Flag("log_loss_steps", COUNT, "100", TRAINING, "the loss is printed every so many steps", _TRAIN),
    Flag("max_step", COUNT, "0", TRAINING, "training ends after so many steps; 0: with its data", _TRAIN),
    Flag("checkpoint_steps", COUNT, "0", RESULTS, "a checkpoint is made every so many steps, and at the end", _TRAIN),
    Flag("checkpoint_dir", "URL", "", RESULTS, "where checkpoints are kept; default: with the job", _TRAIN),
    Flag("keep_checkpoint_max", COUNT, "0", RESULTS, "checkpoints that are kept; 0: all", _TRAIN),
    Flag("checkpoint_dir_for_init", "URL", "", RESULTS, "a checkpoint, an exported model or weights to begin from"),
    Flag("output", "URL", "", RESULTS, "where the model is exported to, or predictions are written", (TRAIN, PREDICT)),
    Flag("num_ps_pods", COUNT, "0", JOB, "parameter servers; training by servers has at least one"),
    Flag("log_level", "DEBUG|INFO|WARNING|ERROR|CRITICAL", "INFO", JOB, "what the workers print"),
)  # fmt: skip
_NEEDED = ("model_zoo", "model_def")
OLDER_NAMES = {"dataset_fn": "feed"}


def flags_of(task: str) -> dict[str, Flag]:
    """Return the flags of a task by name."""
    return {flag.name: flag for flag in FLAGS if task in flag.verbs}


def parse(arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the task, and the values of all its flags by name, of a command line without the program's name.

    Raises BadModel for what cannot be understood, SystemExit(0) after `--help`, which it prints.
    """
    parser = _parser()
    commands = parser.add_subparsers(dest="task", metavar="train|evaluate|predict", required=True)
    for task in TASKS:
        command = commands.add_parser(task, help=_TASK_HELP[task], description=_TASK_HELP[task], allow_abbrev=False)
        for flag in flags_of(task).values():
            _add(command, flag)
    if arguments and not arguments[0].startswith("-") and arguments[0] not in TASKS:
        raise BadModel(
            f"unknown task {arguments[0]}", mend=did_you_mean(arguments[0], list(TASKS), f"it is {' or '.join(TASKS)}")
        )
    parsed, unknown = parser.parse_known_args(arguments)
    task, values = parsed.task, {name: value for name, value in vars(parsed).items() if name != "task"}
    known = flags_of(task)
    if unknown:
        name = unknown[0].partition("=")[0]
        elsewhere = next((flag for flag in FLAGS if f"--{flag.name}" == name), None)
        mend = f"it is a flag of {' and '.join(elsewhere.verbs)}" if elsewhere else f"see {task} --help"
        near = did_you_mean(name.lstrip("-"), list(known), "")
        raise BadModel(
            f"{task} has no flag {name}",
            mend=near.replace("did you mean ", "did you mean --") if near and not elsewhere else mend,
        )
    for name, flag in known.items():
        if flag.is_number and values[name] < flag.least:
            raise BadModel(f"--{name} must be at least {flag.least}, and is {values[name]}")
        if name in _NEEDED and not values[name]:
            raise BadModel(f"--{name} is needed: {flag.doc}")
    return task, values


def _add(command: Any, flag: Flag) -> None:
    names = [f"--{flag.name}", *(f"--{older}" for older, name in OLDER_NAMES.items() if name == flag.name)]
    shown = f" (default: {flag.default})" if flag.default not in ("", "0", "false") else ""
    options: dict[str, Any] = {"metavar": None if flag.choices else flag.metavar.strip("[]"), "default": flag.default}
    if flag.metavar == BOOL:
        options |= {"type": true_or_false, "nargs": "?", "const": True}
    elif flag.is_number:
        options["type"] = int
    elif flag.choices:
        options |= {"choices": flag.choices, "type": str.upper if flag.name == "log_level" else str}
    command.add_argument(
        *names, dest=flag.name, help=flag.doc + (" (needed)" if flag.name in _NEEDED else shown), **options
    )


def true_or_false(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
        raise ValueError(text)
    return text.lower() in ("true", "1", "yes")


def _parser() -> Any:
    """Return a parser whose errors are a BadModel. Only a program loads argparse: the submitter's side reads the table."""
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise BadModel(message[:1].lower() + message[1:], mend=f"see {self.prog} --help")

    about = "Train, evaluate or predict with a model that is described in one file. In a job its data are shared among the workers."
    return Parser(prog="python -m trainmaster.zoo", description=about, allow_abbrev=False)


_TASK_HELP = {
    TRAIN: "Train a model, and export it",
    EVALUATE: "Compute the metrics of a trained model",
    PREDICT: "Give a trained model's predictions",
}
