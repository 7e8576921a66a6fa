"""Find, import and check a model file: a Python file that holds a model and what its training needs, as ElasticDL's users write it.

A zoo is a directory of model files. A model definition "dir.module.name" means the function or class `name` of the file `dir/module.py`
in it. The other parts are names in the same file, or "dir.module.name" in another file of the zoo:

| part | is called as | needed to |
|---|---|---|
| `custom_model` | `f(**model_params)`, gives a Keras model or a PyTorch module; or a class of these | train, evaluate, predict |
| `loss` | `f(labels, predictions)` | train |
| `optimizer` | `f()`, gives an optimizer; for PyTorch `f(parameters)` | train |
| `feed`, older `dataset_fn` | `f(dataset, mode, metadata)` | train, evaluate, predict |
| `eval_metrics_fn` | `f()`, gives {name: metric or function} | evaluate, and train with evaluation |
| `callbacks` | `f()`, gives a list | |
| `custom_data_reader` | `f(data_origin=..., records_per_task=..., **params)` | |
| `prediction_outputs_processor` | a class with `process(predictions, worker_id)` | |

A part that is not needed is None where the file has not got it, unless the user named it. *Imports.* The file can import the files of its
directory, what the zoo holds ("dir.module"), the zoo's own name ("zoo.dir.module") and ElasticDL's names. Its directory is first on
`sys.path`, behind our modules in ElasticDL's place: its own modules, in a checkout or installed, would look for its own master. The zoo and
its parent are last, so a folder of the zoo hides no installed package. All stay there. The file's module is "dir.module" in
`sys.modules`; a second load takes it from there.

`check_names` reads a file before the job starts. Nothing is called but the file itself, as it is imported: whether parts can be called so
is read from their signatures. All faults are a `BadModel`. Errors that the file's functions raise later pass as they are.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import linecache
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .errors import BadModel, did_you_mean

MODEL = "custom_model"
# Part -> the name in the file where the user gives none.
_PARTS = ("loss", "optimizer", "feed", "eval_metrics_fn", "callbacks", "custom_data_reader")
DEFAULT_NAMES = {**{part: part for part in _PARTS}, "prediction_outputs_processor": "PredictionOutputsProcessor"}
OLDER_NAMES = {"feed": "dataset_fn"}
# Task -> the parts that it needs.
NEEDED = {
    "train": (MODEL, "loss", "optimizer", "feed"),
    "evaluate": (MODEL, "feed", "eval_metrics_fn"),
    "predict": (MODEL, "feed"),
}
_BY_TASK = {part for parts in NEEDED.values() for part in parts}  # the other parts are used wherever they are
# Part -> the arguments that it is called with: by position, by name.
_CALLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "loss": (("labels", "predictions"), ()),
    "optimizer": ((), ()),  # or, for PyTorch, with the parameters
    "feed": (("dataset", "mode", "metadata"), ()),
    "eval_metrics_fn": ((), ()),
    "callbacks": ((), ()),
    "custom_data_reader": ((), ("data_origin", "records_per_task")),
}
_MODEL_CLASSES = {("keras", "Model"), ("tf_keras", "Model"), ("tensorflow", "Model"), ("torch", "Module")}
ANY = "*"  # a name for all that a file may have besides those that are written in it
_NAMES_BY_RUNNING = ("globals", "vars", "setattr", "exec")  # functions that can give a module any names
# The packages that are named as ElasticDL's.
_THEIR_NAMES = os.path.join(os.path.dirname(os.path.dirname(__file__)), "elasticdl", "alias")
_LAST_FRAMES = 3  # of a traceback, that an error shows


@dataclass(frozen=True)
class ModelFile:
    """The parts of a model file; None for one that it has not got. `path`: of the file."""

    path: str
    custom_model: Any
    loss: Any = None
    optimizer: Any = None
    feed: Any = None
    eval_metrics_fn: Any = None
    callbacks: Any = None
    custom_data_reader: Any = None
    prediction_outputs_processor: Any = None

    def build_model(self, params: Mapping[str, Any]) -> Any:
        """Return `custom_model(**params)`. Raises BadModel for parameters that it does not take or lacks; its own errors pass."""
        check_params(self, params)
        return self.custom_model(**params)


def needed_parts(task: str, has_evaluation: bool = False) -> tuple[str, ...]:
    """Return the parts that a task needs: train, evaluate or predict. `has_evaluation`: it evaluates beside its training."""
    parts = NEEDED[task]
    return (*parts, "eval_metrics_fn") if has_evaluation and "eval_metrics_fn" not in parts else parts


def load(
    model_zoo: str | os.PathLike[str],
    model_def: str,
    *,
    task: str = "train",
    has_evaluation: bool = False,
    names: Mapping[str, str] | None = None,
) -> ModelFile:
    """Import the file of a model definition and return its parts, checked for a task; see `needed_parts`.

    `names`: part -> the name that the user gives it; such a part must be there. Raises BadModel.
    """
    zoo = os.fspath(model_zoo)
    chosen = dict(names or {})
    for part in chosen:
        if part not in DEFAULT_NAMES:
            mend = did_you_mean(part, list(DEFAULT_NAMES), f"the parts are {', '.join(DEFAULT_NAMES)}")
            raise BadModel(f"a model file has no part {part}", mend=mend)
    path, module_name, symbol = locate(zoo, model_def, "model_def")
    module = _import(zoo, path, module_name)
    model = _named(module, path, symbol, MODEL, f"model_def: {model_def}")
    _check_model(model, path, symbol)
    needed = needed_parts(task, has_evaluation)
    parts = {}
    for part, default in DEFAULT_NAMES.items():
        name = chosen.get(part, default)
        is_chosen = name not in (default, OLDER_NAMES.get(part))
        parts[part] = _part(zoo, module, path, part, name, is_needed=is_chosen or part in needed, task=task)
    return ModelFile(path=path, custom_model=model, **parts)


def check_params(model_file: ModelFile, params: Mapping[str, Any]) -> None:
    """Raise BadModel where `custom_model` of the file cannot be called with these keyword arguments."""
    model = model_file.custom_model
    signature = _signature(model)
    if signature is None:
        return
    try:
        signature.bind(**params)
    except TypeError as error:
        known = [name for name, parameter in signature.parameters.items() if parameter.kind != parameter.VAR_KEYWORD]
        unknown = [name for name in params if name not in known]
        mend = f"it takes {', '.join(known)}" if known else "it takes none"
        raise BadModel(
            f"{model.__name__} cannot be called with these model_params: {error}",
            place=place_of(model_file.path, model),
            mend=did_you_mean(unknown[0], known, mend) if unknown else mend,
        ) from None


# -- where it is --


def locate(zoo: str, definition: str, flag: str) -> tuple[str, str, str]:
    """Return the path of a definition's file, the name of its module and the name in it."""
    place, form = f"model_zoo: {zoo}", "from the directory of the zoo on"
    if not os.path.isdir(zoo):
        reason = "is not a directory" if os.path.exists(zoo) else "does not exist"
        folder, file = os.path.split(zoo)
        is_file = os.path.isfile(zoo) and file.endswith(".py")
        mend = f"give the directory of the model file{f': {folder or os.curdir}' if is_file else 's'}"
        raise BadModel(f"the model zoo {reason}: {zoo}", place=place, mend=mend)
    names = definition.split(".")
    if os.sep in definition or definition.startswith("."):
        mend = f"write dir.module.function, {form}"
        raise BadModel(f"{flag} leads outside of the model zoo: {definition}", place=place, mend=mend)
    if len(names) < 2 or not all(name.isidentifier() for name in names):
        mend = f"write dir.module.function_or_class, {form}"
        raise BadModel(f"{flag} names no function of a file: {definition}", place=place, mend=mend)
    *folders, stem, symbol = names
    path = zoo
    for at in range(len(folders)):
        path = _entry(path, names, at, "", flag)
    path = _entry(path, names, len(folders), ".py", flag)
    root, target = os.path.realpath(zoo), os.path.realpath(path)
    if os.path.commonpath([root, target]) != root:
        fault = f"{flag} leads outside of the model zoo: {definition} is a link to {target}"
        raise BadModel(fault, place=place, mend="copy the file into the zoo")
    return path, ".".join([*folders, stem]), symbol


def _entry(folder: str, parts: list[str], at: int, ending: str, flag: str) -> str:
    """Return the path of a directory, or of a file where there is an ending, that must be in `folder`: part `at` of a definition."""
    name = parts[at]
    path = os.path.join(folder, name + ending)
    if os.path.isfile(path) if ending else os.path.isdir(path):
        return path
    names = sorted(entry[: len(entry) - len(ending)] for entry in os.listdir(folder) if entry.endswith(ending))
    if not ending:
        names = [entry for entry in names if os.path.isdir(os.path.join(folder, entry))]
    names = [entry for entry in names if entry.isidentifier() and entry != "__init__"]
    kind = "file" if ending else "directory"
    has = f"{folder} has {', '.join(names[:10])}" if names else f"{folder} has none"
    mend = did_you_mean(name, names, has, ".".join([*parts[:at], "{}", *parts[at + 1 :]]))
    raise BadModel(f"the model zoo has no {kind} {path}", place=f"{flag}: {'.'.join(parts)}", mend=mend)


# -- what it holds, as it is written --


def check_names(
    model_zoo: str | os.PathLike[str], model_def: str, *, task: str, has_evaluation: bool, names: Mapping[str, str]
) -> None:
    """Raise BadModel where the file of a model definition, as it is written, has not got a name that `load` will need. Nothing is imported.

    A file that cannot be parsed here, or whose names are made as it runs (`import *`, `globals()`), passes.
    """
    zoo = os.fspath(model_zoo)
    path, _, symbol = locate(zoo, model_def, "model_def")
    _check_written(path, symbol, MODEL, f"model_def: {model_def}")
    needed = needed_parts(task, has_evaluation)
    for part, default in DEFAULT_NAMES.items():
        name, older = names.get(part) or default, OLDER_NAMES.get(part, default)
        if name not in (default, older):
            place, name = (locate(zoo, name, part)[::2]) if "." in name else (path, name)
            _check_written(place, name, part, f"{part}: {names[part]}")
        elif part in needed:
            _check_written(path, default, part, f"{task} needs it", older)


def _check_written(path: str, name: str, part: str, reason: str, older: str = "") -> None:
    names = written_names(path)
    if ANY not in names and name not in names and older not in names:
        raise _lacks(path, name, part, reason, [own for own, is_defined in names.items() if is_defined], [*names])


def written_names(path: str) -> dict[str, bool]:
    """Return the names that a file gives its module, and whether each is a function or class of its own. ANY: reading does not tell all."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return {ANY: False}
    names: dict[str, bool] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _NAMES_BY_RUNNING:
            names[ANY] = False
        if isinstance(node, ast.Global):
            names.update(dict.fromkeys(node.names, False))
    nodes: list[ast.AST] = [*tree.body]
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[ANY if node.name == "__getattr__" else node.name] = not node.name.startswith("_")
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = False
        elif isinstance(node, ast.alias):
            names[node.asname or node.name.partition(".")[0]] = False  # ANY of `import *`
        nodes.extend(ast.iter_child_nodes(node))
    return names


# -- importing it --


def _import(zoo: str, path: str, name: str) -> ModuleType:
    target = os.path.realpath(path)
    present = sys.modules.get(name)
    if present is not None and os.path.realpath(getattr(present, "__file__", None) or "") == target:
        return present
    if present is not None:
        fault = f"the module {name} is loaded already, from {getattr(present, '__file__', None) or 'the interpreter'}"
        raise BadModel(fault, place=path, mend="give the model file another name")
    folders = [os.path.abspath(zoo), os.path.dirname(os.path.abspath(zoo))]
    sys.path[:0] = [place for place in (_THEIR_NAMES, os.path.dirname(os.path.abspath(path))) if place not in sys.path]
    sys.path += [place for place in folders if place not in sys.path]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, (Exception, SystemExit)):
            raise
        raise _import_error(zoo, path, error) from error
    return module


def _import_error(zoo: str, path: str, error: BaseException) -> BadModel:
    if isinstance(error, SyntaxError) and error.filename and os.path.isfile(error.filename):
        line = f", line {error.lineno}" if error.lineno else ""
        text = f": {error.text.strip()}" if error.text and error.text.strip() else ""
        return BadModel(f"{error.filename} is not valid Python: {error.msg}", place=f"{error.filename}{line}{text}")
    root = os.path.join(os.path.realpath(zoo), "")
    stack = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in stack if os.path.realpath(frame.filename).startswith(root)]
    lines = [f"{frame.filename}, line {frame.lineno}: {frame.line}" for frame in frames[-_LAST_FRAMES:]]
    mend = ""
    if isinstance(error, ModuleNotFoundError) and error.name:
        mend = f"install {error.name} where the job runs, or put {error.name}.py beside the model file"
    elif isinstance(error, AttributeError | ImportError):
        mend = keras_2_mend()
    elif isinstance(error, SystemExit):
        mend = 'a model file is imported: put what it does as a program below if __name__ == "__main__":'
    text = f": {error}" if str(error) else ""
    message = f"{path} raised {type(error).__name__}{text} while it was imported"
    return BadModel(message, place="\n  ".join(lines) or path, mend=mend)


def keras_2_mend() -> str:
    """Return the mend for a file that has failed, and was written for Keras 2; "" where the program does not use Keras 3."""
    version = getattr(sys.modules.get("keras"), "__version__", "")
    if not version.startswith("3"):
        return ""
    return "if the file was written for Keras 2, install tf_keras and set TF_USE_LEGACY_KERAS=1 (--envs TF_USE_LEGACY_KERAS=1)"


# -- what it holds --


def _part(zoo: str, module: ModuleType, path: str, part: str, name: str, *, is_needed: bool, task: str) -> Any:
    """Return a part, checked; None where the file has not got it and need not."""
    if "." in name:
        path, module_name, name = locate(zoo, name, part)
        module = _import(zoo, path, module_name)
    older = OLDER_NAMES.get(part, "")
    if not hasattr(module, name) and name == DEFAULT_NAMES[part] and hasattr(module, older):
        name = older
    if not is_needed and getattr(module, name, None) is None:
        return None
    reason = f"{part}: {name}" if name != DEFAULT_NAMES[part] else f"{task} needs it"
    value = _named(module, path, name, part, reason)
    if not is_needed and part in _BY_TASK:
        return value
    if part == "prediction_outputs_processor":
        if not callable(getattr(value, "process", None)):
            raise BadModel(f"{name} must have a method process(predictions, worker_id)", place=place_of(path, value))
    else:
        _check_call(value, path, name, part)
    return value


def _named(module: ModuleType, path: str, name: str, part: str, reason: str) -> Any:
    value = getattr(module, name, None)
    if value is not None:
        return value
    known = {key: content for key, content in vars(module).items() if not key.startswith("_") and callable(content)}
    own = [key for key, content in known.items() if getattr(content, "__module__", "") == module.__name__]
    raise _lacks(path, name, part, reason, own, [*known])


def _lacks(path: str, name: str, part: str, reason: str, own: list[str], known: list[str]) -> BadModel:
    has = f"the file defines {', '.join(own[:10])}" if own else "the file defines no function and no class"
    return BadModel(
        f"the model file {path} has no {name}" + (f", its {part}" if name != part else ""),
        place=reason,
        mend=did_you_mean(name, [*own, *known], has),
    )


def _check_model(model: Any, path: str, name: str) -> None:
    if isinstance(model, type):
        if not _is_model_class(model):
            mend = "derive it from keras.Model or torch.nn.Module, or name a function that returns a model"
            raise BadModel(f"the class {name} is not a model", place=place_of(path, model), mend=mend)
    elif _is_model_class(type(model)):
        mend = f"write a function that returns it, and name that: def {MODEL}(): return ..."
        raise BadModel(f"{name} is a model, and must be a function or class that makes one", place=path, mend=mend)
    elif not callable(model):
        raise BadModel(f"{name} must be a function or class that makes a model, and is {_kind(model)}", place=path)


def _is_model_class(kind: type) -> bool:
    """Tell whether a class is a model of Keras or PyTorch, without importing these."""
    return any((parent.__module__.partition(".")[0], parent.__name__) in _MODEL_CLASSES for parent in kind.__mro__)


def _check_call(value: Any, path: str, name: str, part: str) -> None:
    positional, named = _CALLS[part]
    call = f"{name}({', '.join([*positional, *(f'{argument}=...' for argument in named)])})"
    if not callable(value):
        raise BadModel(f"{name} must be a function, called as {call}, and is {_kind(value)}", place=path)
    signature = _signature(value)
    if part == "optimizer" and takes_parameters(value):
        return
    try:
        if signature is not None:
            signature.bind(*positional, **dict.fromkeys(named))
    except TypeError as error:
        raise BadModel(f"{name} cannot be called as {call}: {error}", place=place_of(path, value)) from None


def takes_parameters(optimizer: Any) -> bool:
    """Tell whether the first argument of an optimizer's function is the parameters to optimize, as PyTorch has it."""
    signature = _signature(optimizer)
    first = next(iter(signature.parameters), "") if signature is not None else ""
    return first in ("parameters", "params")


def _signature(value: Any) -> inspect.Signature | None:
    try:
        if not isinstance(value, type):
            return inspect.signature(value)
        signature = inspect.signature(value.__init__)  # type: ignore[misc]  # Keras's classes have a `__new__` that takes anything
        return signature.replace(parameters=[*signature.parameters.values()][1:])
    except (ValueError, TypeError):  # of something compiled
        return None


def _kind(value: Any) -> str:
    return f"of type {type(value).__name__}"


def place_of(path: str, value: Any) -> str:
    """Return where a function or class is defined, as well as it is known."""
    code = getattr(value, "__code__", None)
    if code is not None:
        return f"{code.co_filename}, line {code.co_firstlineno}: {linecache.getline(code.co_filename, code.co_firstlineno).strip()}"
    return path
