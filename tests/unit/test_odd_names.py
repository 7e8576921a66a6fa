"""Names of folders and files that hold letters of patterns, or bytes that are not UTF-8, are what they are, the whole way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import Input
from trainmaster.data.formats.hadoop_formats import check
from trainmaster.integrations.elasticdl import formers
from trainmaster.runtime.patterns import matching

TM = [sys.executable, "-m", "trainmaster.cli"]
# A folder's name, and that of its neighbour which the name as a pattern would mean.
FOLDERS = [("exp[1]", "exp1"), ("lr=0.1,bs=[32,64]", "lr=0.1,bs=3"), ("run?", "run1"), ("a*", "ab")]
READ = "import os, sys; place = os.environ['TRAINMASTER_INPUT_DATA']; "
READS = {
    "download": f"{READ}print(sorted(os.listdir(place)), open(os.path.join(place, 'a.csv')).read())",
    "list": f"{READ}[print(os.path.relpath(line), open(line).read()) for line in open(place).read().splitlines()]",
    "stream": "import sys; print(sys.stdin.read())",
    "shards": "from trainmaster import runtime; [print(record) for record in runtime.shards('data')]",
}


def tm(*arguments: str | bytes, cwd: Path | bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*TM, *arguments], capture_output=True, cwd=cwd, timeout=120, check=False, stdin=subprocess.DEVNULL
    )


@pytest.fixture(params=FOLDERS, ids=[folder for folder, _ in FOLDERS])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A job's directory beside another one that its name as a pattern matches."""
    for name in request.param:
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "data" / "a.csv").write_text(f"of {name}\n")
    return tmp_path / request.param[0]


@pytest.mark.parametrize(
    ("folder", "kind"),
    [*((FOLDERS[0], kind) for kind in READS), *((names, "stream") for names in FOLDERS[1:])],
    indirect=["folder"],
)
def test_a_pattern_of_a_job_never_reads_a_neighbour_of_its_directory(home, folder: Path, kind: str) -> None:
    done = tm("run", "--input", f"data:{kind}=data/*.csv", "--", sys.executable, "-c", READS[kind], cwd=folder)
    assert done.returncode == 0, done.stderr
    assert f"of {folder.name}" in done.stdout.decode()
    (folder / "data" / "a.csv").unlink()
    gone = tm("run", "--dry-run", "--input", f"data:{kind}=data/a.csv", "--", "true", cwd=folder)
    assert (gone.returncode, b"no-input" in gone.stderr) == (2, True)


def test_a_folder_of_any_name_is_mounted(home, folder: Path) -> None:
    code = f"{READ}print(open(place + '/a.csv').read())"
    done = tm("run", "--input", "data:mount=data", "--", sys.executable, "-c", code, cwd=folder)
    assert (done.returncode, done.stdout.split()[-1].decode()) == (0, folder.name), done.stderr
    gone = tm("run", "--input", "data:mount=nothing", "--", "true", cwd=folder)
    assert b"does not exist" in gone.stderr


def test_an_input_is_not_shipped_with_the_files_of_its_directory(home, folder: Path) -> None:
    (folder / "train.py").touch()
    words = ["--set", "roles.worker.workdir=copy", "--input", "data:list=data/*.csv"]
    done = tm("run", *words, "--", sys.executable, "-c", "import os; print(sorted(os.listdir('data')))", cwd=folder)
    assert b"['a.csv']" not in done.stdout, done.stderr


def test_programs_read_patterns_alike(folder: Path) -> None:
    assert matching(f"{folder}/data/*.csv") == [f"{folder}/data/a.csv"]
    assert matching(f"{folder}/data/b.csv") == []


def test_former_servers_are_found_in_a_folder_of_any_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formers, "_version_here", lambda path, origin: 7)
    assert formers.newest(str(folder), "--checkpoint_dir", False) == f"{folder}/**/version-7/*"
    assert formers.newest(f"{folder}/*", "--checkpoint_dir", False) == f"{folder}/*"


def test_hadoops_formats_refuse_a_folder_that_they_would_take_for_a_pattern(folder: Path) -> None:
    def hadoop(url: str) -> Input:
        return Input("data", url, as_="stream", format="hadoop:org.apache.hadoop.mapred.TextInputFormat")

    with pytest.raises(BadInput, match="takes the name of the folder"):
        check(hadoop(f"{folder}/data/*.csv"))
    check(hadoop(f"{folder.parent}/{{a,b}}/*.csv"))


# -- bytes that are not UTF-8 --

NAME = b"caf\xe9"  # in Latin-1
COMMANDS = {
    "download": ["sh", "-c", "cat data/*"],
    "list": ["sh", "-c", 'while read -r file; do cat "$file"; done < "$TRAINMASTER_INPUT_DATA"'],
    "stream": ["cat"],
    "shards": [sys.executable, "-c", READS["shards"]],
}


@pytest.fixture
def latin(tmp_path: Path) -> bytes:
    """A job's directory beside another one, of the name that a replaced byte would give."""
    folder = os.fsencode(tmp_path) + b"/" + NAME
    for place, text in ((folder, "right\n"), (folder.replace(b"\xe9", b"?"), "wrong\n")):
        os.makedirs(place + b"/data")
        with open(place + b"/data/" + NAME + b".csv", "w") as file:
            file.write(text)
    return folder


@pytest.mark.parametrize("kind", COMMANDS)
def test_an_input_of_any_bytes_is_read(home, latin: bytes, kind: str) -> None:
    done = tm("run", "--input", f"data:{kind}=data", "--", *COMMANDS[kind], cwd=latin)
    assert (done.returncode, done.stdout) == (0, b"right\n"), done.stderr


def test_a_program_runs_in_its_directory_whatever_its_bytes(home, latin: bytes) -> None:
    done = tm("run", "--", b"sh", b"-c", b'pwd; echo "$0"', NAME, cwd=latin)
    assert done.stdout == latin + b"\n" + NAME + b"\n", done.stderr


def test_an_output_of_any_bytes_is_committed_and_shown(home, latin: bytes, tmp_path: Path) -> None:
    done = tm(
        "run", "--output", "model=out", "--", b"sh", b"-c", b'mkdir -p model; echo x > model/"$0"', NAME, cwd=latin
    )
    assert done.returncode == 0, done.stderr
    assert os.listdir(latin + b"/out/worker-0") == [NAME]
    assert "given up" not in done.stderr.decode(errors="replace")
    assert not os.path.exists(latin.replace(b"\xe9", b"?") + b"/out")
    job = next((home.state / "jobs").iterdir()).name
    assert tm("export", job, str(tmp_path / "export"), cwd=tmp_path).returncode == 0
    assert "caf\\udce9" in (tmp_path / "export" / "index.html").read_text()
