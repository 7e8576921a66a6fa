"""Engines that other packages add: how they are found, and what their user reads where one cannot be used."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from trainmaster import plugins
from trainmaster.client.jobs import doctor
from trainmaster.client.jobs.handles import engine_of_application
from trainmaster.core.errors import BadInput
from trainmaster.engines import registry

ENGINE = """\
from trainmaster.engines.contract import Capabilities, Engine
ENGINE = Engine("NAME", client_side="MODULE:Client", capabilities=Capabilities(application_id="NAME-[0-9]+"))
"""
PAGE = Path(__file__).parents[2] / "docs/extend/engine.md"
CLIENT = "from trainmaster.engines.contract import OnCluster\nclass Client(OnCluster):\n    place = 'here'\n"
Install = Callable[..., str]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A function that installs a package with an engine of the name it returns."""
    monkeypatch.syspath_prepend(tmp_path)

    def installed(name: str, engine: str = ENGINE, client: str = CLIENT) -> str:
        module = f"tests_engine_{name}"
        (tmp_path / f"{module}.py").write_text(engine.replace("NAME", name).replace("MODULE", f"{module}_client"))
        (tmp_path / f"{module}_client.py").write_text(client)
        metadata = tmp_path / f"{module}-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.2\n")
        (metadata / "entry_points.txt").write_text(f"[{plugins.ENGINES}]\n{name} = {module}:ENGINE\n")
        return name

    return installed


def test_an_installed_engine_is_found(install: Install) -> None:
    name = install("found")
    assert name in registry.names()
    assert registry.engine(name).name == name
    assert engine_of_application("found-7") == name


@pytest.mark.parametrize(
    ("name", "engine", "why"),
    [
        ("absent", "import tests_no_such_module\n", "ModuleNotFoundError: No module named 'tests_no_such_module'"),
        ("number", "ENGINE = 3\n", "tests_engine_number:ENGINE is of the type int, and must be an Engine"),
        ("renamed", ENGINE.replace('"NAME"', '"other"'), "its entry point is named renamed, its Engine other"),
    ],
)
def test_a_package_without_an_engine(install: Install, name: str, engine: str, why: str) -> None:
    install(name, engine)
    with pytest.raises(BadInput) as error:
        registry.engine(name)
    place = f"package tests_engine_{name} 1.2, entry point tests_engine_{name}:ENGINE"
    assert (error.value.message, error.value.place) == (f"the engine {name} cannot be used: {why}", place)
    assert name not in [engine.name for engine in registry.usable()]
    assert engine_of_application("nothing-7") == ""
    assert [(finding.state, finding.place) for finding in doctor.examined() if finding.check == name] == [
        ("warning", place)
    ]


@pytest.mark.parametrize(
    ("name", "client", "why"),
    [
        ("beginning", CLIENT, "abstract methods"),
        ("misspelt", CLIENT.replace("Client", "Clint"), "has no attribute 'Client'"),
    ],
)
def test_an_engine_that_is_not_complete(install: Install, name: str, client: str, why: str) -> None:
    install(name, client=client)
    with pytest.raises(BadInput, match=why):
        registry.client_side(name)


def test_the_documents_begin_with_an_engine_that_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of the page are a package, whose errors are its own."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "trainmaster_toy").mkdir()
    blocks = dict(re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', PAGE.read_text(), re.DOTALL))
    for name, block in blocks.items():
        (tmp_path / name).write_text(block)
    (tmp_path / "trainmaster_toy-0.1.dist-info").mkdir()
    project = tomllib.loads(blocks["pyproject.toml"])["project"]
    points = "".join(f"{name} = {value}\n" for name, value in project["entry-points"][plugins.ENGINES].items())
    (tmp_path / "trainmaster_toy-0.1.dist-info/METADATA").write_text("Name: trainmaster-toy\nVersion: 0.1\n")
    (tmp_path / "trainmaster_toy-0.1.dist-info/entry_points.txt").write_text(f"[{plugins.ENGINES}]\n{points}")
    with pytest.raises(BadInput, match="the toy engine cannot keep jobs yet"):
        registry.client_side("toy").store()
