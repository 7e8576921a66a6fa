"""A job out of ElasticDL's flags.

The job has a role `worker` and, for ParameterServerStrategy, a role `ps`: see `programs`. `inputs` and `results` say what becomes of data
and models, `places` which paths are meant, `containers` what the containers have.
"""

from __future__ import annotations

from trainmaster.integrations.dialect import OwnOptions, Translation, unsupported
from trainmaster.integrations.elasticdl.containers import set_containers
from trainmaster.integrations.elasticdl.flags import BY_NAME, SILENT, TO_WORKER
from trainmaster.integrations.elasticdl.inputs import set_inputs
from trainmaster.integrations.elasticdl.programs import set_programs
from trainmaster.integrations.elasticdl.request import Request, Words
from trainmaster.integrations.elasticdl.results import set_results


def translated(verb: str, words: Words, options: OwnOptions, is_theirs: bool = False) -> Translation:
    """Return the job of `tm VERB`. `is_theirs`: the words are an ElasticDL command line. Raises BadInput, naming the flag."""
    job = Request(verb, words, options, is_theirs)
    for set_keys in (set_programs, set_inputs, set_results, set_containers):
        set_keys(job)
    _refuse(job)
    _remark(job)
    return job.draft.translation(job.name, options, stays=not is_theirs)


def _refuse(job: Request) -> None:
    if job.has("cluster_spec"):
        instead = "write what it adds as --cluster_spec_json, or as a template: --set engines.kubernetes.pod=..."
        raise unsupported(job.words["cluster_spec"], "a Python file that changes pods", instead)
    for name in ("need_task_manager", "need_pod_manager"):
        if not job.is_true(name):
            raise unsupported(job.words[name], "a job without the parts of its master", "leave the flag out")
    if job.text("critical_worker_index") not in ("default", "none"):
        instead = "completion.first or completion.failures, by --set, say with which task a job ends"
        raise unsupported(job.words["critical_worker_index"], "a list of workers with which the job fails", instead)


def _remark(job: Request) -> None:
    """Name the flags that change nothing: those of all jobs, and those whose role or program this job does not have."""
    of_model_files = {
        "num_evaluators": "the workers evaluate beside training, by --evaluation_steps",
        "launch_worker_after_ps_running": "workers always wait for their servers",
    }
    written = [name for name in job.words if job.has(name)]
    for name in written:
        text = "" if job.is_own_program else of_model_files.get(name, "")
        text = BY_NAME[name].doc if BY_NAME[name].section == SILENT else text
        if text:
            job.remark(f"--{name}: nothing to do; {text}")
    for name in written:
        role = name.partition("_")[0]
        is_of_role = name.startswith(("ps_", "chief_", "evaluator_")) and name != "ps_is_critical"
        if is_of_role and role not in job.roles:
            job.remark(f"--{name}: nothing to do; the job has no {role}")
    shared = ("model_zoo", "distribution_strategy", "num_epochs")
    of_worker = [name for name in BY_NAME if name in TO_WORKER and name not in shared and not name.endswith("_data")]
    unread = [f"--{name}" for name in of_worker if name in written]
    if job.is_own_program and unread:
        job.remark(f"{', '.join(unread)}: nothing to do; the program of --job_command has flags of its own")
