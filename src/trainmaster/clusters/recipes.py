"""Images for users' jobs: the recipe, and the program of this machine that builds it.

The recipes, next to the cluster's files, are `Containerfile` (the image in which programs run) and `Containerfile.runtime` (the image that
`engines.kubernetes.runtime_image` names). They are plain OCI recipes, to be read, changed and built by hand as well. They are built in a
directory of their own that holds the files they name and nothing else of this machine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trainmaster.core.errors import BadInput, EngineFailed

# Tool -> its build command; the first tool that works is used. buildah calls it `bud` in its older releases, and newer ones know that too.
TOOLS: dict[str, tuple[str, ...]] = {
    "docker": ("build",),
    "podman": ("build",),
    "buildah": ("bud",),
    "nerdctl": ("build",),
}
PROBE = "info"  # a command that fails where the tool cannot build: docker and nerdctl without their daemon
_PROBED_WITHIN = 20.0  # s
BASE, RUNTIME_BASE = "python:3.12-slim", "busybox:stable"
REQUIREMENTS, ARCHIVE = "requirements.txt", "runtime.tar.gz"  # in the directory that is built
_FOLDER = Path(__file__).parent / "kubernetes"
_OPTIONAL = "requirements"  # the lines between `# [requirements]` and `# [end]`


def recipe(base: str = "", requirements: str = "", runtime: bool = False) -> str:
    """Return the recipe as text. Raises BadInput where `requirements`, a file, is not there, or is given for a runtime."""
    if requirements and runtime:
        raise BadInput(
            "an image of the runtime has no packages of programs", place=f"--requirements {requirements}",
            mend="build two images: one with --runtime, one without", anchor="image-build",
        )  # fmt: skip
    if requirements and not Path(requirements).is_file():
        raise BadInput(
            f"the file {requirements} does not exist", place=f"--requirements {requirements}",
            mend=f"it is looked for in {Path.cwd()}", anchor="no-file",
        )  # fmt: skip
    text = (_FOLDER / ("Containerfile.runtime" if runtime else "Containerfile")).read_text()
    begin, end = f"# [{_OPTIONAL}]\n", "# [end]\n"
    before, _, rest = text.partition(begin)
    inner, _, after = rest.partition(end)
    text = before + (inner if requirements else "") + after
    return text.replace("@BASE@", base or (RUNTIME_BASE if runtime else BASE))


def tool(name: str = "") -> str:
    """Choose the tool to build with: the named one, else the first that works. Raises BadInput where there is none."""
    known = ", ".join(TOOLS)
    if name and name not in TOOLS:
        raise BadInput(
            f"there is no tool {name!r} that we know",
            place=f"--with {name}",
            mend=f"tools: {known}",
            anchor="image-build",
        )
    installed = [candidate for candidate in ([name] if name else TOOLS) if shutil.which(candidate)]
    if not installed:
        raise BadInput(
            f"{name} is not on PATH" if name else f"none of {known} is on PATH, and one of them builds the image",
            mend="install one; or build what --print prints where one is", anchor="image-build",
        )  # fmt: skip
    if name or len(installed) == 1:
        return installed[0]  # where it does not work, its own error message says why
    failures = {}
    for candidate in installed:
        failures[candidate] = _failure(candidate)
        if not failures[candidate]:
            return candidate
    raise BadInput(
        "no tool that builds images works: " + "; ".join(f"{candidate}: {failure}" for candidate, failure in failures.items()),
        mend="start the daemon of one, or name the tool to use: --with TOOL", anchor="image-build",
    )  # fmt: skip


def _failure(name: str) -> str:
    """Return the last words of a tool that does not work here; "" where it works."""
    try:
        probe = subprocess.run([name, PROBE], capture_output=True, text=True, timeout=_PROBED_WITHIN, check=False)
    except subprocess.TimeoutExpired:
        return f"it does not answer within {_PROBED_WITHIN:.0f} s"
    except OSError as error:
        return str(error.strerror)
    lines = [line.strip() for line in probe.stderr.splitlines() if line.strip()]
    return "" if probe.returncode == 0 else (lines[-1] if lines else f"it exited with {probe.returncode}")[:200]


def build(
    chosen: str, name: str, text: str, requirements: str = "", archive: Path | None = None, more: Sequence[str] = ()
) -> None:
    """Build the image `name`; the tool's own words go to stderr. `archive`: of the runtime. Raises EngineFailed where it fails."""
    with tempfile.TemporaryDirectory(prefix="trainmaster-image-") as folder:
        place = Path(folder)
        (place / "Containerfile").write_text(text)
        if requirements:
            shutil.copyfile(requirements, place / REQUIREMENTS)
        if archive is not None:
            shutil.copyfile(archive, place / ARCHIVE)
        build_folder(chosen, name, place, place / "Containerfile", more, "see the recipe: tm image build --print")


def build_folder(
    chosen: str, name: str, folder: Path, recipe: Path, more: Sequence[str] = (), advice: str = ""
) -> None:
    """Build the image `name` of a directory by a recipe in it; the tool's own words go to stderr. Raises EngineFailed where it fails."""
    command = [chosen, *TOOLS[chosen], "--tag", name, "--file", str(recipe), *more, str(folder)]
    _run(command, f"could not build {name}", advice or f"see the recipe: {recipe}")


def push(chosen: str, name: str) -> None:
    """Push the image `name` to where its name leads; the tool's own words go to stderr. Raises EngineFailed where it fails."""
    _run(
        [chosen, "push", name],
        f"could not push {name}",
        f"log in first where the registry wants it: {chosen} login REGISTRY",
    )


def _run(command: Sequence[str], failure: str, advice: str) -> None:
    status = subprocess.run(command, stdout=sys.stderr.fileno(), check=False).returncode
    if status:
        raise EngineFailed(
            f"{command[0]} {failure}: it exited with {status}",
            mend=f"its own words are above; {advice}", anchor="image-build",
        )  # fmt: skip
