"""`python -m trainmaster.zoo` alone: Keras with both backends, and PyTorch. Each program does several checks: imports take seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from parts import need_frameworks

PROGRAMS = Path(__file__).parents[1] / "programs"
LIMIT = 400.0  # s; on a machine with other work

pytestmark = pytest.mark.xdist_group("zoo-programs")  # the fixtures are made once


def outcome(program: str, *arguments: Any) -> dict[str, Any]:
    command = [sys.executable, PROGRAMS / program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.fixture(scope="module")
def with_tensorflow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    need_frameworks("keras", "tensorflow")
    return outcome("zoo_keras.py", "tensorflow", tmp_path_factory.mktemp("tensorflow"))


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    need_frameworks("keras", "torch")
    return outcome("zoo_keras.py", "torch", tmp_path_factory.mktemp("torch"))


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    need_frameworks("torch")
    return outcome("zoo_torch.py", tmp_path_factory.mktemp("module"))


# With PyTorch behind Keras it is the same program, so that is a full test.
@pytest.fixture(params=["tensorflow", pytest.param("torch", marks=pytest.mark.full)])
def keras(request: pytest.FixtureRequest) -> dict[str, Any]:
    results: dict[str, Any] = request.getfixturevalue(f"with_{request.param}")
    return results


def lines(facts: dict[str, Any], name: str, begin: str) -> list[str]:
    assert facts[name]["status"] == 0, facts[name]
    return [line for line in facts[name]["out"] if line.startswith(begin)]


def error(facts: dict[str, Any], name: str, status: int = 2) -> list[str]:
    assert facts[name]["status"] == status, facts[name]
    assert facts[name]["err"][0].startswith("error: ")
    return [line.removeprefix("error: ").strip() for line in facts[name]["err"]]


def test_a_model_of_several_inputs_and_outputs_is_trained(keras: dict[str, Any]) -> None:
    steps = lines(keras, "wide", "step=")
    assert [line.split()[0] for line in steps] == [f"step={step}" for step in range(1, 6)], (
        "33 records by 16, until MaxStepsStopping"
    )
    assert [line.split()[1] for line in steps] == ["epoch=1"] * 3 + ["epoch=2"] * 2
    assert all(" crossed=" in line and " small=0 " in line for line in steps)
    rates = [call[2] for call in keras["callbacks"] if call[0] == "step"]
    assert rates == [0.1, 0.05, 0.0333, 0.025, 0.02], "LearningRateScheduler goes by steps"
    assert [call for call in keras["callbacks"] if call[0] == "epoch"] == [
        ["epoch", 0, ["loss"]],
        ["epoch", 1, ["loss", "val_logits_mean_label", "val_probabilities_auc"]],
    ]


def test_evaluation_is_exact_from_whatever_there_is(keras: dict[str, Any]) -> None:
    results = [
        lines(keras, name, "Evaluation metrics[step=")[-1].partition("]: ")[2]
        for name in ("wide", "evaluate from checkpoint", "evaluate from export", "evaluate from weights")
    ]
    assert len({*results}) == 1, results
    assert f"'mean_label': {16 / 33}" in results[0], (
        "a function's mean is that over all 33 records, in batches of 16, 16 and 1"
    )


def test_a_file_of_weights_that_is_cut_short_is_reported(keras: dict[str, Any]) -> None:
    what, place = error(keras, "cut short")
    assert "cut.keras is cut short, or no file that Keras has saved" in what
    assert place.strip() == "--checkpoint_dir_for_init"


def test_predictions_are_given_to_the_processor_and_to_files(keras: dict[str, Any]) -> None:
    assert lines(keras, "predict", "predicted") == ["predicted 33 examples"]
    assert keras["processed"] == [[0, 10], [0, 11], [0, 12]]
    assert [len(rows) for rows in keras["predictions"].values()] == [10, 11, 12]
    assert all({*row} == {"logits", "probabilities"} for rows in keras["predictions"].values() for row in rows)


def test_a_reader_of_the_models_own(keras: dict[str, Any]) -> None:
    assert lines(keras, "custom", "trained") == ["trained 6 steps"]
    assert keras["custom again"]["out"] == ["going on from the checkpoint of step 6", "trained 6 steps"], "all is done"


def test_a_loss_of_a_wrong_shape_is_refused_with_its_place(keras: dict[str, Any]) -> None:
    what, place, _ = error(keras, "wrong loss")
    assert what == "the loss returns the shape (16, 2) for a batch of 16: a number or one for each example is due"
    assert place.endswith("def wrong_loss(labels, predictions):")
    assert "keras_wide.py, line " in place


def test_an_id_without_a_row_is_reported_with_its_embedding_and_the_range(keras: dict[str, Any]) -> None:
    for name, embedding in (("id 99 of record 0, keras", "embedding"), ("id 99 of record 150, keras", "embedding"),
                            ("id -3 of record 150, tables", "table")):  # fmt: skip
        what = error(keras, name)[0]
        assert what == f"the {embedding} vectors got the id {name.split()[1]}, and its ids are 0 to 39"
    assert keras["id -3 of record 150, keras"]["status"] == 0, "Keras counts it from the end"


def test_a_feed_that_repeats_or_caches_is_refused(with_tensorflow: dict[str, Any]) -> None:
    assert error(with_tensorflow, "repeats")[0] == "the feed repeats its records"
    assert error(with_tensorflow, "caches")[0] == "the feed caches its records"


def test_an_export_is_loaded_by_plain_keras_and_tensorflow(with_tensorflow: dict[str, Any]) -> None:
    assert len(with_tensorflow["differences"]) == 2
    assert max(with_tensorflow["differences"]) < 1e-5
    assert "assets" not in with_tensorflow["exported"], "a job would tell that an empty directory is not stored"
    assert with_tensorflow["exported by callback"] == ["model.keras", "saved_model"]


def test_a_callback_s_patience_is_in_the_checkpoint(with_tensorflow: dict[str, Any]) -> None:
    """That of the last epoch's end comes after the checkpoint."""
    counts = [
        [line.rpartition(" ")[2] for line in lines(with_tensorflow, name, "epochs that were no better")]
        for name in ("patience", "patience again")
    ]
    assert counts == [["0", "1", "2"], ["2", "3"]]


def test_what_users_can_mend_is_one_error(with_tensorflow: dict[str, Any]) -> None:
    assert error(with_tensorflow, "another model")[0].startswith("the checkpoint is of another model or optimizer: ")
    assert error(with_tensorflow, "no data")[0].endswith("/nothing matches no file")
    assert error(with_tensorflow, "bad record")[:2] == [
        "a record cannot be read: 3 fields, and the header has 5",
        f"{with_tensorflow['directory']}/bad.csv, record 2",
    ]
    assert error(with_tensorflow, "parameter server")[0] == "no job started this process"


def test_a_file_of_torch_save_that_is_cut_short_is_reported(module: dict[str, Any]) -> None:
    what, place = error(module, "cut short")
    assert "cut.pt is damaged, or is not a file of weights that torch.save has written: " in what
    assert place == "--checkpoint_dir_for_init"


def test_a_pytorch_module(module: dict[str, Any]) -> None:
    assert lines(module, "train", "trained") == ["trained 25 steps"]
    assert module["loaded"]["state dict"] < 1e-6
    assert module["loaded"]["program"] < 1e-6
    assert module["loaded"]["other batch"] == [7, 3], "the exported program takes any batch"
    assert lines(module, "come back", "going on") == ["going on from the checkpoint of step 25"]
    assert module["loaded"]["come back"] == [7, 3], "the checkpoint tells the form of the input"
    evaluated = {
        lines(module, name, "Evaluation")[0].partition("]: ")[2] for name in ("train", "from checkpoint", "from export")
    }
    assert len(evaluated) == 1
    assert error(module, "wrong loss")[0].startswith("the loss returns the shape (32, 3) for a batch of 32")
    assert error(module, "optimizer")[0] == "the optimizer of a PyTorch model must take its parameters"


def test_an_id_without_a_row_is_reported_by_pytorch_too(module: dict[str, Any]) -> None:
    for name, part in (("id 99 of record 0, moved", "embedding vectors"), ("id 99 of record 150, moved", "embedding vectors"),
                       ("id 99 of record 150, tables", "table weights")):  # fmt: skip
        what, _ = error(module, name)
        assert what == f"the {part} got the id {name.split()[1]}, and its ids are 0 to 39"


def test_results_that_cannot_be_written_are_told_before_training(module: dict[str, Any]) -> None:
    data = f"{module['directory']}/iris.csv"
    mend = "check the permissions there, or name another directory"
    reasons = {"no folder": f"{data} is not a directory", "below a file": f"{data} is not a directory"}
    reasons |= {"no file system": "nothing can be made in /proc: No such file or directory"}
    for name, reason in reasons.items():
        what, place, advice = error(module, name)
        assert (what, advice) == (f"the results cannot be written: {reason}", mend)
        assert place.startswith("--output: ")
        assert module[name]["out"] == [], "no step was made"
    assert error(module, "a url")[0] == "without a job, results are written into a directory of this machine"
    assert error(module, "no predictions")[0] == f"the results cannot be written: {data} is not a directory"


def test_a_loss_that_is_no_number_stops_training(module: dict[str, Any]) -> None:
    assert error(module, "nan", status=1) == [
        "the loss of step 5 is NaN; the job is stopped",
        f"the last good checkpoint: state-00000002.json of step 4 in {module['directory']}/nan",
    ]


def test_a_gradient_that_is_no_number_is_in_no_checkpoint(module: dict[str, Any]) -> None:
    """The loss of the step is finite; that of the next one, behind the checkpoint, would not be."""
    assert error(module, "steep", status=1) == [
        "parameter 'hidden.weight' is not finite after step 4; the job is stopped",
        f"the last good checkpoint: state-00000001.json of step 2 in {module['directory']}/steep",
    ]


def test_a_killed_training_goes_on_exactly(module: dict[str, Any]) -> None:
    assert module["killed"]["status"] == -9
    begin, end = module["again"]
    assert begin in [f"going on from the checkpoint of step {step}" for step in (2, 4, 6)], (
        "the newest may not be stored yet"
    )
    assert end == "trained 8 steps"
    assert module["same weights"], "as if nothing had been killed"
