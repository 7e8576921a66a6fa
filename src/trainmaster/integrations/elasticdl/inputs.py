"""The inputs of a job out of ElasticDL's flags: `training`, `validation` and `prediction`.

*Validation beside training* is read whole, as often as the program likes, so it is not an input of shards. If it is a path that the
programs see, it is mounted; otherwise each worker has a copy. All other data are given out in shards.
"""

from __future__ import annotations

import os
import re
from typing import Any

from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.core.spec.job import COUNTED_LATER
from trainmaster.integrations.dialect import Option, count
from trainmaster.integrations.elasticdl.places import here, place_of
from trainmaster.integrations.elasticdl.programs import worker_words
from trainmaster.integrations.elasticdl.request import Request
from trainmaster.runtime.patterns import is_pattern
from trainmaster.zoo.flags import EVALUATE, PREDICT, TRAIN

_DATA = {TRAIN: "training", EVALUATE: "validation", PREDICT: "prediction"}  # verb -> the input that is read in shards
_RECORDS = re.compile(r"records://\d+")


def set_inputs(job: Request) -> None:
    of_reader, shards = _records_of_reader(job), _DATA[job.verb]
    for name in _DATA.values():
        is_counted = bool(of_reader) and name == shards
        if is_counted or job.has(f"{name}_data"):
            _set_input(job, name, of_reader if is_counted else place_of(job, f"{name}_data"))
    is_counted_later = job.is_own_program and job.verb == TRAIN
    if is_counted_later:
        _set_own_records(job)
    is_training = job.has("training_data") or (of_reader and job.verb == TRAIN)
    if is_training or (is_counted_later and job.has("num_epochs")):
        job.set("inputs.training.epochs", job.count("num_epochs"), job.option("num_epochs"))
    if not (job.has(f"{shards}_data") or job.is_own_program or job.has("custom_data_reader")):
        raise BadInput(f"there are no data: no --{shards}_data", mend=f"add --{shards}_data URL", anchor="missing-key")
    if job.verb != TRAIN and not job.has("checkpoint_dir_for_init"):
        mend = "add --checkpoint_dir_for_init PATH: checkpoints, an exported model or a file of weights"
        raise BadInput("there is no trained model", mend=mend, anchor="missing-key")


def _set_input(job: Request, name: str, url: str) -> None:
    option, section = job.option(f"{name}_data"), f"inputs.{name}"
    if _RECORDS.fullmatch(url):
        url += f"/{_records_per_task(job)}"
    job.set(f"{section}.url", url, option)
    if name == _DATA[job.verb]:
        job.set(f"{section}.as", "shards", option)
        if job.has("num_minibatches_per_task") and not url.startswith("records:"):
            job.set(f"{section}.shard_records", _records_per_task(job), job.words["num_minibatches_per_task"])
        if not job.is_own_program and not _RECORDS.match(url) and (form := _format(job, url)) != "auto":
            job.set(f"{section}.format", form, Option(option.text, option.origin, False))
    else:  # whole for every task: by its path where they see that, else as a copy
        is_seen = (job.is_here and "://" not in url) or (job.in_pods and url.startswith("file://"))
        is_mounted = is_seen and not is_pattern(url.removeprefix("file://"))
        fields: dict[str, Any] = {"as": "mount"} if is_mounted else {"as": "download", "split": "whole"}
        job.draft.set_keys(section, fields, option)
    if len(job.roles) > 1:
        to = ["evaluator"] if name == "validation" and "evaluator" in job.roles else ["chief", "worker"]
        job.set(f"{section}.to", [role for role in to if role in job.roles], option)


def _set_own_records(job: Request) -> None:
    """Let a program count its records if no flag names the data. The programs of all roles make the service, readers or not."""
    option = job.option("training_data")
    if not job.has("training_data"):
        job.draft.set_keys("inputs.training", {"url": COUNTED_LATER, "as": "shards"}, option)
    if len(job.roles) > 1:
        job.set("inputs.training.to", job.roles, option)


def _records_per_task(job: Request) -> int:
    return job.count("minibatch_size") * job.count("num_minibatches_per_task")


def _records_of_reader(job: Request) -> str:
    """Return `records://COUNT/SIZE` where workers share the records of the model file's own reader, else "". `--set` may say it."""
    data = _DATA[job.verb]
    if job.is_own_program or count(job.sizes["worker"]) < 2:
        return ""
    for option in job.options.sets:
        key, _, text = option.text.partition("=")
        if key.strip() == f"inputs.{data}.url" and text.strip().startswith("records:"):
            return text.strip()
    if job.is_in_image:
        return ""
    from trainmaster.integrations.elasticdl.readers import counted_url
    from trainmaster.zoo.model_file import locate, written_names

    zoo = here(job, "model_zoo")
    path, _, _ = locate(zoo, job.text("model_def"), "model_def")  # `programs` has found it before
    if job.text("custom_data_reader") not in written_names(path):  # the file is not run
        return ""
    return counted_url([job.verb, "--model_zoo", zoo, *worker_words(job)], data)


def _format(job: Request, url: str) -> str:
    """Return the format of records in which the program reads the same files by hand, "auto" where nothing tells."""
    from trainmaster.zoo.data.records import Form
    from trainmaster.zoo.errors import BadModel
    from trainmaster.zoo.params import parse_params

    if job.has("custom_data_reader"):
        return "auto"
    try:
        return Form(parse_params(job.text("data_reader_params"), "data_reader_params")).format_of(_example(url))
    except BadModel as error:
        raise BadInput(error.message, place=error.place, mend=error.mend, anchor="wrong-value") from error


def _example(url: str) -> str:
    """Return the path or URL of a file whose ending shows the format of all. A storage that does not answer is not asked twice: submitting
    says why.
    """
    if "://" not in url.removeprefix("file://") or os.path.splitext(url)[1]:
        return url.removeprefix("file://")
    from trainmaster.data.sources import list_input

    try:
        return list_input(url).files[0].path
    except TrainmasterError:
        return url
