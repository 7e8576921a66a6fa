"""The habits of the house that a machine can check: sizes, names, opening words, anchors of errors."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainmaster
from trainmaster.engines import registry
from trainmaster.words.explained import explained

SOURCE = Path(trainmaster.__file__).parent
ROOT = SOURCE.parent.parent
MODULES = sorted(SOURCE.rglob("*.py"))
FORBIDDEN = re.compile(
    r"(^|_)(manager|handler|helper|helpers|util|utils|common|misc|service|base|abstract)(_|$)", re.IGNORECASE
)

# What Hadoop's daemons are called, and ElasticDL's classes and modules.
THEIRS = re.compile(
    r"(resource|node)_managers?|(data_shard|record_index)_service|^(log|analyzer)_utils$|^abstract_data_reader$"
    r"|^base_prediction_outputs_processor$",
    re.IGNORECASE,
)


def limit(path: Path) -> int:
    """The most lines that a module may have."""
    place = path.relative_to(SOURCE).parts
    if (
        place[0] == "frameworks"
        and path.name != "__init__.py"
        and place[-1] not in ("added.py", "contract.py", "variables.py")
    ):
        return 60
    if place[:2] == ("cli", "commands"):
        return 80
    return 800


def names(path: Path) -> Iterator[str]:
    """Names that a module gives: its own, of classes and of functions, split into words."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node.name)


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def bound(tree: ast.AST) -> set[str]:
    """Names that a comprehension binds."""
    loops = getattr(tree, "generators", [])
    return {node.id for loop in loops for node in ast.walk(loop.target) if isinstance(node, ast.Name)}


def read_unbound(tree: ast.AST) -> Iterator[str]:
    """Names that a comprehension reads, and neither it nor one inside it binds."""
    own = bound(tree)
    for child in ast.iter_child_nodes(tree):
        names_read = [child.id] if isinstance(child, ast.Name) else read_unbound(child)
        yield from (name for name in names_read if name not in own)


def mistaken(tree: ast.Module) -> set[str]:
    """Names of the module that Python 3.12 takes for what another comprehension of the same function binds (UnboundLocalError)."""
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    own |= {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = [child for child in ast.walk(node) if isinstance(child, COMPREHENSIONS)]
            binds = {name for child in inside for name in bound(child)} & own
            found |= {name for child in inside for name in read_unbound(child) if name in binds}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_keeps_the_habits(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert len(text.splitlines()) <= limit(path), "a module is short"
    assert ast.get_docstring(tree) or not tree.body, "a module opens with its theory"
    assert [name for name in names(path) if FORBIDDEN.search(THEIRS.sub("", name))] == [], "a name is the field's term"
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert [node.name for node in functions if node.end_lineno - node.lineno >= 60] == [], "a function is short"
    assert mistaken(tree) == set(), "another name for what the comprehension binds"


def anchors(path: Path) -> Iterator[str]:
    """Anchors given to errors: as a keyword, or as the last argument of the job reader's own `wrong` and `refused`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            given = [keyword.value for keyword in node.keywords if keyword.arg == "anchor"]
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("wrong", "refused") and node.args[3:]:
                given.append(node.args[-1])
            yield from (value.value for value in given if isinstance(value, ast.Constant) and value.value)


def test_every_anchor_has_its_section() -> None:
    used = {anchor for path in MODULES for anchor in anchors(path)}
    sections = set(re.findall(r"^### .*\{ ?#([\w-]+) ?\}$", (ROOT / "docs/errors.md").read_text(), re.MULTILINE))
    assert sorted(used - sections) == [], "without a section in docs/errors.md"
    assert [name for name in sections if not explained(name)] == []


def test_files_name_no_place_of_a_single_machine() -> None:
    texts = [
        *MODULES,
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("constraints/*"),
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
    ]
    assert [
        str(path)
        for path in texts
        if re.search(r"/(work|root|home|Users)/|index-url|pypi\.org/simple", path.read_text())
    ] == []


# -- rooms --


def dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, known: set[str]) -> set[str]:
    """The modules of ours that a file imports anywhere, but for its types alone."""
    tree = ast.parse(path.read_text())
    typing = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    skipped = {id(child) for node in typing for child in ast.walk(node)}
    imported: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules = {f"{node.module}.{alias.name}" for alias in node.names} & known
            imported |= modules or {str(node.module)}
    return imported & known


def test_no_two_files_import_each_other_directly_or_indirectly() -> None:
    known = {dotted(path) for path in MODULES}
    graph = {dotted(path): imports(path, known) - {dotted(path)} for path in MODULES}
    while graph:  # take away whoever imports nobody that is left, until nobody is left
        free = {module for module, imported in graph.items() if not imported & graph.keys()}
        assert free, f"a circle among {sorted(graph)}"
        graph = {module: imported for module, imported in graph.items() if module not in free}


def engine_comparisons(path: Path) -> Iterator[str]:
    """The comparisons of a file in which an engine is named."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare) and all(isinstance(operator, ast.Eq | ast.NotEq) for operator in node.ops):
            operands = [part for side in (node.left, *node.comparators) for part in ast.walk(side)]
            texts = {part.value for part in operands if isinstance(part, ast.Constant)}
            names_of_engines = {part.id for part in operands if isinstance(part, ast.Name)} & {
                "LOCAL",
                "YARN",
                "KUBERNETES",
            }
            if texts & set(registry.BUILT_IN) or names_of_engines:
                yield f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(node)}"


def test_no_engine_is_compared_by_name_outside_the_engines() -> None:
    """Each difference between engines is a declared capability."""
    outside = [path for path in MODULES if "engines" not in path.relative_to(SOURCE).parts]
    assert [place for path in outside for place in engine_comparisons(path)] == []


def test_a_folder_has_at_most_fifteen_files_but_for_that_of_the_commands() -> None:
    files = Counter(path.parent for path in MODULES if path.name != "__init__.py" and not path.name.endswith("_pb2.py"))
    crowded = {str(folder.relative_to(SOURCE)): count for folder, count in files.items() if count > 15}
    assert set(crowded) <= {"cli/commands"}


def defined(path: Path) -> set[str]:
    """Functions and classes of a module, and methods as `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner = node.body if isinstance(node, ast.ClassDef) else []
            found |= {node.name, *(f"{node.name}.{one.name}" for one in inner if hasattr(one, "name"))}
    return found


def test_the_way_from_the_command_to_the_program_is_as_the_documents_say() -> None:
    text = (ROOT / "docs" / "design" / "architecture.md").read_text()
    steps = re.findall(r"^(\d+)\. `([^`]+)` `([^`]+)`: ", text, re.MULTILINE)
    assert [int(number) for number, _, _ in steps] == list(range(1, len(steps) + 1))
    assert 40 <= len(steps) <= 60
    assert [step for step in steps if step[2] not in defined(SOURCE / step[1])] == []
    paths = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text))
    assert [path for path in paths if not (SOURCE / path).exists() and not (ROOT / path).exists()] == []
