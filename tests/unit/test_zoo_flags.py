"""The flags of the zoo's program: ElasticDL's names and defaults, and one clear error for what is wrong."""

from __future__ import annotations

import pytest

from trainmaster.zoo import flags
from trainmaster.zoo.errors import BadModel

NEEDED = ["--model_zoo", "zoo", "--model_def", "m.f"]


def test_defaults_are_elasticdls() -> None:
    task, values = flags.parse(["train", *NEEDED])
    assert task == "train"
    assert {name: values[name] for name in ("minibatch_size", "num_epochs", "evaluation_steps", "log_loss_steps", "use_async")} == {
        "minibatch_size": 64, "num_epochs": 1, "evaluation_steps": 0, "log_loss_steps": 100, "use_async": False,
    }  # fmt: skip
    assert (values["feed"], values["distribution_strategy"]) == ("feed", "Local")


def test_values_and_older_names() -> None:
    _, values = flags.parse(["train", *NEEDED, "--dataset_fn=older", "--use_async", "--max_step", "7"])
    assert (values["feed"], values["use_async"], values["max_step"]) == ("older", True, 7)
    assert flags.parse(["train", *NEEDED, "--use_async", "false"])[1]["use_async"] is False
    assert flags.parse(["train", *NEEDED, "--log_level", "info"])[1]["log_level"] == "INFO"
    assert "use_async" not in flags.flags_of("predict")


@pytest.mark.parametrize(
    ("arguments", "message", "mend"),
    [
        (["trian"], "unknown task trian", "did you mean train?"),
        (
            ["train", *NEEDED, "--minibatchsize", "3"],
            "train has no flag --minibatchsize",
            "did you mean --minibatch_size?",
        ),
        (["train", *NEEDED, "--minibatch", "3"], "train has no flag --minibatch", "did you mean --minibatch_size?"),
        (["predict", *NEEDED, "--loss=x"], "predict has no flag --loss", "it is a flag of train"),
        (["train", *NEEDED, "--zzzz"], "train has no flag --zzzz", "see train --help"),
        (["train", *NEEDED, "--max_step", "-1"], "--max_step must be at least 0, and is -1", ""),
        (["train", *NEEDED, "--minibatch_size", "0"], "--minibatch_size must be at least 1, and is 0", ""),
        (["train", "--model_zoo", "zoo"], "--model_def is needed: the model: dir.module", ""),
    ],
)
def test_what_is_wrong_is_refused(arguments: list[str], message: str, mend: str) -> None:
    with pytest.raises(BadModel) as caught:
        flags.parse(arguments)
    assert caught.value.message.startswith(message)
    assert caught.value.mend == mend


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["train", *NEEDED, "--num_epochs", "two"], "invalid int value: 'two'"),
        (["train", *NEEDED, "--use_async", "maybe"], "invalid true_or_false value: 'maybe'"),
        (["train", *NEEDED, "--distribution_strategy", "Locl"], "invalid choice: 'Locl'"),
        ([], "required: train|evaluate|predict"),
    ],
)
def test_values_that_are_wrong_are_refused(arguments: list[str], part: str) -> None:
    with pytest.raises(BadModel) as caught:
        flags.parse(arguments)
    assert part in caught.value.message


def test_help_names_each_flag(capsys: pytest.CaptureFixture[str]) -> None:
    for task in flags.TASKS:
        with pytest.raises(SystemExit) as caught:
            flags.parse([task, "--help"])
        assert caught.value.code == 0
        text = capsys.readouterr().out
        assert [name for name in flags.flags_of(task) if f"--{name}" not in text] == []
