"""A model file is found, imported and checked; each fault of it is one error that says where it is and what to do."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import need_frameworks

from trainmaster.core.errors import BadInput
from trainmaster.zoo import model_file
from trainmaster.zoo.errors import BadModel
from trainmaster.zoo.params import parse_params

WHOLE = """
    def custom_model(layers=1, name=""): return ("model", layers, name)
    def loss(labels, predictions): return 0.0
    def optimizer(lr=0.1): return ("sgd", lr)
    def feed(dataset, mode, metadata): return dataset
    def eval_metrics_fn(): return {}
"""
NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def imports() -> Iterator[None]:
    """Take back what the files of a test have changed of the interpreter."""
    path, modules = [*sys.path], {*sys.modules}
    yield
    sys.path[:] = path
    for name in {*sys.modules} - modules:
        del sys.modules[name]


class Zoo:
    """A zoo of one directory, `models`, with files of the text that a test gives. `name`: of the module of its first file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = f"models{next(NUMBERS)}"
        self.file = path / self.name / "digits.py"
        self.file.parent.mkdir(parents=True)

    def write(self, text: str, name: str = "digits.py") -> Path:
        file = self.file.parent / name
        file.write_text(dedent(text).lstrip("\n"))
        return file

    def load(self, definition: str = "digits.custom_model", **options: Any) -> model_file.ModelFile:
        return model_file.load(self.path, f"{self.name}.{definition}", **options)

    def refused(self, definition: str = "digits.custom_model", **options: Any) -> BadModel:
        with pytest.raises(BadModel) as raised:
            self.load(definition, **options)
        return raised.value


@pytest.fixture
def zoo(tmp_path: Path) -> Zoo:
    return Zoo(tmp_path / "zoo")


def test_the_parts_of_a_file_are_there_by_name(zoo: Zoo) -> None:
    zoo.write(WHOLE)
    parts = zoo.load()
    assert parts.path == str(zoo.file)
    assert parts.custom_model(2) == ("model", 2, "")
    assert parts.optimizer() == ("sgd", 0.1)
    assert parts.loss.__name__ == "loss"
    assert parts.feed.__name__ == "feed"
    assert parts.eval_metrics_fn() == {}
    assert (parts.callbacks, parts.custom_data_reader, parts.prediction_outputs_processor) == (None, None, None)
    assert parts.build_model({"layers": 3, "name": "wide"}) == ("model", 3, "wide")
    assert zoo.load().custom_model is parts.custom_model


def test_the_user_may_name_parts_in_this_and_in_other_files(zoo: Zoo) -> None:
    zoo.write(WHOLE + "    def other_loss(labels, predictions): return 1.0\n")
    zoo.write("def adam(): return 'adam'", "optimizers.py")
    parts = zoo.load(names={"loss": "other_loss", "optimizer": f"{zoo.name}.optimizers.adam", "feed": "feed"})
    assert parts.loss.__name__ == "other_loss"
    assert parts.optimizer() == "adam"


def test_the_older_name_of_feed_is_taken(zoo: Zoo) -> None:
    zoo.write(WHOLE.replace("def feed", "def dataset_fn"))
    assert zoo.load().feed.__name__ == "dataset_fn"
    assert zoo.load(names={"feed": "dataset_fn"}).feed.__name__ == "dataset_fn"


def test_what_is_not_needed_may_be_missing(zoo: Zoo) -> None:
    zoo.write("def custom_model(): ...\ndef feed(dataset, mode, metadata): ...\ndef loss(only): ...\n")
    parts = zoo.load(task="predict")
    assert (parts.optimizer, parts.eval_metrics_fn) == (None, None)
    assert zoo.refused(task="evaluate").message == f"the model file {zoo.file} has no eval_metrics_fn"
    assert model_file.needed_parts("train") == ("custom_model", "loss", "optimizer", "feed")
    assert model_file.needed_parts("train", has_evaluation=True)[-1] == "eval_metrics_fn"
    assert model_file.needed_parts("evaluate", has_evaluation=True) == model_file.needed_parts("evaluate")


def test_a_file_imports_what_lies_beside_it_and_by_the_name_of_the_zoo(zoo: Zoo) -> None:
    zoo.write("WIDTH = 3", f"sizes_{zoo.name}.py")
    zoo.write("DEPTH = 4", "depths.py")
    zoo.write(
        f"from sizes_{zoo.name} import WIDTH\nfrom {zoo.name}.depths import DEPTH\nfrom .depths import DEPTH as SAME\n"
        f"from zoo.{zoo.name}.depths import DEPTH as THIRD\n" + dedent(WHOLE)
        + "def size(): return [WIDTH, DEPTH, SAME, THIRD]\n"
    )  # fmt: skip
    assert zoo.load(names={"callbacks": "size"}).callbacks() == [3, 4, 4, 4]


def test_a_folder_of_the_zoo_hides_no_installed_package(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ElasticDL's own zoo has a folder deepctr, whose model imports the package deepctr."""
    installed = tmp_path / "site-packages" / zoo.name
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("ORIGIN = 'installed'\n")
    monkeypatch.syspath_prepend(installed.parent)
    zoo.write(f"from {zoo.name} import ORIGIN\n" + dedent(WHOLE) + "def origin(): return [ORIGIN]\n")
    assert zoo.load(names={"callbacks": "origin"}).callbacks() == ["installed"]


def test_a_file_finds_the_names_of_elasticdl_before_those_that_are_installed(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = "from elasticdl_preprocessing.utils.analyzer_utils import get_avg\n" + dedent(WHOLE)
    zoo.write(theirs + "def average(): return [get_avg('age', 3)]\n")
    assert zoo.load(names={"callbacks": "average"}).callbacks() == [3.0]
    for name in [name for name in sys.modules if name.startswith("elasticdl_preprocessing")]:
        monkeypatch.delitem(sys.modules, name)
    original = tmp_path / "site-packages" / "elasticdl_preprocessing" / "utils"
    original.mkdir(parents=True)
    for folder in (original.parent, original):
        (folder / "__init__.py").write_text("")
    (original / "analyzer_utils.py").write_text("def get_avg(name, default): return 'the original'\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(original.parents[1])])
    zoo.write(theirs + "def average(): return [get_avg('age', 3)]\n", "again.py")
    assert zoo.load("again.custom_model", names={"callbacks": "average"}).callbacks() == [3.0]


def test_a_file_may_lie_in_the_zoo_itself(zoo: Zoo) -> None:
    (zoo.path / f"{zoo.name}_top.py").write_text(dedent(WHOLE))
    assert model_file.load(zoo.path, f"{zoo.name}_top.custom_model").optimizer(2) == ("sgd", 2)


def test_models_are_made_by_functions_and_classes(zoo: Zoo) -> None:
    zoo.write("class Net: ...\n" + dedent(WHOLE))
    error = zoo.refused("digits.Net")
    assert error.message == "the class Net is not a model"
    assert "keras.Model or torch.nn.Module" in error.mend
    zoo.write("number = 3\n" + dedent(WHOLE), "number.py")
    assert zoo.refused("number.number").message.endswith(
        "must be a function or class that makes a model, and is of type int"
    )


NETS = """
    import keras, torch

    class CustomModel(keras.Model):
        def __init__(self, width=1):
            super().__init__()
            self.width = width

    class Net(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.width = width

    net = Net(1)
"""
BUILD = """
    import json, sys
    from trainmaster.zoo import model_file

    def said(name, params):
        try:
            model = model_file.load(sys.argv[1], f"{sys.argv[2]}.digits.{name}").build_model(params)
            return [type(model).__name__, model.width]
        except model_file.BadModel as error:
            return [error.message, error.mend]

    print(json.dumps([said("CustomModel", {"width": 3}), said("CustomModel", {"widht": 3}), said("Net", {"width": 3})]))
    print(json.dumps([said("Net", {}), said("net", {})]))
"""


def test_classes_of_keras_and_pytorch_are_models(zoo: Zoo) -> None:
    need_frameworks("keras", "torch")
    zoo.write(dedent(NETS) + dedent(WHOLE))
    environ = {**os.environ, "KERAS_BACKEND": "torch"}
    command = [sys.executable, "-c", dedent(BUILD), zoo.path, zoo.name]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    (model, misspelt, net), (without, instance) = map(json.loads, done.stdout.splitlines())
    assert model == ["CustomModel", 3]
    assert misspelt == [
        "CustomModel cannot be called with these model_params: got an unexpected keyword argument 'widht'",
        "did you mean width?",
    ]
    assert net == ["Net", 3]
    assert without == [
        "Net cannot be called with these model_params: missing a required argument: 'width'",
        "it takes width",
    ]
    assert instance[0] == "net is a model, and must be a function or class that makes one"


def test_a_missing_name_is_reported_with_the_nearest_one(zoo: Zoo) -> None:
    zoo.write(WHOLE.replace("def loss", "def losss"))
    error = zoo.refused()
    assert error.message == f"the model file {zoo.file} has no loss"
    assert error.place == "train needs it"
    assert error.mend == "did you mean losss?"
    error = zoo.refused("digits.CustomModel")
    assert error.message == f"the model file {zoo.file} has no CustomModel, its custom_model"
    assert error.place == f"model_def: {zoo.name}.digits.CustomModel"
    assert error.mend == "did you mean custom_model?"
    zoo.write(WHOLE, "whole.py")
    error = zoo.refused("whole.custom_model", names={"callbacks": "stops"})
    assert error.message.endswith("has no stops, its callbacks")
    assert error.place == "callbacks: stops"
    assert error.mend == "the file defines custom_model, loss, optimizer, feed, eval_metrics_fn"
    assert zoo.refused(names={"optimiser": "x"}).mend == "did you mean optimizer?"


def test_a_name_that_a_file_lacks_is_reported_before_a_job_starts_where_reading_the_file_tells(zoo: Zoo) -> None:
    def check(text: str, **names: str) -> None:
        zoo.write(text)
        model_file.check_names(
            zoo.path, f"{zoo.name}.digits.custom_model", task="train", has_evaluation=True, names=names
        )

    check(WHOLE)
    check(WHOLE.replace("feed", "dataset_fn"))
    check(WHOLE.replace("def loss(labels, predictions): return 0.0", "from losses import squared as loss"))
    check(WHOLE.replace("def loss(labels, predictions): return 0.0", "if True:\n        loss = min"))
    for unreadable in ("from losses import *", "globals()['loss'] = min", "def __getattr__(name): return min", "("):
        check(WHOLE.replace("def loss(labels, predictions): return 0.0", unreadable))
    with pytest.raises(BadModel) as raised:
        check(WHOLE.replace("def loss(labels, predictions): return 0.0", "def cost(x):\n        loss = x"))
    assert str(raised.value).splitlines() == [
        f"the model file {zoo.file} has no loss",
        "  train needs it",
        "  the file defines custom_model, cost, optimizer, feed, eval_metrics_fn",
    ]
    with pytest.raises(BadModel, match="has no metrics, its eval_metrics_fn"):
        check(WHOLE, eval_metrics_fn="metrics")
    zoo.write("", "other.py")
    with pytest.raises(BadModel, match=r"other\.py has no stops, its callbacks"):
        check(WHOLE, callbacks=f"{zoo.name}.other.stops")


def test_files_and_directories_that_are_none_are_told_with_the_nearest_one(zoo: Zoo, tmp_path: Path) -> None:
    zoo.write(WHOLE)
    error = zoo.refused("digit.custom_model")
    assert error.message == f"the model zoo has no file {zoo.file.parent / 'digit.py'}"
    assert error.mend == f"did you mean {zoo.name}.digits.custom_model?"
    with pytest.raises(BadModel) as raised:
        model_file.load(zoo.path, f"{zoo.name}x.digits.custom_model")
    assert raised.value.mend == f"did you mean {zoo.name}.digits.custom_model?"
    with pytest.raises(BadModel, match="the model zoo does not exist"):
        model_file.load(tmp_path / "nowhere", "a.b")
    with pytest.raises(BadModel, match="the model zoo is not a directory") as raised:
        model_file.load(zoo.file, "digits.custom_model")
    assert raised.value.mend == f"give the directory of the model file: {zoo.file.parent}"


@pytest.mark.parametrize("definition", ["../other.f", "..other.f", "/etc/other.f", ".f"])
def test_a_definition_that_leads_outside_of_the_zoo_is_refused(zoo: Zoo, definition: str) -> None:
    with pytest.raises(BadModel, match="leads outside of the model zoo"):
        model_file.load(zoo.path, definition)


def test_a_link_that_leads_outside_of_the_zoo_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(dedent(WHOLE))
    zoo.file.symlink_to(other)
    assert f"is a link to {other}" in zoo.refused().message
    zoo.file.unlink()
    zoo.file.symlink_to(zoo.write(WHOLE, "data.py").name)
    assert zoo.load().optimizer() == ("sgd", 0.1)


@pytest.mark.parametrize("definition", ["", "f", "a.", "a..f", "a b.f", "1.f"])
def test_a_definition_that_names_no_function_is_refused(zoo: Zoo, definition: str) -> None:
    with pytest.raises(BadModel, match="model_def names no function of a file"):
        model_file.load(zoo.path, definition)


def test_the_line_of_a_syntax_error_is_reported(zoo: Zoo) -> None:
    zoo.write("x = 1\ndef custom_model(:\n    pass\n")
    error = zoo.refused()
    assert error.message.startswith(f"{zoo.file} is not valid Python: ")
    assert error.place == f"{zoo.file}, line 2: def custom_model(:"
    (zoo.file.parent / "latin.py").write_bytes(b"name = '\xe9'\n")
    assert "latin.py is not valid Python: (unicode error)" in zoo.refused("latin.f").message
    zoo.write("eval('(')\n", "evaluating.py")
    assert zoo.refused("evaluating.f").place.endswith("evaluating.py, line 1: eval('(')")
    sibling = zoo.write("x = (\n", f"broken_{zoo.name}.py")
    zoo.write(f"import broken_{zoo.name}\n")
    assert zoo.refused().message.startswith(f"{sibling} is not valid Python: ")


def test_the_line_of_an_exception_is_reported(zoo: Zoo) -> None:
    zoo.write("def make():\n    return [][1]\n", f"sizes_{zoo.name}.py")
    zoo.write(f"import json\nimport sizes_{zoo.name}\n\nWIDTH = sizes_{zoo.name}.make()\n")
    error = zoo.refused()
    assert error.message == f"{zoo.file} raised IndexError: list index out of range while it was imported"
    assert error.place.splitlines() == [
        f"{zoo.file}, line 4: WIDTH = sizes_{zoo.name}.make()",
        f"  {zoo.file.parent / f'sizes_{zoo.name}.py'}, line 2: return [][1]",
    ]
    zoo.write("import json\njson.loads('{')\n", "deep.py")
    assert zoo.refused("deep.custom_model").place == f"{zoo.file.parent / 'deep.py'}, line 2: json.loads('{{')".replace(
        "{{", "{"
    )
    zoo.write("import nosuchpackage\n", "missing.py")
    assert zoo.refused("missing.custom_model").mend.startswith("install nosuchpackage where the job runs")
    zoo.write("raise SystemExit(3)\n", "leaving.py")
    assert "__main__" in zoo.refused("leaving.custom_model").mend


def test_a_file_that_failed_is_read_again(zoo: Zoo) -> None:
    zoo.write("raise ValueError\n")
    assert zoo.refused().message == f"{zoo.file} raised ValueError while it was imported"
    zoo.write(WHOLE + "    TEXT = 'another size, so that no bytecode of the file before is taken'\n")
    assert zoo.load().optimizer() == ("sgd", 0.1)


def test_a_module_of_the_same_name_is_not_replaced(zoo: Zoo) -> None:
    (zoo.path / "json.py").write_text(dedent(WHOLE))
    with pytest.raises(BadModel, match="the module json is loaded already") as raised:
        model_file.load(zoo.path, "json.custom_model")
    assert raised.value.mend == "give the model file another name"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def loss(labels): ...", "loss cannot be called as loss(labels, predictions): too many positional arguments"),
        ("loss = 3", "loss must be a function, called as loss(labels, predictions), and is of type int"),
        ("def feed(dataset, mode): ...", "feed cannot be called as feed(dataset, mode, metadata): too many positional"),
        ("def optimizer(lr): ...", "optimizer cannot be called as optimizer(): missing a required argument: 'lr'"),
        ("def callbacks(x): ...", "callbacks cannot be called as callbacks(): missing a required argument: 'x'"),
        (
            "def custom_data_reader(path): ...",
            "custom_data_reader cannot be called as custom_data_reader(data_origin=..., records_per_task=...): ",
        ),
        ("class PredictionOutputsProcessor: ...", "PredictionOutputsProcessor must have a method process(predictions"),
    ],
)
def test_a_part_that_cannot_be_called_as_it_will_be_is_refused(zoo: Zoo, text: str, message: str) -> None:
    zoo.write(dedent(WHOLE) + text + "\n")
    error = zoo.refused()
    assert message in error.message
    assert str(zoo.file) in error.place


def test_readers_and_processors_are_taken(zoo: Zoo) -> None:
    text = """
        def custom_data_reader(data_origin, records_per_task=None, **params): return data_origin
        class PredictionOutputsProcessor:
            def process(self, predictions, worker_id): ...
    """
    zoo.write(dedent(WHOLE) + dedent(text))
    parts = zoo.load(task="predict")
    assert parts.custom_data_reader("x") == "x"
    assert parts.prediction_outputs_processor.__name__ == "PredictionOutputsProcessor"


def test_no_other_package_is_needed(zoo: Zoo) -> None:
    """Programs of users have a link to the package, and a Python without ours."""
    zoo.write(WHOLE)
    home = zoo.path.parent / "home"
    (home / "trainmaster").mkdir(parents=True)
    (home / "trainmaster" / "zoo").symlink_to(Path(model_file.__file__).parent)
    code = """
        import sys
        sys.path.insert(0, sys.argv[1])
        from trainmaster.zoo import model_file, params
        print(model_file.load(*sys.argv[2:]).build_model(params.parse_params("layers=2")))
    """
    command = [sys.executable, "-I", "-S", "-c", dedent(code), home, zoo.path, f"{zoo.name}.digits.custom_model"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "('model', 2, '')\n"), done.stderr


def test_an_error_has_the_parts_that_commands_print() -> None:
    error = BadModel("the message", place="the place", mend="the mend")
    assert str(error) == str(BadInput("the message", place="the place", mend="the mend"))
    assert (error.status, error.anchor) == (BadInput.status, "")


# -- parameters --

LITERALS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
IDENTIFIERS = st.from_regex(r"[a-z_][a-z0-9_]{3,8}_", fullmatch=True)


@given(st.dictionaries(IDENTIFIERS, LITERALS), st.sampled_from([",", ";", ", ", " ; "]))
def test_params_are_what_was_written(params: dict[str, Any], separator: str) -> None:
    text = separator.join(f"{name}={value!r}" for name, value in params.items())
    assert parse_params(text) == params
    assert parse_params(f" {text} ;") == params


def test_bare_words_and_paths_are_text() -> None:
    params = parse_params("activation=relu; path=/data/part-0.csv, url=hdfs://host:9000/a, rate=1e-3")
    assert params == {"activation": "relu", "path": "/data/part-0.csv", "url": "hdfs://host:9000/a", "rate": 0.001}


@pytest.mark.parametrize(
    ("text", "message", "mend"),
    [
        ("a=f(1)", "model_params has a value that is not a literal: a=f(1)", "text needs quotes: a='...'"),
        ("a=__import__('os').getcwd()", "not a literal", "text needs quotes"),
        ("a=1+x", "not a literal: a=1+x", "text needs quotes"),
        ("a='b", "not a literal: a='b", "text needs quotes"),
        ("a=[1,2", "not a literal: a=[1,2", "text needs quotes"),
        ("a=true", "not a literal: a=true", "did you mean a=True?"),
        ("a=nan", "not a literal: a=nan", "did you mean a='nan'?"),
        ("a=" + "(" * 500, "not a literal", "text needs quotes"),
        ("a=", "not a literal: a=", "text needs quotes"),
        ("a", "model_params has an entry without a value: a", "write a=VALUE"),
        ("1a=2", "a name that a parameter cannot have: 1a", "write name=value"),
        ("class=2", "a name that a parameter cannot have: class", "write name=value"),
        ("=2", "a name that a parameter cannot have: =2", "write name=value"),
        ("a=1;a=2", "model_params has a more than once", ""),
    ],
)
def test_what_is_not_a_literal_is_refused(text: str, message: str, mend: str) -> None:
    with pytest.raises(BadModel) as raised:
        parse_params(text)
    assert message in raised.value.message
    assert mend in raised.value.mend
    assert raised.value.place == f"model_params: {text}"
