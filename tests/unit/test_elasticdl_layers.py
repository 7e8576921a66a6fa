"""ElasticDL's preprocessing layers give what ElasticDL's users know, with each backend of Keras that has what they need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import need_frameworks

from trainmaster.elasticdl import fingerprints

PROGRAM = Path(__file__).parents[1] / "programs" / "elasticdl_layers.py"
LIMIT = 300.0  # s

# Load what `PROGRAM` has saved, in a Python with Keras and TensorFlow in which nothing of ours can be imported, or with the layers.
LOAD = """\
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
directory, has_layers = sys.argv[1], sys.argv[2] == "layers"
if not has_layers:
    sys.modules["trainmaster"] = None
import keras, numpy, tensorflow as tf
if has_layers:
    import trainmaster.elasticdl.preprocessing
words = tf.constant([["a,b"], ["c"], [""]])
try:
    rows = keras.saving.load_model(f"{directory}/strings.keras")(words).numpy().tolist()
    fault = ""
except Exception as error:
    rows, fault = None, str(error)
saved = tf.saved_model.load(f"{directory}/exported")
print(json.dumps({"keras": rows, "fault": fault, "saved": saved.serve(words).numpy().tolist()}))
"""

pytestmark = pytest.mark.xdist_group("elasticdl-layers")  # the fixtures are made once


def outcome(backend: str, directory: Path) -> dict[str, Any]:
    need_frameworks("keras", backend)
    command = [sys.executable, PROGRAM, backend, directory]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**result, "directory": str(directory)}


@pytest.fixture(scope="module")
def with_tensorflow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return outcome("tensorflow", tmp_path_factory.mktemp("tensorflow"))


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return outcome("torch", tmp_path_factory.mktemp("torch"))


@pytest.fixture(params=["tensorflow", pytest.param("torch", marks=pytest.mark.full)])
def numbers(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return what the layers give for numbers, with each backend."""
    results: dict[str, Any] = request.getfixturevalue(f"with_{request.param}")["numbers"]
    return results


@pytest.fixture
def strings(with_tensorflow: dict[str, Any]) -> dict[str, Any]:
    results: dict[str, Any] = with_tensorflow["strings"]
    return results


def test_numbers_become_ids(numbers: dict[str, Any]) -> None:
    assert numbers["discretization"] == [[2, 3, 1, 4], [0, 2, 4, 3]]
    assert numbers["bins of short floats"] == [1, 0]
    assert numbers["log_round"] == [0, 1, 0, 2, 7]
    assert numbers["log_round of no logarithm"] == [3, 3, 3, 3, 3]
    assert numbers["round_identity"] == [[1], [2], [0], [2], [2], [2]]
    assert numbers["round_identity of whole numbers"] == [4, 0, 0]
    assert numbers["normalizer"] == [[1.0], [2.0], [3.0]]
    assert numbers["type of normalized"] == "float32"
    assert numbers["to_number"] == [1, -2]
    assert numbers["types"] == ["int16", "float64", "uint8"]
    assert numbers["concatenate"] == [[1, 12]] * 3
    assert numbers["a single tensor"] == [[1.0, 2.0]]


def test_a_vocabulary_may_have_numbers(numbers: dict[str, Any]) -> None:
    assert numbers["index_lookup"] == [[2, 0, 3, 1]]
    assert numbers["index_lookup without others"] == [[2, -1]]
    assert set(numbers["index_lookup of others"]) - {1} <= set(range(3, 13))
    assert numbers["index_lookup of others"][2] == 1


def test_rows_of_a_table_are_combined_without_the_ids_that_are_0(numbers: dict[str, Any]) -> None:
    assert numbers["embedding"]["sum"] == [[8.0, 10.0], [4.0, 5.0], [0.0, 0.0]]
    assert numbers["embedding"]["mean"] == [[4.0, 5.0], [4.0, 5.0], [0.0, 0.0]]
    assert numbers["embedding"]["sqrtn"] == [pytest.approx([8 / 2**0.5, 10 / 2**0.5]), [4.0, 5.0], [0.0, 0.0]]


def test_plain_keras_saves_and_loads_them(numbers: dict[str, Any], strings: dict[str, Any]) -> None:
    assert all(numbers["configurations"])
    for before, after in (numbers["saved"], strings["saved"]):
        assert len(before) == 3
        assert after == before


def test_tensorflow_alone_runs_what_is_exported(strings: dict[str, Any]) -> None:
    before, after = strings["exported"]
    assert after == [pytest.approx(row) for row in before]


@pytest.mark.full
@pytest.mark.parametrize("present", ["layers", "nothing of ours"])
def test_a_keras_file_needs_the_layers_and_a_saved_model_nothing_of_ours(
    present: str, with_tensorflow: dict[str, Any]
) -> None:
    command = [sys.executable, "-c", LOAD, with_tensorflow["directory"], present]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    strings = with_tensorflow["strings"]
    assert loaded["saved"] == [pytest.approx(row) for row in strings["exported"][0]]
    if present == "layers":
        assert loaded["keras"] == [pytest.approx(row) for row in strings["saved"][0]]
    else:
        assert "Could not locate class 'ToRagged'" in loaded["fault"]


@pytest.mark.full
def test_hashes_are_the_same_with_each_backend(with_tensorflow: dict[str, Any], with_torch: dict[str, Any]) -> None:
    for case in ("hashing", "index_lookup of others"):
        assert with_tensorflow["numbers"][case] == with_torch["numbers"][case]
    assert with_tensorflow["strings"]["fingerprints"]


def test_strings_become_ids(strings: dict[str, Any]) -> None:
    assert strings["hashing"] == [[1], [0], [1], [1], [2]]  # as ElasticDL's own documentation has it
    assert strings["hashing of ragged"] == [[1, 0], [1, 1], [2], []]
    assert strings["hashing of sparse"][1] == [1, 0, 1, 1, 2]
    assert strings["index_lookup"] == strings["index_lookup of a file"] == [[0], [1], [2], [3], [3]]
    assert strings["index_lookup of ragged"] == [[0, 1], [2, 3], [3], []]
    assert strings["index_lookup of sparse"][1] == [0, 1, 2, 3, 3]
    assert strings["index_lookup without others"] == [[0], [-1], [-1], [-1], [-1]]
    assert strings["index_lookup in a graph"] == [[2], [2], [0], [2], [1]]
    assert strings["vocab_size"] == 4


def test_strings_become_numbers(strings: dict[str, Any]) -> None:
    assert strings["to_number"] == [[123, -1], [456, -789]]
    assert strings["to_number of floats"] == [[123.5, 0.0]]
    assert strings["to_number of short"] == [[12, 7]]


def test_cells_become_ragged_and_sparse(strings: dict[str, Any]) -> None:
    assert strings["to_ragged"] == [["1", "2", "3"], ["4", "5"], []]
    assert strings["to_ragged of two columns"] == [["a", "b", "c"], ["d"]]
    assert strings["to_ragged of numbers"] == [[1], [], [4]]
    assert strings["to_ragged of floats"] == [[1.0, -1.0]]
    assert strings["to_ragged of ragged"] == [["1", "2"], []]
    assert strings["to_sparse"] == [[[0, 0], [1, 0], [1, 1]], ["A", "B", "C"], [2, 2]]
    assert strings["to_sparse of numbers"] == [[[0, 0], [1, 1]], [3, 0], [2, 2]]
    assert strings["to_sparse of sparse"] == [[[0, 0], [2, 0]], [1, 1], [3, 1]]


def test_ragged_and_sparse_tensors_keep_their_form(strings: dict[str, Any]) -> None:
    assert strings["discretization of ragged"] == [[2, 0], [4]]
    assert strings["discretization of sparse"] == [[[0, 0], [0, 1], [1, 0]], [2, 0, 4], [2, 2]]
    assert strings["concatenate ragged"] == [[1, 12], [12], [1]]
    assert strings["concatenate sparse"][1] == [1, 12, 12, 1]
    assert strings["concatenate strings"] == [["A", "B"]]


def test_sparse_ids_may_be_0(strings: dict[str, Any]) -> None:
    assert strings["embedding of sparse"]["sum"] == [[8.0, 10.0], [4.0, 5.0], [0.0, 0.0]]
    assert strings["embedding of sparse"]["mean"] == [[4.0, 5.0], [4.0, 5.0], [0.0, 0.0]]
    assert strings["embedding of ragged"] == [[4.0, 5.0], [0.0, 1.0], [0.0, 0.0]]


def test_a_model_of_strings_trains(strings: dict[str, Any]) -> None:
    assert strings["losses"][-1] < 0.2 * strings["losses"][0]


@pytest.mark.parametrize(
    ("case", "kind", "text"),
    [
        ("not ascending", "ValueError", "must ascend: [1.0, 3.0, 2.0]"),
        ("divisor", "ValueError", "must not be 0"),
        ("num_bins", "ValueError", "must be above 0: 0"),
        ("no vocabulary", "ValueError", "needs a vocabulary"),
        ("repeated", "ValueError", "has 'a' more than once"),
        ("combiner", "ValueError", "must be sum, mean or sqrtn: 'max'"),
        ("out_type", "ValueError", "must be the type of a number: 'string'"),
        ("offsets", "ValueError", "has 1 offsets, and is given 2 tensors"),
        ("hash of floats", "TypeError", "hash takes strings or whole numbers: its values are float64"),
    ],
)
def test_a_wrong_argument_is_one_clear_error(numbers: dict[str, Any], case: str, kind: str, text: str) -> None:
    assert numbers[case][0] == kind
    assert text in numbers[case][1]


@pytest.mark.full
def test_what_needs_tensorflow_says_so(with_torch: dict[str, Any], strings: dict[str, Any]) -> None:
    for case, (kind, text) in with_torch["strings"].items():
        assert kind == "NeedsTensorFlow", case
        assert "layer words (" in text
        assert "this program's backend is torch; set KERAS_BACKEND=tensorflow before keras is imported" in text
    assert "is of strings: its values are int64" in strings["whole numbers"][1]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(1, 2**40))
def test_a_bin_is_within_its_range_and_is_that_of_the_number_alone(values: list[int], count: int) -> None:
    bins = fingerprints.bins(numpy.array(values), count).tolist()
    assert all(0 <= number < count for number in bins)
    assert bins == [fingerprints.bins(numpy.array(value), count).item() for value in values]
