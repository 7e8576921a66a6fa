"""A job as one MLflow run: its keys are parameters, what was measured are metrics, its outputs are artifacts.

A job is published into the run that carries its id, so publishing again adds what is new: while the job runs, and after its end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainmaster.core.errors import BadInput, EngineFailed
from trainmaster.core.metrics import Series
from trainmaster.log.storage import is_inside, local_path
from trainmaster.words.keys import leaves

JOB = "trainmaster.job"  # a tag of a run
UNTIL = "trainmaster.published-until"  # a tag: the time of the last sample that the run has, in ms since 1970
_STATES = {"succeeded": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
_VALUE = 500  # characters of a parameter that every server takes
_BATCH = 500  # entries of a request, of 1,000 that the interface allows


class Runs:
    """The runs of one experiment on a tracking server. Raises BadInput where the extra is missing, or the server's URI is wrong."""

    def __init__(self, uri: str, experiment: str) -> None:
        try:
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise BadInput(
                "the extra mlflow is not installed here",
                mend="in a clone of Trainmaster: pip install '.[mlflow]'",
                anchor="extra-missing",
            ) from error
        self._failure: type[Exception] = MlflowException
        self._uri = uri
        try:
            self._client = MlflowClient(uri)
            known = self._client.get_experiment_by_name(experiment)
            self._experiment = known.experiment_id if known is not None else self._client.create_experiment(experiment)
        except MlflowException as error:
            raise self._failed(error) from error

    def publish(
        self,
        status: Mapping[str, Any],
        description: Mapping[str, Any],
        series: Sequence[Series],
        outputs: Mapping[str, str],
    ) -> str:
        """Bring the job's run up to date; return its id. Raises EngineFailed where the server does not take it.

        `outputs`: the URLs of those to publish, by name. The status names some too, but others may have written it.
        """
        try:
            run = self._run_of(status, description)
            self._add_samples(run, series, status["submitted"])
            if (state := _STATES.get(status["state"])) is not None:
                for name, url in outputs.items():
                    self._add_output(run, name, url)
                self._client.set_terminated(run, state, round((status["ended"] or status["at"]) * 1000))
        except self._failure as error:
            raise self._failed(error) from error
        return run

    def _run_of(self, status: Mapping[str, Any], description: Mapping[str, Any]) -> str:
        job = str(status["job"])
        runs = self._client.search_runs([self._experiment], f"tags.`{JOB}` = '{job}'", max_results=1)
        if runs:
            return str(runs[0].info.run_id)
        reason = (status["reason"] or {}).get("words", "")
        tags = {
            JOB: job, "mlflow.user": str(description.get("user") or ""), "trainmaster.engine": str(description.get("engine") or ""),
            "mlflow.source.name": f"tm run ({job})", "mlflow.note.content": str(reason),
        }  # fmt: skip
        run = self._client.create_run(self._experiment, round(status["submitted"] * 1000), tags, status["name"] or job)
        self._add_parameters(run.info.run_id, description.get("job") or {})
        return str(run.info.run_id)

    def _add_parameters(self, run: str, job: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        parameters = [Param(_name(key), text[:_VALUE]) for key, text in leaves(job)]
        for part in _parts(parameters):
            self._client.log_batch(run, params=part)

    def _add_samples(self, run: str, series: Sequence[Series], begin: float) -> None:
        """Add the samples after the last that the run has; `step` counts seconds since the job was submitted."""
        from mlflow.entities import Metric

        until = int(self._client.get_run(run).data.tags.get(UNTIL) or 0)
        metrics = [
            Metric(_name(f"{row.task}/{row.name}" if row.task else row.name), value, round(at * 1000), max(0, round(at - begin)))
            for row in series for at, value in zip(row.times, row.values, strict=True) if value is not None and round(at * 1000) > until
        ]  # fmt: skip
        for part in _parts(metrics):
            self._client.log_batch(run, metrics=part)
        if metrics:
            self._client.set_tag(run, UNTIL, str(max(metric.timestamp for metric in metrics)))

    def _add_output(self, run: str, name: str, url: str) -> None:
        """Add the files of an output of this machine; of one elsewhere its URL, since copying it there may take hours."""
        path = local_path(url)
        self._client.set_tag(run, f"trainmaster.output.{name}", url)
        if path is not None and os.path.isdir(path):
            for file in _files_below(path):
                folder = os.path.relpath(os.path.dirname(file), path)
                self._client.log_artifact(run, file, os.path.normpath(os.path.join(name, folder)))
        elif path is not None and Path(path).is_file():
            self._client.log_artifact(run, path, name)

    def _failed(self, error: Exception) -> EngineFailed:
        text = str(error).strip().splitlines()[0][:300]
        return EngineFailed(
            f"MLflow at {self._uri} refused: {text}", mend="check its address: --mlflow URI", anchor="mlflow"
        )


def _files_below(path: str) -> Iterator[str]:
    """Yield the regular files of a folder. A link that leads out of it is not followed: another user may have put it there."""
    root = os.path.realpath(path)
    for folder, _, names in os.walk(path):
        for file in (os.path.join(folder, name) for name in sorted(names)):
            if os.path.isfile(file) and is_inside(file, root):
                yield file


def _name(text: str) -> str:
    """Return a name as MLflow allows it: letters, digits, and `_-./ `."""
    return "".join(letter if letter.isalnum() or letter in "_-./ " else "." for letter in text)[:250]


def _parts(entries: list[Any]) -> Iterator[list[Any]]:
    for begin in range(0, len(entries), _BATCH):
        yield entries[begin : begin + _BATCH]
