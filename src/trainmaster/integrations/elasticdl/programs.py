"""The programs of a job out of ElasticDL's flags: their commands, how many run, their variables and restarts.

The worker's program is `python -m trainmaster.zoo VERB`, with those flags that it needs as they were written. Servers run
`python -m trainmaster.ps`, and the workers wait for them. With `--job_command` the program is the user's own, in every role.
"""

from __future__ import annotations

import os
import re
from typing import Any

from trainmaster.core.errors import BadInput
from trainmaster.data.archives import listed
from trainmaster.integrations.dialect import Option, count, unsupported, wrong_value
from trainmaster.integrations.elasticdl import values
from trainmaster.integrations.elasticdl.flags import BY_NAME, TO_WORKER, of
from trainmaster.integrations.elasticdl.places import IN_IMAGES, beginning, former_servers, here, place_of
from trainmaster.integrations.elasticdl.request import Request
from trainmaster.zoo.flags import BOOL, SINGLE, TRAIN

ALIAS = "TRAINMASTER_ALIAS"  # see `agent.attempt.environ`
_MOST_SERVERS = 16  # to which `tm scale` may take the parameter servers, where the job begins with fewer
_MOVED_WITHIN = "5m"  # for a server that ends, to give its rows to the others; at the job's end none is needed
_PACKAGES = ("elasticai_api", "elasticdl", "elasticdl_preprocessing")  # ElasticDL's own, for which programs have ours
# Flags that `_zoo_command` writes in another way.
_OWN = ("model_zoo", "distribution_strategy", "checkpoint_dir_for_init")


def set_programs(job: Request) -> None:
    for role, size in job.sizes.items():
        section, number = f"roles.{role}", count(size)
        command, *by = _own_command(job, role) if job.is_own_program else _zoo_command(job, role)
        job.set(f"{section}.command", command, *by)
        replicas: Any = {"min": 1, "max": number} if role == "worker" and number > 1 else number
        if role == "ps" and job.verb == TRAIN and not job.is_own_program:  # they begin with all, and change when asked
            replicas = {"min": 1, "max": max(number, _MOST_SERVERS), "start": number}
            job.set(f"{section}.stop.grace", _MOVED_WITHIN, size)
        job.set(f"{section}.replicas", replicas, size)
    waits = job.option("launch_worker_after_ps_running")
    if count(job.servers) and (not job.is_own_program or waits.text.strip() == "on"):
        job.set("roles.worker.after", {"ps": "running"}, waits)
    framework = "tensorflow" if job.is_true("need_tf_config") else "generic"
    job.set("framework", framework, job.option("need_tf_config"))
    _set_variables(job)
    _set_restarts(job)


def _own_command(job: Request, role: str) -> tuple[Any, ...]:
    """Return the user's command. In an image it is run where the image begins, with nothing of the present directory."""
    option = job.words["job_command"]
    if job.is_in_image:
        job.set("files", [], option)
        return f"cd {IN_IMAGES} && {option.text}", option
    if theirs := [name for name in _PACKAGES if os.path.exists(os.path.join(name, "__init__.py"))]:
        # `python -m` looks into the program's directory first, and their package would look for their master.
        job.set(f"roles.{role}.workdir", "copy", option)
        job.remark(f"--job_command: runs in a copy of this directory, without {', '.join(theirs)}")
    if job.has("model_zoo"):
        zoo = here(job, "model_zoo")
        job.set("files", [f"{zoo}#{os.path.basename(zoo)}"], job.words["model_zoo"])
    elif theirs and role == job.roles[0]:  # once for all roles
        rest = {member.name.partition("/")[0] for member in listed(["."])[0]} - {*theirs}
        job.set("files", sorted(rest), option)
    return option.text, option


def _zoo_command(job: Request, role: str) -> tuple[Any, ...]:
    """Return a command of ours and the flags that made it."""
    if role == "ps":  # the workers tell it how updates are applied
        job.set("roles.ps.ports", ["ps"])
        begin = ["--init", place] if (place := former_servers(job)) else []
        return ["python", "-m", "trainmaster.ps", "--servers", job.servers.text, *begin], job.servers
    for name, mend in (("model_zoo", "--model_zoo DIR"), ("model_def", "--model_def DIR.MODULE.NAME")):
        if not job.has(name):
            raise BadInput(f"there is no --{name}", mend=f"add {mend}, or --job_command COMMAND", anchor="missing-key")
    words = ["python", "-m", "trainmaster.zoo", job.verb, "--model_zoo", _zoo(job), *worker_words(job)]
    words += ["--distribution_strategy", job.strategy]
    if count(job.servers):  # a worker that restarts alone knows its own round's tasks only
        words += ["--num_ps_pods", job.servers.text]
    elif job.has("checkpoint_dir"):  # to say where they stay: the program's own path goes with the job
        words += ["--checkpoint_dir", place_of(job, "checkpoint_dir", is_output=True)]
    if job.has("checkpoint_dir_for_init"):
        words += ["--checkpoint_dir_for_init", beginning(job)]
    return words, job.words["model_def"]


def worker_words(job: Request) -> list[str]:
    """Return the flags of the worker's program as they were written; true and false as words."""
    words = []
    for flag in of(job.verb):
        if flag.name in TO_WORKER and flag.name not in _OWN and job.has(flag.name):
            is_boolean = flag.metavar == BOOL
            words += [
                f"--{flag.name}",
                str(job.is_true(flag.name)).lower() if is_boolean else job.words[flag.name].text,
            ]
    return words


def _zoo(job: Request) -> str:
    """Return the zoo's path as the workers have it. Raises BadInput where it is on this machine and has no such model file, or
    that file lacks a name.
    """
    from trainmaster.zoo.errors import BadModel
    from trainmaster.zoo.model_file import DEFAULT_NAMES, check_names
    from trainmaster.zoo.params import parse_params

    option, zoo = job.words["model_zoo"], here(job, "model_zoo")
    names = {part: job.text(part) for part in DEFAULT_NAMES if job.verb in BY_NAME[part].verbs}
    is_evaluated = job.verb == TRAIN and job.has("validation_data")
    try:
        parse_params(job.text("model_params"), "model_params")
        if not job.is_in_image:
            check_names(zoo, job.text("model_def"), task=job.verb, has_evaluation=is_evaluated, names=names)
    except BadModel as error:
        raise BadInput(error.message, place=error.place, mend=error.mend, anchor="model-zoo") from error
    if job.is_in_image:
        job.set("files", [], option)
        return os.path.join(IN_IMAGES, option.text)
    name = os.path.basename(zoo) or "zoo"
    job.set("files", [] if job.is_here else [f"{zoo}#{name}"], option)
    return zoo if job.is_here else name


def _set_variables(job: Request) -> None:
    """Set the variables that ElasticDL's master gave the programs of users, except MASTER_ADDR: its master is not here.

    The agent fills in `{index}` and `{address}`. Variables that flags name are set in all programs.
    """
    own = values.variables(job.words["envs"]) if job.has("envs") else {}
    workers = job.sizes["worker"]
    for role in job.roles:
        if job.is_own_program:
            theirs = {"WORKER_NUM": workers.text, "MY_POD_IP": "{address}", ALIAS: "elasticdl"}
            theirs |= {"WORKER_ID": "{index}"} if role == "worker" else {}
            for name in theirs.keys() - own.keys():
                job.set(("roles", role, "env", name), theirs[name], workers)
        for name, value in own.items():
            job.set(("roles", role, "env", name), value, job.words["envs"])
    if not job.has("populate_env_names"):
        return
    option = job.words["populate_env_names"]
    try:
        names = [name for name in os.environ if re.fullmatch(option.text, name)]
    except re.error as error:
        raise wrong_value(option, f"a name or a regular expression ({error})") from error
    if not names:
        job.remark(f"--populate_env_names: no variable is called {option.text}")
    for role in job.roles:
        for name in names:
            job.set(("roles", role, "env", name), None, option)


def _set_restarts(job: Request) -> None:
    """Set which tasks restart, and how often. Workers with a state of their own go back to a checkpoint together."""
    limits = {"worker": "relaunch_on_worker_failure", "ps": "ps_relaunch_max_num"}
    shares_model = job.verb == TRAIN and job.strategy != SINGLE
    aux = values.pairs(job.words["aux_params"], ";", "K=V;K=V") if job.has("aux_params") else {}
    if unknown := [name for name in aux if name != "disable_relaunch"]:
        instead = "disable_relaunch is the one there was"
        raise unsupported(Option(unknown[0], "flag --aux_params"), "this parameter", instead)
    never = values.boolean(Option(aux.get("disable_relaunch", "false"), "flag --aux_params"))
    for role in job.roles:
        if never:
            job.set(f"roles.{role}.restart", {"scope": "never"}, job.words["aux_params"])
        elif role in limits:  # a role's limit is of all its tasks; what workers have spent, their progress gives back
            limit = job.count(limits[role]) * (count(job.servers) if role == "ps" else 1)
            job.set(f"roles.{role}.restart.limit", limit, job.option(limits[role]))
            if shares_model:
                job.set(f"roles.{role}.restart.scope", "task", job.option("distribution_strategy"))
