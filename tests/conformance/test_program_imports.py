"""What a program imports is what it would import without us; `trainmaster.runtime` is there for a Python that has none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conformance.engines import Engine, python, workers

import trainmaster

SHOW = """
import json, sys
import numpy, sklearn.linear_model, torch, json, yaml
found = {name: getattr(module, "__file__", None) for name, module in sorted(sys.modules.items())}
with open(sys.argv[1], "w") as file:
    json.dump({name: path for name, path in found.items() if path}, file)
"""


@pytest.mark.needs("submitters-place")
def test_frameworks_come_from_the_same_files_with_and_without_us(engine: Engine) -> None:
    command = [sys.executable, "-c", SHOW]
    subprocess.run([*command, "alone.json"], cwd=engine.folder, check=True)
    role = {"command": [*command, "ours.json"], "resources": {"cores": 0.1, "memory": "4GiB"}}
    engine.submit({"worker": role}).succeeded()
    theirs, ours = (json.loads((engine.folder / f"{name}.json").read_text()) for name in ("alone", "ours"))
    assert {"numpy", "sklearn", "torch"} <= theirs.keys()
    assert ours == theirs


def test_the_runtime_is_there_for_a_python_without_trainmaster(engine: Engine) -> None:
    program = """
        import os, sys
        from trainmaster import runtime
        import trainmaster
        print(runtime.task(), file=sys.stderr)
        runtime.progress(0.5)
        print(trainmaster.__path__, getattr(trainmaster, "__file__", None))
        (folder,) = [path for path in os.environ["PYTHONPATH"].split(":")]
        print(sorted(os.listdir(folder)), sorted(os.listdir(folder + "/trainmaster")))
        print(sorted(name for name in sys.modules if name.startswith("trainmaster")))
    """
    command = python(program)
    command.insert(1, "-S")  # without site-packages
    job = engine.submit(workers(command, env={"PYTHONPATH": ""}))
    job.succeeded()
    lines = job.lines()
    assert lines[0] == f"<Task worker:0 of {job.id}, attempt 1, generation 1>"
    assert lines[1].endswith("None"), "a namespace, without code of its own"
    assert lines[2] == "['trainmaster'] ['elasticdl', 'ps', 'runtime', 'zoo']"
    assert "trainmaster.core" not in lines[3]


@pytest.mark.needs("installed")
def test_an_installed_trainmaster_goes_first(engine: Engine) -> None:
    job = engine.submit(
        workers(python("import trainmaster, trainmaster.runtime as r; print(trainmaster.__file__); print(r.__file__)"))
    )
    job.succeeded()
    home = Path(trainmaster.__file__).parent
    assert job.lines() == [str(home / "__init__.py"), str(home / "runtime/__init__.py")]


def test_the_user_s_own_path_goes_first(engine: Engine) -> None:
    engine.write("mine/trainmaster/__init__.py", "")
    engine.write("mine/trainmaster/runtime.py", "word = 'mine'")
    path = str(engine.folder / "mine")
    job = engine.submit(
        workers(python("from trainmaster import runtime; print(runtime.word)"), env={"PYTHONPATH": path})
    )
    job.succeeded()
    assert job.lines() == ["mine"]
