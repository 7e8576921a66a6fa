"""Who may import what: what import-linter's layers do not say, and what start-up may load."""

from __future__ import annotations

import ast
import contextlib
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import trainmaster

SOURCE = Path(trainmaster.__file__).parent
ROOT = Path(__file__).parents[2]
FIRST_IMPORTS = ROOT / "tests" / "programs" / "first_imports.py"
# By the simulation too.
DRIVEN = ("master.turn", "agent.attempt.course", "agent.link.outbox", "agent.link.waits", "runtime.elastic.rounds")


def imported(path: Path) -> set[str]:
    """The modules that a file imports anywhere, relative ones made absolute."""
    package = ["trainmaster", *path.relative_to(SOURCE).parent.parts]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            found.update([f"{module}.{alias.name}" for alias in node.names] if module == "trainmaster" else [module])
    return found


def importers(package: str) -> dict[str, set[str]]:
    return {str(path.relative_to(SOURCE)): imported(path) for path in (SOURCE / package).rglob("*.py")}


def foreign(modules: set[str], *allowed: str) -> set[str]:
    """Those of `modules` that are neither standard library nor allowed."""
    return {
        module
        for module in modules
        if module.partition(".")[0] not in sys.stdlib_module_names
        and not any(module == name or module.startswith(name + ".") for name in allowed)
    }


# Modules of the runtime that a program imports by name, where it uses the framework itself.
FOR_A_FRAMEWORK = {
    "runtime/torch_data.py": ["torch"],
    "runtime/tf_data.py": ["tensorflow"],
    "runtime/feed/readers/for_torch.py": ["torch"],
    "runtime/feed/readers/for_tf.py": ["tensorflow"],
    "runtime/feed/readers/for_jax.py": ["jax"],
    "runtime/elastic/torch_groups.py": ["torch"],
    "runtime/elastic/torch_training.py": ["torch"],
    "runtime/elastic/keras_in_use.py": ["keras", "tf_keras", "tensorflow"],
    "runtime/elastic/keras_training.py": ["keras", "tensorflow"],
    "elasticdl/preprocessing.py": ["keras", "tensorflow"],
    "zoo/data/tensorflow_feed.py": ["tensorflow"],
    "zoo/data/torch_feed.py": ["torch"],
    "zoo/models/keras_model.py": ["keras", "tensorflow", "torch"],
    "zoo/models/keras_tables.py": ["keras", "tensorflow"],
    "zoo/models/torch_model.py": ["torch"],
    "zoo/models/torch_tables.py": ["torch"],
    "zoo/embeddings/keras_layer.py": ["keras", "tensorflow"],
    "zoo/embeddings/torch_modules.py": ["torch"],
    "elasticdl/keras_controller.py": ["keras"],
    "elasticdl/torch_controller.py": ["torch"],
    "elasticdl/torch_dataset.py": ["torchvision"],
    "elasticdl/estimator_hooks.py": ["tensorflow"],
    "elasticdl/feature_columns.py": ["keras", "tensorflow"],
    "spark/dfutil.py": ["pyspark"],
    "spark/pipeline.py": ["pyspark"],
}


def lacks_its_framework(path: str) -> bool:
    """Whether the module at `path` below the package is for a framework that is not installed here."""
    return any(find_spec(name) is None for name in FOR_A_FRAMEWORK.get(path, ()))


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        # The last six only where a program brings a value of theirs, or a URL; `test_runtime_checkpoint.py` runs without them.
        ("runtime", ["trainmaster.runtime", "torch", "numpy", "pyarrow", "ml_dtypes", "fsspec", "sqlalchemy"]),
        ("elasticdl", ["trainmaster.elasticdl", "trainmaster.zoo", "trainmaster.runtime", "numpy"]),
        ("zoo", ["trainmaster.zoo", "trainmaster.ps", "trainmaster.runtime", "numpy"]),
        ("ps", ["trainmaster.ps", "trainmaster.runtime", "numpy"]),
        ("core", ["trainmaster.core", "attrs"]),
        (
            "simulation",
            ["trainmaster.simulation", "trainmaster.core", *(f"trainmaster.{module}" for module in DRIVEN), "attrs"],
        ),
        ("hadoop", ["trainmaster.hadoop", "attrs", "google.protobuf"]),
        ("kube", ["trainmaster.kube", "attrs", "h11", "websockets", "yaml"]),
    ],
)
def test_a_package_imports_no_more_than_it_may(package: str, allowed: list[str]) -> None:
    strays = {
        path: more
        for path, modules in importers(package).items()
        if (more := foreign(modules, *allowed, *FOR_A_FRAMEWORK.get(path, ())))
    }
    assert strays == {}


def test_what_is_for_a_framework_is_imported_by_programs_alone() -> None:
    names = {"trainmaster." + path.removesuffix(".py").replace("/", ".") for path in FOR_A_FRAMEWORK}
    feed = {"runtime/feed/__init__.py"}  # its functions import them, which a program calls by the framework's name
    zoo = {
        "zoo/models/__init__.py",
        "zoo/models/strategies.py",
        "zoo/embeddings/__init__.py",
    }  # so do these, once a model asks
    assert not {
        path
        for path, modules in importers(".").items()
        if names & modules and path not in {*FOR_A_FRAMEWORK, *feed, *zoo}
    }


def test_every_module_can_be_the_first_that_is_imported() -> None:
    """A package's `__init__` runs before its modules: a circle through one shows only where another module of it is imported first.
    Thus each module of a circle is imported first, in a process of its own; all others are imported in one.
    A framework that is not installed here leaves its module out."""
    paths = [path.relative_to(SOURCE) for path in sorted(SOURCE.rglob("*.py")) if path.name != "__main__.py"]
    modules = [
        ".".join(["trainmaster", *path.with_suffix("").parts]).removesuffix(".__init__")
        for path in paths
        if not lacks_its_framework(path.as_posix())
    ]
    result = subprocess.run(
        [sys.executable, FIRST_IMPORTS, *modules], capture_output=True, text=True, check=False, timeout=600
    )
    assert (result.returncode, result.stdout) == (0, ""), result.stderr


_FROM = re.compile(
    r"""(?:^|['"])\s*from (trainmaster[\w.]*) import (\([^)]*\)|[\w, ]+?)\s*(?:[;#].*)?$""", re.MULTILINE
)


@pytest.mark.parametrize("folder", ["benchmarks", "docs", "examples", "tools"])
def test_what_lies_beside_the_package_finds_what_it_imports(folder: str) -> None:
    """Also the Python that is written within shell scripts and pages."""
    missing = []
    for path in sorted(path for path in (ROOT / folder).rglob("*") if path.is_file()):
        with contextlib.suppress(UnicodeDecodeError):
            for module, names in _FROM.findall(path.read_text()):
                for name in names.strip("()").split(","):
                    if (bare := name.split(" as ")[0].strip()) and not _is_importable(module, bare):
                        missing.append(f"{path.relative_to(ROOT)}: {module}.{bare}")
    assert missing == []


def _is_importable(module: str, name: str) -> bool:
    """Of a module for a framework, say only whether its source defines `name`: importing TensorFlow takes long, and is done above."""
    path = f"{module.removeprefix('trainmaster.').replace('.', '/')}.py"
    if path in FOR_A_FRAMEWORK:
        tree = ast.parse((SOURCE / path).read_text())
        return name in {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    try:
        if hasattr(import_module(module), name):
            return True
        if f"{path.removesuffix('.py')}/{name}.py" in FOR_A_FRAMEWORK:
            return True
        import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("file", [f"{module.replace('.', '/')}.py" for module in DRIVEN])
def test_what_the_simulation_drives_has_no_io(file: str) -> None:
    assert foreign(imported(SOURCE / file), "trainmaster.core", "attrs") == set()


def test_nobody_imports_the_simulation() -> None:
    others = {path: modules for path, modules in importers("").items() if not path.startswith("simulation/")}
    assert [path for path, modules in others.items() if any(".simulation" in module for module in modules)] == []


def loaded(code: str) -> set[str]:
    """The modules loaded by a fresh, isolated interpreter after `code`."""
    run = f"import sys; before = set(sys.modules)\n{code}\nprint(*(set(sys.modules) - before), sep='\\n')"
    return set(
        subprocess.run([sys.executable, "-I", "-c", run], capture_output=True, text=True, check=True).stdout.split()
    )


HEAVY = {
    "asyncio",
    "rich",
    "yaml",
    "starlette",
    "uvicorn",
    "websockets",
    "fsspec",
    "hdfs_native",
    "cryptography",
    "ssl",
    "pathspec",
}


@pytest.mark.parametrize(
    ("module", "may"),
    [
        ("trainmaster", set()),
        ("trainmaster.cli.main", set()),
        ("trainmaster.core.spec.job", set()),
        ("trainmaster.core.decide.drive", set()),
        ("trainmaster.client", set()),
    ],
)
def test_what_is_imported_early_loads_nothing_heavy(module: str, may: set[str]) -> None:
    assert loaded(f"import {module}") & (HEAVY - may) == set()


def test_the_package_itself_loads_almost_nothing() -> None:
    assert len(loaded("import trainmaster")) <= 6


def test_the_template_of_agents_is_forked_before_the_job_and_its_core_are_loaded() -> None:
    code = (
        "from trainmaster.client.jobs import backends, places; backends.backend('local'); places.client_side('local')"
    )
    early = loaded(code)
    assert "trainmaster.engines.local.launch" in early
    assert early & {"trainmaster.core.spec.job", "trainmaster.core.machine.stimuli"} == set()
    assert not loaded("import trainmaster.agent.forked") & {
        "trainmaster.core.machine.stimuli",
        "trainmaster.engines.contract",
    }


def test_a_master_without_samples_loads_nothing_of_metrics() -> None:
    early = loaded("import trainmaster.master.main as main; main.warm()")
    assert "trainmaster.master.shell" in early
    assert [module for module in early if "metrics" in module or module == "trainmaster.master.measuring"] == []


LAZY = """
import sys
from trainmaster.lazy import SELDOM, lazily
lazily()
import attrs, click, trainmaster.agent.main, trainmaster.master.main, websockets.asyncio.server
loaded = [name for name in SELDOM if vars(sys.modules[name]).get("__file__")]
assert not loaded, loaded
import ssl, importlib.metadata, urllib.request
from asyncio import sslproto
from attrs import validators
assert ssl.create_default_context().verify_mode is ssl.CERT_REQUIRED
assert importlib.metadata.version("attrs")
assert attrs.field(validator=validators.instance_of(int))
assert sslproto.SSLProtocol
assert urllib.request.getproxies
"""


def test_what_is_seldom_needed_is_loaded_when_it_is() -> None:
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
