"""What an outer launcher told `tm`, or another job a program that submits a job, never reaches the programs of the new job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from trainmaster import frameworks
from trainmaster.core.spec.threads import VARIABLES as THREADS
from trainmaster.frameworks import launchers, variables

TM = [sys.executable, "-m", "trainmaster.cli"]
OUTER = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "GROUP_RANK": "2", "MASTER_ADDR": "10.9.9.9", "MASTER_PORT": "1",
    "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "outer", "TORCHELASTIC_ERROR_FILE": "/nonexistent/error.json",
    "TF_CONFIG": '{"cluster": {"worker": ["10.9.9.9:1"]}}', "OMPI_COMM_WORLD_RANK": "3", "PMI_RANK": "3", "SLURM_PROCID": "3",
    "HOROVOD_RANK": "3", "DMLC_ROLE": "server", "JAX_PROCESS_ID": "3", "NODE_RANK": "3",
    "TRAINMASTER_JOB": "outer-aaaaaa", "TRAINMASTER_ROLE": "ps", "TRAINMASTER_INPUT_TRAIN": "/nonexistent/train",
    "TRAINMASTER_OUTPUT_MODEL": "/nonexistent/model", "TRAINMASTER_CHECKPOINT": "/nonexistent/ckpt", "INPUT_FILE_LIST": "{}",
}  # fmt: skip
# What a user may well set: programs take it over. The first four yield to the submitter, and the last two are common names.
TAKEN_OVER = {
    "PYTHONUNBUFFERED",
    "PYTHONPATH",
    "CUDA_VISIBLE_DEVICES",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "INDEX",
    "ROLE_NAME",
}
ENV = "import json, os; print(json.dumps(dict(os.environ)))"


def tm(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TM, *arguments], capture_output=True, text=True, cwd=cwd, timeout=120, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, **environ},
    )  # fmt: skip


@pytest.mark.parametrize("words", [[], ["--framework", "pytorch"]])
def test_programs_have_nothing_of_an_outer_launcher(tmp_path: Path, home, words: list[str]) -> None:
    done = tm("run", *words, "--", sys.executable, "-c", ENV, cwd=tmp_path, **OUTER, MY_OWN="kept", TF_INTRA_OP="kept")
    assert done.returncode == 0, done.stderr
    environ = json.loads(done.stdout)
    assert {name: environ[name] for name in OUTER if environ.get(name) == OUTER[name]} == {}
    assert "TORCHELASTIC_USE_AGENT_STORE" not in environ
    assert (environ["MY_OWN"], environ["TF_INTRA_OP"]) == ("kept", "kept")
    assert "do not get" not in done.stderr  # a job in a job is common, and nobody's mistake


def test_a_task_without_a_rank_has_none(tmp_path: Path, home) -> None:
    job = {
        "framework": "pytorch",
        "roles": {"worker": {"command": "true"}, "evaluator": {"command": [sys.executable, "-c", ENV]}},
        "completion": {"first": "evaluator"},
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    done = tm("run", "job.json", "--no-prefix", cwd=tmp_path, **OUTER)
    assert done.returncode == 0, done.stderr
    environ = json.loads(done.stdout)
    assert environ.keys() & {"RANK", "WORLD_SIZE", "MASTER_ADDR", "TF_CONFIG", "TORCHELASTIC_RUN_ID"} == set()


def test_a_role_passes_one_on_by_name(tmp_path: Path, home) -> None:
    done = tm("run", "--env", "RANK", "--", sys.executable, "-c", ENV, cwd=tmp_path, RANK="7")
    assert (json.loads(done.stdout)["RANK"], done.returncode) == ("7", 0)
    assert "do not get" not in done.stderr


def test_explain_names_what_is_taken_out(tmp_path: Path, home) -> None:
    told = "has set {}, which the programs do not get"
    done = tm("explain", "--", "true", cwd=tmp_path, RANK="7", HOROVOD_RANK="7")
    assert f"(torchrun, horovodrun) {told.format('RANK, HOROVOD_RANK')}" in done.stdout
    assert f"(torchrun) {told.format('RANK')}" in tm("run", "--", "true", cwd=tmp_path, RANK="7").stderr
    done = tm("explain", "--", "true", cwd=tmp_path, RANK="7", TRAINMASTER_JOB="outer-aaaaaa")
    assert f"(Trainmaster) {told.format('RANK, TRAINMASTER_JOB')}" in done.stdout
    assert "do not get" not in tm("explain", "--", "true", cwd=tmp_path).stdout


def test_all_that_programs_are_told_is_in_the_table_or_may_be_a_users() -> None:
    """A framework's new variable is either taken out of an outer job's, or named here as one that users set."""
    tables = [variables.VARIABLES, *(getattr(frameworks.load(name), "VARIABLES", ()) for name in frameworks.names())]
    told = {name for table in tables for variable in table for name in variable.name.split(", ")}
    patterns = [pattern for group in launchers.VARIABLES.values() for pattern in group]
    by_submitter = TAKEN_OVER | {*THREADS} | {variable.name for variable in variables.NETWORK}
    assert {name for name in told if not any(fnmatchcase(name, pattern) for pattern in patterns)} == by_submitter
