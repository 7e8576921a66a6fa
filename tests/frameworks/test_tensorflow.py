"""Real TensorFlow programs find each other by the TF_CONFIG that `frameworks/tensorflow.py` gives them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import waiting
from placing import EXAMPLES, LIMIT, Place, Program, formed

KERAS = [sys.executable, EXAMPLES / "digits-keras" / "train.py"]
SERVERS = [sys.executable, EXAMPLES / "digits-ps" / "train.py"]
ROLES = ("ps:0", "worker:0", "worker:1", "chief:0", "evaluator:0")


def result(directory: Path) -> float:
    return float(json.loads((directory / "model" / "result.json").read_text())["accuracy"])


@pytest.mark.full
def test_workers_with_unequal_parts_train_in_step(
    digits: Path, parts: list[Path], place: Place, tmp_path: Path
) -> None:
    """MultiWorkerMirroredStrategy; then two more epochs as the next generation, from the checkpoint of worker 0."""
    for generation, epochs in ((1, 8), (2, 10)):
        formation = formed("worker:0", "worker:1", generation=generation)
        programs = []
        for task, part in zip(("worker:0", "worker:1"), parts, strict=True):
            env = {"TRAINMASTER_INPUT_TRAIN": str(part), "TRAINMASTER_INPUT_TEST": str(digits / "test")}
            command = [*KERAS, "--epochs", str(epochs)]
            programs += place("tensorflow", formation, task, command, env, tmp_path / task.replace(":", "-"))
        said = [program.succeed() for program in programs]
        assert "worker 0 of 2: 1137 rows to train on, 23 steps" in said[0]
        assert "worker 1 of 2: 300 rows to train on, 23 steps" in said[1]
        assert "reporter progress:1.0000" in said[1]
    assert "epoch 1:" not in said[0]
    assert "epoch 9:" in said[0]
    assert result(tmp_path / "worker-0") >= 0.95, said
    assert not (tmp_path / "worker-1" / "model").exists()


@pytest.mark.full
def test_a_parameter_server_serves_chief_workers_and_evaluator(digits: Path, place: Place, tmp_path: Path) -> None:
    formation = formed(*ROLES)
    env = {"TRAINMASTER_INPUT_TRAIN": str(digits / "train"), "TRAINMASTER_INPUT_TEST": str(digits / "test")}
    command = [*SERVERS, "--checkpoints", tmp_path / "shared", "--epochs", "8"]
    programs: dict[str, Program] = {}
    for task in ROLES:
        [programs[task]] = place("tensorflow", formation, task, command, env, tmp_path / task.replace(":", "-"))
    said = programs["chief:0"].succeed()
    assert result(tmp_path / "chief-0") >= 0.95, said
    assert "after epoch 8:" in programs["evaluator:0"].succeed()
    for task in ("ps:0", "worker:0", "worker:1"):  # these serve until they are stopped
        assert programs[task].process.poll() is None
        assert "serves" in programs[task].text


@pytest.mark.full
def test_a_worker_that_comes_back_at_its_address_takes_steps_again(digits: Path, place: Place, tmp_path: Path) -> None:
    """The chief goes on without it, and with it."""
    tasks = ("ps:0", "worker:0", "chief:0")
    formation = formed(*tasks)
    env = {"TRAINMASTER_INPUT_TRAIN": str(digits / "train"), "TRAINMASTER_INPUT_TEST": str(digits / "test")}
    shared = tmp_path / "shared"
    command = [*SERVERS, "--checkpoints", shared, "--epochs", "30", "--steps", "50"]
    programs: dict[str, Program] = {}
    for task in tasks:
        [programs[task]] = place("tensorflow", formation, task, command, env, tmp_path / task.replace(":", "-"))
    waiting.until(lambda: list(shared.glob("epoch-*.npz")), limit=LIMIT, what=lambda: programs["chief:0"].text)
    programs["worker:0"].stop()
    [again] = place("tensorflow", formation, "worker:0", command, env, tmp_path / "worker-0")
    said = programs["chief:0"].succeed()
    assert result(tmp_path / "chief-0") >= 0.95, said
    assert "worker 0 serves" in again.text
