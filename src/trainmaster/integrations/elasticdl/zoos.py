"""Model zoos: directories of model files, begun from a model that comes with Trainmaster, and made into images.

The models are in `examples/zoo` of the repository. In an installed package they are in `models` in this folder, where the wheel has them
(`pyproject.toml`). Each is a directory `NAME` with model files, what they need (`requirements.txt`) and their test (`test_NAME.py`). The
test's table says how each model is trained. Other files beside the directories serve all models.

An image has a Python, what `requirements.txt` lists, and the zoo at /model_zoo. There an ElasticDL command line finds it; `tm train` brings
the zoo with the job.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainmaster.clusters import recipes
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.reading import nearest

RECIPES = ("Containerfile", "Dockerfile")  # as they may be called, in the order of preference
REQUIREMENTS = "requirements.txt"
_HERE = Path(__file__).parent
_PLACES = (_HERE / "models", _HERE.parents[3] / "examples" / "zoo")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", REQUIREMENTS)
_ZOO = "\n# The model files, where an ElasticDL command line finds them.\nCOPY {folder} /model_zoo\n"


def models() -> dict[str, Path]:
    """Return the models that come with Trainmaster: name -> directory."""
    folders = (folder for place in _PLACES if place.is_dir() for folder in sorted(place.iterdir()))
    return {folder.name: folder for folder in folders if (folder / f"test_{folder.name}.py").is_file()}


def begin(folder: Path, model: str, base: str = "") -> list[str]:
    """Write a zoo with one model, its test and a recipe for its image; return the names of the files.

    `base`: the image that it begins from. Raises BadInput where there is no such model, or something is in the directory.
    """
    known = models()
    if model not in known:
        raise BadInput(
            f"there is no model {model!r}", place=f"--model {model}", mend=nearest(model, known), anchor="model-zoo"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(
            f"{folder} is not empty" if folder.is_dir() else f"{folder} is not a directory", place=str(folder),
            mend="name a directory that is not there yet: tm zoo init DIR", anchor="not-empty",
        )  # fmt: skip
    with writing(folder):
        shutil.copytree(known[model], folder / model, ignore=_LEFT_OUT)
        for path in known[model].parent.glob("*.py"):
            shutil.copyfile(path, folder / path.name)
        own = known[model] / REQUIREMENTS
        (folder / REQUIREMENTS).write_text(own.read_text() if own.is_file() else "")
        (folder / RECIPES[0]).write_text(recipe(base, str(folder / REQUIREMENTS)))
        (folder / ".gitignore").write_text("__pycache__/\n")
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def training_commands(folder: Path, model: str) -> list[str]:
    """Return the shell commands that write a begun zoo's data and train its first model, by the table of its test."""
    values = {
        node.targets[0].id: node.value
        for node in ast.parse((folder / model / f"test_{model}.py").read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    data, rows = ast.literal_eval(values["DATA"]), ast.literal_eval(values["MODELS"])
    name, (epochs, batch, *_) = next(iter(rows.items()))
    if (folder / model / "data.py").is_file():
        script, place = f"{model}/data.py data", "data"
    else:
        script, place = f"data.py {data}", f"data/{data}"
    flags = (
        f"--distribution_strategy Local --minibatch_size {batch} --num_epochs {epochs}"
        f" --training_data {place}/train --validation_data {place}/test --output model"
    )
    return [
        *([f"cd {shlex.quote(str(folder))}"] if folder.resolve() != Path.cwd() else []),
        f"python {script}",
        f"tm train --model_zoo . --model_def {name} {flags}",
    ]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of writing a directory, or a file, that was not there before into one of ours, and remove what was written of it."""
    was_there = path.exists()
    try:
        yield
    except OSError as error:  # of shutil: [(from, to, reason), ...]
        if not was_there:
            shutil.rmtree(path, ignore_errors=True)
        reason = error.strerror or error.args[0][0][2].rpartition("] ")[2].partition(":")[0]
        fault = f"{path} cannot be written: {reason}"
        raise BadInput(fault, place=str(path), mend="name another directory", anchor="no-file") from error


def recipe(base: str = "", requirements: str = "", zoo: str = ".") -> str:
    """Return the recipe of a zoo's image. `requirements`: a file of packages; `zoo`: the directory, within what is built."""
    return recipes.recipe(base, requirements) + _ZOO.format(folder=zoo)


def recipe_in(folder: Path) -> Path:
    """Return the recipe that a directory holds. Raises BadInput where it has none."""
    path = next((folder / name for name in RECIPES if (folder / name).is_file()), None)
    if path is None:
        fault, mend = f"{folder} has no {' and no '.join(RECIPES)}", "tm zoo init DIR begins a zoo with one"
        raise BadInput(fault, place=str(folder), mend=mend, anchor="image-build")
    return path


def recipe_of_theirs(zoo: str, base: str, packages: str, index: str) -> str:
    """Return the recipe for an existing zoo below the present directory, as `elasticdl zoo init` wrote one.

    `packages`: a directory of wheels to be installed; `index`: a further index of packages. Raises BadInput where a directory is missing.
    """
    for flag, folder in (("--model_zoo", zoo), ("--local_pkg_dir", packages)):
        if folder and not os.path.isdir(folder):
            mend = f"it is looked for in {Path.cwd()}"
            raise BadInput(f"{folder} is not a directory", place=f"flag {flag}", mend=mend, anchor="no-file")
    requirements = os.path.join(zoo, REQUIREMENTS)
    text = recipe(base, requirements if os.path.isfile(requirements) else "", os.path.normpath(zoo))
    text = text.replace(f"COPY {REQUIREMENTS} ", f"COPY {os.path.normpath(requirements)} ")
    install = "python3 -m pip install --no-cache-dir"
    named = Path(requirements).read_text() if os.path.isfile(requirements) else ""
    if not base and not re.search(r"^(tensorflow(-cpu|-gpu)?|torch|keras)(?![\w-])", named, re.MULTILINE):
        frameworks = f"RUN {install} tensorflow-cpu tf_keras\nENV TF_USE_LEGACY_KERAS=1\n"  # as ElasticDL's package brought Keras 2
        text = text.replace("# By number", f"{frameworks}# By number", 1)
    if packages:
        wheels = f"COPY {os.path.normpath(packages)}/*.whl /tmp/wheels/\nRUN {install} /tmp/wheels/*.whl && rm -r /tmp/wheels\n"
        text = text.replace("# By number", f"{wheels}# By number", 1)
    return text.replace(f"RUN {install}", f"RUN PIP_EXTRA_INDEX_URL={index} {install}") if index else text
