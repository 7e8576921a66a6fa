"""The results of a job out of ElasticDL's flags: the outputs `model` and `predictions`, event files, and checkpoints."""

from __future__ import annotations

from trainmaster.client.spec import settings
from trainmaster.engines import registry
from trainmaster.integrations.dialect import count
from trainmaster.integrations.elasticdl.places import place_of
from trainmaster.integrations.elasticdl.request import Request
from trainmaster.runtime.folders import reason_unwritable
from trainmaster.zoo.flags import PREDICT, SINGLE, TRAIN

DIRECTORY = "TRAINMASTER_PS_DIRECTORY"  # see `ps.job`, which is imported by programs alone
_KEEP_ALL = 999_999_999  # sets: all of them


def set_results(job: Request) -> None:
    if job.has("output"):
        _set_output(job)
    elif job.verb == PREDICT:
        job.remark("no --output: predictions go to PredictionOutputsProcessor alone")
    job.draft.set_texts(
        {"tensorboard.logs": job.words["tensorboard_log_dir"] if job.has("tensorboard_log_dir") else None}
    )
    if job.verb != TRAIN or (job.is_own_program and not job.has("checkpoint_dir")):
        return  # evaluation and prediction count their shards at the end, so a worker that begins anew has them all
    if count(job.servers) and not job.is_own_program:
        _keep_on_servers(job)
    elif not job.has("checkpoint_dir") and _is_without_storage(job):
        # A lone worker then does not begin anew: it would have the rest of the data alone.
        remark = "no --checkpoint_dir, and no storage: no checkpoints are kept"
        if job.strategy == SINGLE:
            job.set("roles.worker.restart", {"scope": "never"})
            remark += ", and a worker that fails is not started again"
        job.remark(remark)
    else:
        job.set("checkpoint.path", "checkpoint", job.option("checkpoint_dir"))
        if job.has("checkpoint_dir"):
            job.set("checkpoint.url", place_of(job, "checkpoint_dir", is_output=True), job.words["checkpoint_dir"])
        if job.has("checkpoint_dir") or job.has("keep_checkpoint_max"):
            keep = job.option("keep_checkpoint_max")
            job.set("checkpoint.keep", count(keep) or _KEEP_ALL, keep)


def _set_output(job: Request) -> None:
    option, url = job.words["output"], place_of(job, "output", is_output=True)
    if job.verb != TRAIN:
        job.draft.set_keys("outputs.predictions", {"url": url, "from": "worker"}, option)
        return
    job.draft.set_keys("outputs.model", {"url": url, "layout": "flat", "from": "worker:0"}, option)
    if job.is_theirs:  # it was written over the model of the run before
        job.set("outputs.model.overwrite", True, option)


def _keep_on_servers(job: Request) -> None:
    """Name the directory of the servers' logs and checkpoints: one that all of them see, but on a cluster one in each container where
    the user names none.

    Sets of `checkpoint` would not do: the newest one is put back into all tasks, and each server has its own share.
    """
    if not job.has("checkpoint_dir"):
        job.set(f"roles.ps.env.{DIRECTORY}", "{work}/../servers" if job.is_here else "servers")
        if job.count("checkpoint_steps"):
            job.remark("no --checkpoint_dir: the servers' checkpoints end with the job")
        return
    url = place_of(job, "checkpoint_dir", is_output=True)
    if not url.startswith("file://") and (not job.is_here or "://" in url):
        raise job.refused(
            "checkpoint_dir",
            f"servers keep their checkpoints in a directory that every node sees, and {job.text('checkpoint_dir')} is not one",
            "name one, as file://PATH, or leave it out: each server's are in its container then",
        )
    path = url.removeprefix("file://")
    if job.is_here and (reason := reason_unwritable(path, is_tried=False)):
        mend = "check the permissions, or name another directory"
        raise job.refused("checkpoint_dir", f"nothing can be kept there: {reason}", mend)
    for role in ("ps", "worker"):  # with it workers find servers in new containers
        job.set(f"roles.{role}.env.{DIRECTORY}", path, job.words["checkpoint_dir"])


def _is_without_storage(job: Request) -> bool:
    """Tell whether the job has no place for checkpoints unless the user names one."""
    is_named = any("storage" in layer for layer, _ in settings.standing())
    is_named = is_named or any(option.text.startswith("storage=") for option in job.options.sets)
    return bool(registry.engine(job.engine).capabilities.without_storage) and not is_named
