"""The places that ElasticDL's flags name, as a job file names them, and the place that a job begins from.

A path is one of this machine, except in pods. There a path below a mount of `--volume` is one of the pod. In an ElasticDL command line
every path is one of the pod, since its data and its model zoo are in images and volumes. On this machine a volume with a host path is
another name of that path.
"""

from __future__ import annotations

import os

from trainmaster.integrations.dialect import BASED, wrong
from trainmaster.integrations.elasticdl import formers
from trainmaster.integrations.elasticdl.request import Request

IN_IMAGES = "/"  # the directory in which images of ElasticDL's users begin
_INIT = "checkpoint_dir_for_init"


def here(job: Request, flag: str) -> str:
    """Return the path on this machine that a flag says."""
    return os.path.abspath(os.path.expanduser(job.text(flag)))


def place_of(job: Request, flag: str, is_output: bool = False) -> str:
    """Return a path or a URL as a job file names it."""
    text = job.text(flag)
    if BASED.match(text):
        return text
    within = next((entry for entry in job.volumes if f"{text}/".startswith(f"{entry['path'].rstrip('/')}/")), None)
    if job.in_pods and (within or (job.is_in_image and not is_output)):
        return f"file://{os.path.join(IN_IMAGES, text)}"
    if job.is_here and within and os.path.exists(within.get("host_path", "")):
        below = text[len(within["path"].rstrip("/")) :].lstrip("/")
        return os.path.join(within["host_path"], within.get("sub_path", ""), below).rstrip("/")
    return here(job, flag)


def beginning(job: Request) -> str:
    """Return what training, evaluation or prediction begins from, as the workers name it; brought to them where they do not see it."""
    option, url = job.words[_INIT], place_of(job, _INIT)
    former = _former(job)  # which is whole
    if "://" not in url and job.is_here:
        if not os.path.exists(url):
            raise wrong(option, f"{url} does not exist", "name a checkpoint or an exported model", "no-file")
        return url
    if job.in_pods and url.startswith("file://"):
        return url.removeprefix("file://")
    roles = ["ps", "worker"] if "ps" in job.roles and former else ["worker"]
    fields = {"url": former or url, "as": "download", "split": "whole", "local": "init", "to": roles}
    job.draft.set_keys("inputs.init", fields, option)
    return "init"


def former_servers(job: Request) -> str:
    """Return the directory of a former job's checkpoints that the servers begin from, as they see it; "": there is none."""
    return beginning(job) if job.has(_INIT) and _former(job) else ""


def _former(job: Request) -> str:
    """Return what of a place servers begin from; "": it has no checkpoints of theirs. Raises BadInput where one is not whole."""
    if job.former is None:
        job.former = formers.newest(place_of(job, _INIT), job.option(_INIT).origin, job.in_pods)
    return job.former
