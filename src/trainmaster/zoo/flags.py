"""The flags of `python -m trainmaster.zoo train|evaluate|predict`: one table, which the submitter's side reads too.

Names, defaults and meanings are ElasticDL's. A flag is `--NAME VALUE`, or `--NAME` alone where it is of the type `bool`. `tasks` are those
that take it; other tasks refuse it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from .errors import BadModel, did_you_mean

TRAIN, EVALUATE, PREDICT = TASKS = ("train", "evaluate", "predict")
SINGLE, PARAMETER_SERVER, ALLREDUCE = STRATEGIES = ("Local", "ParameterServerStrategy", "AllreduceStrategy")
_MODEL_TASKS = (TRAIN, EVALUATE)


@dataclass(frozen=True)
class Flag:
    """A flag. `type`: of its value: str, int or bool. `choices`: all that its value may be; (): anything."""

    name: str
    type: type
    default: Any
    help: str
    tasks: tuple[str, ...] = TASKS
    choices: tuple[str, ...] = ()
    least: int = 0  # of a number

    @property
    def is_needed(self) -> bool:
        """Tell whether the user must give it."""
        return self.default is None


FLAGS = (
    Flag("model_zoo", str, None, "the directory of the model files"),
    Flag("model_def", str, None, "the model: dir.module.function_or_class, from the directory of the zoo on"),
    Flag("model_params", str, "", "arguments of the model: name=value, with commas or semicolons between"),
    Flag("loss", str, "loss", "the name of the loss in the model file", (TRAIN,)),
    Flag("optimizer", str, "optimizer", "the name of the function that makes the optimizer", (TRAIN,)),
    Flag("feed", str, "feed", "the name of the function that makes features and labels of records; also --dataset_fn"),
    Flag("eval_metrics_fn", str, "eval_metrics_fn", "the name of the function that gives the metrics", _MODEL_TASKS),
    Flag("callbacks", str, "callbacks", "the name of the function that gives the callbacks", (TRAIN,)),
    Flag("custom_data_reader", str, "custom_data_reader", "the name of the function that makes a reader of the file's own"),
    Flag("data_reader_params", str, "", "arguments of the reader; of CSV: sep and columns; reader_type: CSV, Text, RecordIO, ..."),
    Flag("prediction_outputs_processor", str, "PredictionOutputsProcessor", "the name of the class that gets the predictions",
         (PREDICT,)),
    Flag("minibatch_size", int, 64, "the number of examples of a batch", least=1),
    Flag("num_minibatches_per_task", int, 8, "batches of a shard of a custom_data_reader: its records_per_task", least=1),
    Flag("num_epochs", int, 1, "how often the training data are read; in a job its file says it", (TRAIN,), least=1),
    Flag("training_data", str, "", "a file, directory or pattern to train on; in a job its input training", (TRAIN,)),
    Flag("validation_data", str, "", "what to evaluate on; in a job its input validation", _MODEL_TASKS),
    Flag("prediction_data", str, "", "what to predict from; in a job its input prediction", (PREDICT,)),
    Flag("evaluation_steps", int, 0, "evaluate after each so many steps, and at the end; 0: at the end alone", (TRAIN,)),
    Flag("checkpoint_steps", int, 0, "save a checkpoint after each so many steps, and at the end; 0: at the end alone", (TRAIN,)),
    Flag("checkpoint_dir", str, "", "where checkpoints are kept, and training goes on from; in a job its checkpoint's path", (TRAIN,)),
    Flag("keep_checkpoint_max", int, 0, "the number of newest checkpoints that are kept; 0: all", (TRAIN,)),
    Flag("checkpoint_dir_for_init", str, "", "begin from a directory of checkpoints, an exported model, or a file of weights"),
    Flag("output", str, "", "the directory for the exported model, of predict for the predictions; in a job its output", (TRAIN, PREDICT)),
    Flag("log_loss_steps", int, 100, "print the loss after each so many steps; 0: never", (TRAIN,)),
    Flag("max_step", int, 0, "stop after so many steps; 0: when the data have ended", (TRAIN,)),
    Flag("distribution_strategy", str, SINGLE, "how several workers train one model", choices=STRATEGIES),
    Flag("num_ps_pods", int, 0, "the number of parameter servers; 0: as many as the job's role ps has"),
    Flag("get_model_steps", int, 1, "fetch parameters from the servers at each so many steps", (TRAIN,), least=1),
    Flag("grads_to_wait", int, 1, "the number of workers' gradients that the servers apply at once", (TRAIN,), least=1),
    Flag("sync_version_tolerance", int, 0, "how many versions gradients may be behind the servers' parameters", (TRAIN,)),
    Flag("use_async", bool, False, "have the servers apply gradients as they come", (TRAIN,)),
    Flag("lr_staleness_modulation", bool, False, "have the servers divide the learning rate by the staleness of gradients", (TRAIN,)),
    Flag("embedding_size", int, 2 * 1024 * 1024, "the bytes above which a Keras embedding is on the parameter servers", (TRAIN,)),
    Flag("evict_unused", str, "", "remove rows of tables that were in no batch for so long, like 7d; a table may say it itself", (TRAIN,)),
    Flag("log_level", str, "INFO", "how much is printed", choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")),
)  # fmt: skip
OLDER_NAMES = {"dataset_fn": "feed"}


def flags_of(task: str) -> dict[str, Flag]:
    """Return the flags of a task by name."""
    return {flag.name: flag for flag in FLAGS if task in flag.tasks}


def parse(arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the task, and the values of all its flags by name, of a command line without the program's name.

    Raises BadModel for what cannot be understood, SystemExit(0) after `--help`, which it prints.
    """
    parser = _Parser(prog="python -m trainmaster.zoo", description=_ABOUT, allow_abbrev=False)
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
        mend = f"it is a flag of {' and '.join(elsewhere.tasks)}" if elsewhere else f"see {task} --help"
        near = did_you_mean(name.lstrip("-"), list(known), "")
        raise BadModel(
            f"{task} has no flag {name}",
            mend=near.replace("did you mean ", "did you mean --") if near and not elsewhere else mend,
        )
    for name, flag in known.items():
        if flag.type is int and values[name] < flag.least:
            raise BadModel(f"--{name} must be at least {flag.least}, and is {values[name]}")
        if flag.is_needed and not values[name]:
            raise BadModel(f"--{name} is needed: {flag.help}")
    return task, values


def _add(command: Any, flag: Flag) -> None:
    shown = f"{flag.help} (needed)" if flag.is_needed else flag.help
    if flag.default and flag.type is not bool:
        shown += f" (default: {flag.default})"
    names = [f"--{flag.name}", *(f"--{older}" for older, name in OLDER_NAMES.items() if name == flag.name)]
    if flag.type is bool:
        command.add_argument(
            *names,
            dest=flag.name,
            type=true_or_false,
            nargs="?",
            const=True,
            default=False,
            metavar="true|false",
            help=shown,
        )
    else:
        choices, kind = flag.choices or None, str.upper if flag.name == "log_level" else flag.type
        metavar = None if choices else {int: "N", str: "TEXT"}[flag.type]
        command.add_argument(
            *names, dest=flag.name, type=kind, default=flag.default, choices=choices, metavar=metavar, help=shown
        )


def true_or_false(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
        raise ValueError(text)
    return text.lower() in ("true", "1", "yes")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are a BadModel."""

    def error(self, message: str) -> NoReturn:
        raise BadModel(message[:1].lower() + message[1:], mend=f"see {self.prog} --help")


_ABOUT = "Train, evaluate or predict with a model that is described in one file. In a job its data are shared among the workers."
_TASK_HELP = {
    TRAIN: "Train a model, and export it",
    EVALUATE: "Compute the metrics of a trained model",
    PREDICT: "Give a trained model's predictions",
}
