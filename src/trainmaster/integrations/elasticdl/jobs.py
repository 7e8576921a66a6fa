"""A job out of ElasticDL's flags.

The job has a role `worker`, whose program is `python -m trainmaster.zoo VERB` with those flags that it needs, as they were written; and for
ParameterServerStrategy a role `ps`, whose program is `python -m trainmaster.ps`, that the workers wait for. Inputs are called `training`,
`validation` and `prediction`, outputs `model` and `predictions`. With `--job_command` the program is the user's own, in every role.

*Validation beside training* is read whole, as often as the program likes, so it is not an input of shards. If it is a path that the
programs see, it is mounted; otherwise each worker has a copy. All other data are given out in shards.

*Flags that mean something else.* A path is one of this machine, except in pods. There a path below a mount of `--volume` is one of the pod.
In an ElasticDL command line every path is one of the pod, since its data and its model zoo are in images and volumes. On this machine a
volume with a host path is another name of that path. Keys that only Kubernetes has are kept in the job file, and a remark says that they
change nothing elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.client.spec import settings
from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.core.spec.job import COUNTED_LATER
from trainmaster.core.spec.quantities import exact_bytes, parse_seconds
from trainmaster.data.archives import listed
from trainmaster.engines import registry
from trainmaster.host import machine
from trainmaster.integrations.dialect import (
    BASED,
    Draft,
    Options,
    Said,
    Translation,
    choice,
    count,
    plain,
    unsupported,
    wrong_value,
)
from trainmaster.integrations.elasticdl import formers, values
from trainmaster.integrations.elasticdl.flags import ALLREDUCE, ALONE, BY_NAME, EVALUATE, PREDICT, SERVERS, TRAIN, of
from trainmaster.runtime.folders import reason_unwritable
from trainmaster.runtime.patterns import is_pattern

ALIAS = "TRAINMASTER_ALIAS"  # see `agent.attempt.environ`
DIRECTORY = "TRAINMASTER_PS_DIRECTORY"  # see `ps.job`, which is imported by programs alone
Words = Mapping[str, Said]  # flag -> its value, of those that were written
_DATA = {TRAIN: "training", EVALUATE: "validation", PREDICT: "prediction"}  # verb -> the input that is read in shards
_KEEP_ALL = 999_999_999  # sets: all of them
_MOST_SERVERS = 16  # to which `tm scale` may take the parameter servers, where the job begins with fewer
_MOVED_WITHIN = "5m"  # for a server that ends, to give its rows to the others; at the job's end none is needed
_PACKAGES = ("elasticai_api", "elasticdl", "elasticdl_preprocessing")  # ElasticDL's own, for which programs have ours
_IN_IMAGES = "/"  # the directory in which images of ElasticDL's users begin
_ONE_WORKER = Said("1", "the one worker", False)
_RECORDS = re.compile(r"records://\d+")
# Flags that change nothing here, and why.
NOTHING: Mapping[str, str] = {
    "extra_pypi_index": "packages come with the image, or from environment.requirements",
    "force_use_kube_config_file": "the kubeconfig is found as kubectl finds it",
    "log_file_path": "tm logs JOB shows the output, and keeps it",
    "need_elasticdl_job_service": "a model file is run unless --job_command names a program",
    "task_fault_tolerance": "a lost shard is always given out again",
    "relaunch_timeout_worker": "a worker that hangs is started again after timeouts.stall",
    "enable_automate_memory": "roles.worker.retry_memory gives more memory after out-of-memory",
    "use_go_ps": "the servers are ours",
    "custom_training_loop": "the loop is ours, or a program's by --job_command",
    "evaluation_start_delay_secs": "--evaluation_steps says when the model is evaluated",
    "evaluation_throttle_secs": "--evaluation_steps says when the model is evaluated",
    "restart_policy": "Kubernetes restarts no pod in place; tasks restart by --relaunch_on_worker_failure",
}
_CHOICES = {
    "restart_policy": ("Never", "OnFailure", "Always"),
    "log_level": ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
    "image_pull_policy": ("Always", "IfNotPresent", "Never"),
    "launch_worker_after_ps_running": ("default", "on", "off"),
}
_PULL = {"Always": "always", "IfNotPresent": "missing", "Never": "never"}


def translated(verb: str, words: Words, options: Options, is_theirs: bool = False) -> Translation:
    """Return the job of `tm VERB`. `is_theirs`: the words are an ElasticDL command line. Raises BadInput, naming the flag."""
    builder = _Builder(verb, words, options, is_theirs)
    builder.build()
    return builder.draft.translation(builder.name, options, stays=not is_theirs)


class _Builder:
    """Builds a job from the words of one command."""

    def __init__(self, verb: str, words: Words, options: Options, is_theirs: bool) -> None:
        self.verb, self.words, self.options, self.is_theirs = verb, words, options, is_theirs
        self.engine = options.engine
        self.draft = Draft()
        self.formers: dict[
            str, str
        ] = {}  # places that were looked through for checkpoints of former servers: see `_former`
        self.always = Said("", "ElasticDL's way", False)
        self.is_here = registry.is_on_this_machine(self.engine)
        self.in_pods = registry.engine(self.engine).capabilities.mounts
        self._check_values()
        self.volumes = values.volumes(words["volume"]) if self._has("volume") else []
        self.is_own_program = self._has("job_command")
        self.strategy = self._strategy()
        self.workers = self._workers()
        self.servers = self._servers()
        self.name = plain(self._text("job_name") or self._text("model_def").rpartition(".")[0].rpartition(".")[2], verb)

    def build(self) -> None:
        if self._has("job_name"):
            self._set_name()
        self._program()
        self._restarts()
        self._data()
        self._results()
        self._containers()
        self._kubernetes()
        self._remarks()

    # -- words --

    def _has(self, name: str) -> bool:
        return name in self.words and bool(self.words[name].text.strip())

    def _said(self, name: str) -> Said:
        """Return the value of a flag as it was written, else its default."""
        return self.words.get(name) or Said(BY_NAME[name].default, f"flag --{name}'s default", False)

    def _text(self, name: str) -> str:
        return self._said(name).text.strip()

    def _count(self, name: str) -> int:
        return count(self._said(name))

    def _is(self, name: str) -> bool:
        return values.boolean(self._said(name))

    def _set(self, path: tuple[str, ...], value: Any, *by: Said) -> None:
        self.draft.set_key(path, value, *(by or (self.always,)))

    def _refused(self, name: str, why: str, mend: str) -> BadInput:
        return BadInput(why, place=self._said(name).origin, mend=mend, anchor="wrong-value")

    def _check_values(self) -> None:
        """Refuse values of another form than their flags'. A program's parser would refuse them only where the job runs."""
        least = {
            "minibatch_size": 1,
            "num_minibatches_per_task": 1,
            "num_epochs": 1,
            "num_workers": 1,
            "get_model_steps": 1,
        }
        least |= {"grads_to_wait": 1}
        for name, option in self.words.items():
            kind = BY_NAME[name].metavar
            if kind in ("N", "BYTES"):
                count(option, least.get(name, 0))
            elif kind == "DURATION" and option.text.strip():
                self._check_duration(option)
            elif kind == "[true|false]":
                values.boolean(option)
            elif name in _CHOICES:
                word = option.text.upper() if name == "log_level" else option.text
                choice(Said(word, option.origin), dict.fromkeys(_CHOICES[name]), lower=False)

    @staticmethod
    def _check_duration(option: Said) -> None:
        try:
            parse_seconds(option.text)
        except ValueError as error:
            raise wrong_value(option, f"a duration ({error})") from error

    # -- how the work is shared --

    def _strategy(self) -> str:
        option = self._said("distribution_strategy")
        strategy = str(
            choice(option, {name: name for name in (ALONE, SERVERS, ALLREDUCE)}, lower=False)
            if option.text.strip()
            else ALONE
        )
        if not option.strong and self.verb != TRAIN and not self._count("num_ps_pods"):
            return ALONE  # a model that is not trained needs servers only where its tables are too large for a worker
        if not option.strong and self.is_own_program and not self._count("num_ps_pods"):
            return ALONE
        return strategy

    def _workers(self) -> Said:
        if self.verb == EVALUATE:  # metrics are of all data, so one worker has them
            if self._has("num_workers") and self._count("num_workers") > 1:
                self.draft.remark("--num_workers: one worker evaluates all data")
            return _ONE_WORKER
        is_single = self.strategy == ALONE and self.verb == TRAIN and not self.is_own_program
        if is_single and self._has("num_workers") and self._count("num_workers") > 1:
            mend = f"leave it out, or write --distribution_strategy {ALLREDUCE}"
            raise self._refused("num_workers", f"{ALONE} is one worker", mend)
        return _ONE_WORKER if is_single else self._said("num_workers")

    def _servers(self) -> Said:
        option = self._said("num_ps_pods")
        if self.strategy != SERVERS:
            if count(option):
                self.draft.remark(f"--num_ps_pods: {self.strategy} has no servers")
            return Said("0", "", False)
        if count(option) or self.is_own_program:
            return option
        if option.strong:
            raise self._refused(
                "num_ps_pods", f"{SERVERS} needs a server", f"write 1 or more, or --distribution_strategy {ALONE}"
            )
        return Said("1", option.origin, False)

    @property
    def roles(self) -> list[str]:
        """Return the roles of programs."""
        has_chief = self.is_own_program and any(
            self._has(f"chief_{part}") for part in ("resource_request", "resource_limit")
        )
        return [
            *(["ps"] if count(self.servers) else []),
            *(["chief"] if has_chief else []),
            "worker",
            *(["evaluator"] if self.is_own_program and self._count("num_evaluators") else []),
        ]

    def _set_name(self) -> None:
        option = self.words["job_name"]
        if plain(option.text, "") != option.text:
            raise wrong_value(option, f"a name of letters, digits, -, _ and ., like {plain(option.text, 'job')}")
        self._set(("name",), option.text, option)

    # -- programs --

    def _program(self) -> None:
        sizes = {
            "ps": self.servers,
            "worker": self.workers,
            "evaluator": self._said("num_evaluators"),
            "chief": _ONE_WORKER,
        }
        command = self._own_command if self.is_own_program else self._zoo_command
        for role in self.roles:
            number = count(sizes[role])
            may_shrink = role == "worker" and number > 1
            self._set(("roles", role, "command"), *command(role))
            self._set(("roles", role, "replicas"), {"min": 1, "max": number} if may_shrink else number, sizes[role])
            if (
                role == "ps" and self.verb == TRAIN and not self.is_own_program
            ):  # they begin with all, and change when asked
                most = max(number, _MOST_SERVERS)
                self._set(("roles", role, "replicas"), {"min": 1, "max": most, "start": number}, sizes[role])
                self._set(("roles", role, "stop", "grace"), _MOVED_WITHIN, sizes[role])
        if count(self.servers) and (not self.is_own_program or self._text("launch_worker_after_ps_running") == "on"):
            self._set(("roles", "worker", "after"), {"ps": "running"}, self._said("launch_worker_after_ps_running"))
        self._set(
            ("framework",), "tensorflow" if self._is("need_tf_config") else "generic", self._said("need_tf_config")
        )
        self._variables()

    def _own_command(self, role: str) -> tuple[Any, ...]:
        """Return the user's command. In an image it is run where the image begins, with nothing of the present directory."""
        option = self.words["job_command"]
        if self.is_in_image:
            self._set(("files",), [], option)
            return f"cd {_IN_IMAGES} && {option.text}", option
        if theirs := [name for name in _PACKAGES if os.path.exists(os.path.join(name, "__init__.py"))]:
            # `python -m` looks into the program's directory first, and their package would look for their master.
            self._set(("roles", role, "workdir"), "copy", option)
            self.draft.remark(f"--job_command: runs in a copy of this directory, without {', '.join(theirs)}")
        if self._has("model_zoo"):
            zoo = os.path.abspath(os.path.expanduser(self._text("model_zoo")))
            self._set(("files",), [f"{zoo}#{os.path.basename(zoo)}"], self.words["model_zoo"])
        elif theirs and role == self.roles[0]:  # once for all roles
            rest = {member.name.partition("/")[0] for member in listed(["."])[0]} - {*theirs}
            self._set(("files",), sorted(rest), option)
        return option.text, option

    def _zoo_command(self, role: str) -> tuple[Any, ...]:
        """Return a command of ours and the flags that made it."""
        if role == "ps":  # the workers tell it how updates are applied
            self._set(("roles", "ps", "ports"), ["ps"])
            place = self._former_servers()
            begin = ["--init", place] if place else []
            return ["python", "-m", "trainmaster.ps", "--servers", self.servers.text, *begin], self.servers
        for name, mend in (("model_zoo", "--model_zoo DIR"), ("model_def", "--model_def DIR.MODULE.NAME")):
            if not self._has(name):
                raise BadInput(
                    f"there is no --{name}", mend=f"add {mend}, or --job_command COMMAND", anchor="missing-key"
                )
        zoo = self._zoo()
        names = [flag.name for flag in of(self.verb) if flag.to_worker and self._has(flag.name)]
        own = ("model_zoo", "distribution_strategy", "checkpoint_dir_for_init")
        words = ["python", "-m", "trainmaster.zoo", self.verb, "--model_zoo", zoo]
        words += self._rewritten([name for name in names if name not in own])
        words += ["--distribution_strategy", self.strategy]
        if count(self.servers):  # a worker that restarts alone knows its own round's tasks only
            words += ["--num_ps_pods", self.servers.text]
        elif self._has("checkpoint_dir"):  # to say where they stay: the program's own path goes with the job
            words += ["--checkpoint_dir", self._place("checkpoint_dir", is_output=True)]
        if self._has("checkpoint_dir_for_init"):
            words += ["--checkpoint_dir_for_init", self._beginning()]
        return words, self.words["model_def"]

    def _rewritten(self, names: list[str]) -> list[str]:
        """Return flags as they were written; true and false as words."""
        words = []
        for name in names:
            is_boolean = BY_NAME[name].metavar == "[true|false]"
            words += [f"--{name}", str(self._is(name)).lower() if is_boolean else self.words[name].text]
        return words

    def _zoo(self) -> str:
        """Return the zoo's path as the workers have it. Raises BadInput where it is on this machine and has no such model file, or
        that file lacks a name.
        """
        from trainmaster.zoo.errors import BadModel
        from trainmaster.zoo.model_file import DEFAULT_NAMES, check_names
        from trainmaster.zoo.params import parse_params

        option = self.words["model_zoo"]
        zoo = os.path.abspath(os.path.expanduser(option.text))
        names = {part: self._text(part) for part in DEFAULT_NAMES if self.verb in BY_NAME[part].verbs}
        is_evaluated = self.verb == TRAIN and self._has("validation_data")
        try:
            parse_params(self._text("model_params"), "model_params")
            if not self.is_in_image:
                check_names(zoo, self._text("model_def"), task=self.verb, has_evaluation=is_evaluated, names=names)
        except BadModel as error:
            raise BadInput(error.message, place=error.place, mend=error.mend, anchor="model-zoo") from error
        if self.is_in_image:
            self._set(("files",), [], option)
            return os.path.join(_IN_IMAGES, option.text)
        name = os.path.basename(zoo) or "zoo"
        self._set(("files",), [] if self.is_here else [f"{zoo}#{name}"], option)
        return zoo if self.is_here else name

    @property
    def is_in_image(self) -> bool:
        """Tell whether programs, models and data are in the image, and in volumes, and not on this machine."""
        return self.is_theirs and self.in_pods

    def _variables(self) -> None:
        own = values.variables(self.words["envs"]) if self._has("envs") else {}
        for role in self.roles:
            for name, value in self._their_variables(role).items():
                if name not in own:
                    self._set(("roles", role, "env", name), value, self.workers)
            for name, value in own.items():
                self._set(("roles", role, "env", name), value, self.words["envs"])
        if not self._has("populate_env_names"):
            return
        option = self.words["populate_env_names"]
        try:
            names = [name for name in os.environ if re.fullmatch(option.text, name)]
        except re.error as error:
            raise wrong_value(option, f"a name or a regular expression ({error})") from error
        if not names:
            self.draft.remark(f"--populate_env_names: no variable is called {option.text}")
        for role in self.roles:
            for name in names:
                self._set(("roles", role, "env", name), None, option)

    def _their_variables(self, role: str) -> dict[str, str]:
        """Return the variables that ElasticDL's master gave the programs of users, except MASTER_ADDR: its master is not here.

        The agent fills in `{index}` and `{address}`.
        """
        if not self.is_own_program:
            return {}
        worker = {"WORKER_ID": "{index}"} if role == "worker" else {}
        return {"WORKER_NUM": self.workers.text, **worker, "MY_POD_IP": "{address}", ALIAS: "elasticdl"}

    def _restarts(self) -> None:
        """Set which tasks restart, and how often. Workers with a state of their own go back to a checkpoint together."""
        limits = {"worker": "relaunch_on_worker_failure", "ps": "ps_relaunch_max_num"}
        shares_model = self.verb == TRAIN and self.strategy != ALONE
        aux = values.pairs(self.words["aux_params"], ";", "K=V;K=V") if self._has("aux_params") else {}
        if unknown := [name for name in aux if name != "disable_relaunch"]:
            raise unsupported(
                Said(unknown[0], "flag --aux_params"), "this parameter", "disable_relaunch is the one there was"
            )
        never = values.boolean(Said(aux.get("disable_relaunch", "false"), "flag --aux_params"))
        for role in self.roles:
            if never:
                self._set(("roles", role, "restart"), {"scope": "never"}, self.words["aux_params"])
                continue
            if limits.get(
                role
            ):  # a role's limit is of all its tasks; what workers have spent, their progress gives back
                limit = self._count(limits[role]) * (count(self.servers) if role == "ps" else 1)
                self._set(("roles", role, "restart", "limit"), limit, self._said(limits[role]))
            if role in ("worker", "ps") and shares_model:
                self._set(("roles", role, "restart", "scope"), "task", self._said("distribution_strategy"))

    # -- data --

    def _data(self) -> None:
        of_reader = self._records_of_reader()
        for name in ("training", "validation", "prediction"):
            flag = f"{name}_data"
            is_counted = bool(of_reader) and name == _DATA[self.verb]
            if not (is_counted or self._has(flag)):
                continue
            option, url = self._said(flag), of_reader if is_counted else self._place(flag)
            if _RECORDS.fullmatch(url):
                url += f"/{self._records_per_task}"
            self._set(("inputs", name, "url"), url, option)
            if name == _DATA[self.verb]:
                self._set(("inputs", name, "as"), "shards", option)
                if self._has("num_minibatches_per_task") and not url.startswith("records:"):
                    by = self.words["num_minibatches_per_task"]
                    self._set(("inputs", name, "shard_records"), self._records_per_task, by)
                self._format(name, url, option)
            else:
                self._set_whole(name, url, option)
            if len(self.roles) > 1:
                to = ["evaluator"] if name == "validation" and "evaluator" in self.roles else ["chief", "worker"]
                self._set(("inputs", name, "to"), [role for role in to if role in self.roles], option)
        is_counted_later = self.is_own_program and self.verb == TRAIN
        if is_counted_later:
            self._own_records()
        is_training = self._has("training_data") or (of_reader and self.verb == TRAIN)
        if is_training or (is_counted_later and self._has("num_epochs")):
            self._set(("inputs", "training", "epochs"), self._count("num_epochs"), self._said("num_epochs"))
        needed = f"{_DATA[self.verb]}_data"
        if not (self._has(needed) or self.is_own_program or self._has("custom_data_reader")):
            raise BadInput(f"there are no data: no --{needed}", mend=f"add --{needed} URL", anchor="missing-key")
        if self.verb != TRAIN and not self._has("checkpoint_dir_for_init"):
            mend = "add --checkpoint_dir_for_init PATH: checkpoints, an exported model or a file of weights"
            raise BadInput("there is no trained model", mend=mend, anchor="missing-key")

    def _own_records(self) -> None:
        """Let a program count its records if no flag names the data. The programs of all roles make the service, readers or not."""
        option = self._said("training_data")
        if not self._has("training_data"):
            self._set(("inputs", "training", "url"), COUNTED_LATER, option)
            self._set(("inputs", "training", "as"), "shards", option)
        if len(self.roles) > 1:
            self._set(("inputs", "training", "to"), self.roles, option)

    @property
    def _records_per_task(self) -> int:
        return self._count("minibatch_size") * self._count("num_minibatches_per_task")

    def _records_of_reader(self) -> str:
        """Return `records://COUNT/SIZE` where workers share the records of the model file's own reader, else "". `--set` may say it."""
        data = _DATA[self.verb]
        if self.is_own_program or count(self.workers) < 2:
            return ""
        for option in self.options.sets:
            key, _, text = option.text.partition("=")
            if key.strip() == f"inputs.{data}.url" and text.strip().startswith("records:"):
                return text.strip()
        if self.is_in_image:
            return ""
        from trainmaster.integrations.elasticdl.readers import counted_url, has_reader
        from trainmaster.zoo.model_file import locate

        zoo = os.path.abspath(os.path.expanduser(self._text("model_zoo")))
        path, _, _ = locate(zoo, self._text("model_def"), "model_def")  # `_zoo` has found it before
        if not has_reader(path, self._text("custom_data_reader")):
            return ""
        own = ("model_zoo", "checkpoint_dir_for_init", "distribution_strategy")
        names = [
            flag.name for flag in of(self.verb) if flag.to_worker and self._has(flag.name) and flag.name not in own
        ]
        return counted_url([self.verb, "--model_zoo", zoo, *self._rewritten(names)], data)

    def _format(self, name: str, url: str, option: Said) -> None:
        """Set the format of records in which the program reads the same files by hand."""
        if self.is_own_program or _RECORDS.match(url):
            return
        from trainmaster.zoo.data.records import Form
        from trainmaster.zoo.errors import BadModel
        from trainmaster.zoo.params import parse_params

        form = "auto"
        if not self._has("custom_data_reader"):
            try:
                form = Form(parse_params(self._text("data_reader_params"), "data_reader_params")).format_of(
                    _example(url)
                )
            except BadModel as error:
                raise BadInput(error.message, place=error.place, mend=error.mend, anchor="wrong-value") from error
        if form != "auto":
            self._set(("inputs", name, "format"), form, Said(option.text, option.origin, False))

    def _set_whole(self, name: str, url: str, option: Said) -> None:
        """Give an input whole to every task: by its path where they see that, else as a copy."""
        is_seen = (self.is_here and "://" not in url) or (self.in_pods and url.startswith("file://"))
        fields = (
            {"as": "mount"}
            if is_seen and not is_pattern(url.removeprefix("file://"))
            else {"as": "download", "split": "whole"}
        )
        for key, value in fields.items():
            self._set(("inputs", name, key), value, option)

    def _place(self, flag: str, is_output: bool = False) -> str:
        """Return a path or a URL as a job file names it."""
        text = self.words[flag].text.strip()
        if BASED.match(text):
            return text
        within = next((entry for entry in self.volumes if f"{text}/".startswith(f"{entry['path'].rstrip('/')}/")), None)
        if self.in_pods and (within or (self.is_in_image and not is_output)):
            return f"file://{os.path.join(_IN_IMAGES, text)}"
        if self.is_here and within and os.path.exists(within.get("host_path", "")):
            below = text[len(within["path"].rstrip("/")) :].lstrip("/")
            return os.path.join(within["host_path"], within.get("sub_path", ""), below).rstrip("/")
        return os.path.abspath(os.path.expanduser(text))

    def _beginning(self) -> str:
        """Return what training, evaluation or prediction begins from, as the workers name it; brought to them where they do not see it."""
        option, url = self.words["checkpoint_dir_for_init"], self._place("checkpoint_dir_for_init")
        former = self._former(url)  # which is whole
        if "://" not in url and self.is_here:
            if not os.path.exists(url):
                raise BadInput(
                    f"{url} does not exist",
                    place=option.origin,
                    mend="name a checkpoint or an exported model",
                    anchor="no-file",
                )
            return url
        if self.in_pods and url.startswith("file://"):
            return url.removeprefix("file://")
        roles = ["ps", "worker"] if "ps" in self.roles and former else ["worker"]
        fields = {"url": former or url, "as": "download", "split": "whole", "local": "init", "to": roles}
        for key, value in fields.items():
            self._set(("inputs", "init", key), value, option)
        return "init"

    def _former_servers(self) -> str:
        """Return the directory of a former job's checkpoints that the servers begin from, as they see it; "": there is none."""
        has_former = self._has("checkpoint_dir_for_init") and self._former(self._place("checkpoint_dir_for_init"))
        return self._beginning() if has_former else ""

    def _former(self, place: str) -> str:
        """Return what of a place servers begin from; "": it has no checkpoints of theirs. Raises BadInput where one is not whole."""
        if place not in self.formers:
            self.formers[place] = formers.newest(place, self._said("checkpoint_dir_for_init").origin, self.in_pods)
        return self.formers[place]

    # -- results --

    def _results(self) -> None:
        if self._has("output"):
            option, url = self.words["output"], self._place("output", is_output=True)
            name = "model" if self.verb == TRAIN else "predictions"
            self._set(("outputs", name, "url"), url, option)
            if self.verb == TRAIN:
                self._set(("outputs", name, "layout"), "flat", option)
                self._set(("outputs", name, "from"), "worker:0", option)
                if self.is_theirs:  # it was written over the model of the run before
                    self._set(("outputs", name, "overwrite"), True, option)
            else:
                self._set(("outputs", name, "from"), "worker", option)
        elif self.verb == PREDICT:
            self.draft.remark("no --output: predictions go to PredictionOutputsProcessor alone")
        if self._has("tensorboard_log_dir"):
            self._set(("tensorboard", "logs"), self._text("tensorboard_log_dir"), self.words["tensorboard_log_dir"])
        if self.verb != TRAIN or (self.is_own_program and not self._has("checkpoint_dir")):
            return  # evaluation and prediction count their shards at the end, so a worker that begins anew has them all
        if count(self.servers) and not self.is_own_program:
            self._keep_on_servers()
            return
        if not self._has("checkpoint_dir") and self._is_without_storage():
            self._keep_no_checkpoints()
            return
        self._set(("checkpoint", "path"), "checkpoint", self._said("checkpoint_dir"))
        if self._has("checkpoint_dir"):
            self._set(
                ("checkpoint", "url"), self._place("checkpoint_dir", is_output=True), self.words["checkpoint_dir"]
            )
        if self._has("checkpoint_dir") or self._has("keep_checkpoint_max"):
            self._set(
                ("checkpoint", "keep"),
                self._count("keep_checkpoint_max") or _KEEP_ALL,
                self._said("keep_checkpoint_max"),
            )

    def _keep_on_servers(self) -> None:
        """Name the directory of the servers' logs and checkpoints: one that all of them see, but on a cluster one in each container where
        the user names none.

        Sets of `checkpoint` would not do: the newest one is put back into all tasks, and each server has its own share.
        """
        if not self._has("checkpoint_dir"):
            self._set(("roles", "ps", "env", DIRECTORY), "{work}/../servers" if self.is_here else "servers")
            if self._count("checkpoint_steps"):
                self.draft.remark("no --checkpoint_dir: the servers' checkpoints end with the job")
            return
        url = self._place("checkpoint_dir", is_output=True)
        if not url.startswith("file://") and (not self.is_here or "://" in url):
            raise self._refused(
                "checkpoint_dir",
                f"servers keep their checkpoints in a directory that every node sees, and {self._text('checkpoint_dir')} is not one",
                "name one, as file://PATH, or leave it out: each server's are in its container then",
            )
        path = url.removeprefix("file://")
        if self.is_here and (reason := reason_unwritable(path, is_tried=False)):
            raise self._refused(
                "checkpoint_dir",
                f"nothing can be kept there: {reason}",
                "check the permissions, or name another directory",
            )
        for role in ("ps", "worker"):  # with it workers find servers in new containers
            self._set(("roles", role, "env", DIRECTORY), path, self.words["checkpoint_dir"])

    def _is_without_storage(self) -> bool:
        """Tell whether the job has no place for checkpoints unless the user names one."""
        named = any("storage" in layer for layer, _ in settings.standing())
        named = named or any(option.text.startswith("storage=") for option in self.options.sets)
        return bool(registry.engine(self.engine).capabilities.without_storage) and not named

    def _keep_no_checkpoints(self) -> None:
        """Do without checkpoints. A lone worker then does not begin anew: it would have the rest of the data alone."""
        remark = "no --checkpoint_dir, and no storage: no checkpoints are kept"
        if self.strategy == ALONE:
            self._set(("roles", "worker", "restart"), {"scope": "never"})
            remark += ", and a worker that fails is not started again"
        self.draft.remark(remark)

    # -- containers --

    def _containers(self) -> None:
        for role in self.roles:
            self._resources(("roles", role, "resources"), role)
        if not self.is_here or self._has("master_resource_request") or self._has("master_resource_limit"):
            self._resources(("master", "resources"), "master")
        places: list[tuple[str, tuple[str, ...]]] = [("image_name", ("environment", "image"))]
        places += [("ps_image" if role == "ps" else "worker_image", ("roles", role, "image")) for role in self.roles]
        for flag, path in places:
            if self._has(flag) and self.is_here:
                self.draft.remark(f"--{flag}: nothing to do; this machine runs no images")
            elif self._has(flag):
                self._set(path, self._text(flag), self.words[flag])

    def _resources(self, path: tuple[str, ...], role: str) -> None:
        """Set what the containers of a role have. Memory is asked for and limited as one, so the limit counts where it is larger."""
        request, limit = self._said(f"{role}_resource_request"), self._said(f"{role}_resource_limit")
        if self.is_here and not request.strong and not limit.text:
            amounts, disk = self._share(), ""
            self._set((*path[:-1], "threads"), "machine", request)
        else:
            amounts, disk = values.resources(request)
        for key, value in amounts.items():
            self._set((*path, key), value, request)
        if limit.text:
            most, _ = values.resources(limit)
            for key in {"memory", "gpus"} & most.keys():
                self._set((*path, key), most[key], limit)
            if most.get("cores", 0) > amounts.get("cores", 0):
                self.draft.remark(
                    f"--{role}_resource_limit: cpu is not a limit here; idle cores may be used beyond what is asked for"
                )
        if disk:
            container = {"name": "program", "resources": {"requests": {"ephemeral-storage": disk}}}
            self._set(("engines", "kubernetes", "roles", role, "pod"), {"spec": {"containers": [container]}}, request)

    def _share(self) -> dict[str, Any]:
        """Return the part of this machine that lets all tasks run at once; at most what ElasticDL asks for by itself."""
        tasks = sum(count({"ps": self.servers, "worker": self.workers}.get(role, _ONE_WORKER)) for role in self.roles)
        memory = int(machine.memory() * 0.9 / tasks) >> 20 << 20
        cores = max(0.01, int(machine.cores() / tasks * 100) / 100)
        return {"cores": min(1.0, cores), "memory": exact_bytes(min(4 << 30, memory))}

    def _kubernetes(self) -> None:
        """Set what only Kubernetes has. Elsewhere it changes nothing, and a remark says so."""
        set_key, section = self._set, ("engines", "kubernetes")
        if self._has("namespace") or self.is_in_image:
            option = self.words.get("namespace") or Said("default", "flag --namespace's default", False)
            set_key((*section, "namespace"), option.text, option)
        if self._has("image_pull_policy") or (self.in_pods and self._has("image_name")):
            set_key((*section, "pull"), _PULL[self._text("image_pull_policy")], self._said("image_pull_policy"))
        if self.volumes:
            set_key((*section, "volumes"), self.volumes, self.words["volume"])
        for role in (*self.roles, "master"):
            if self._has(flag := f"{role}_pod_priority"):
                value = values.priority(self.words[flag])
                path = ("priority_class", role) if role != "master" else ("roles", "master", "priority_class")
                set_key((*section, *path), value, self.words[flag])
        if self._has("cluster_spec_json"):
            self._pod_specs(self.words["cluster_spec_json"])
        kept = ["namespace", "image_pull_policy", "volume", "cluster_spec_json"]
        kept += [name for name in self.words if name.endswith("_pod_priority")]
        for name in kept:
            if self._has(name) and not self.in_pods and not (name == "volume" and self.is_here):
                self.draft.remark(f"--{name}: changes nothing on {self.engine}; the job file keeps it for Kubernetes")

    def _pod_specs(self, option: Said) -> None:
        for role, spec in values.pod_specs(option).items():
            if role == values.SERVICE:
                self.draft.remark(
                    f"--cluster_spec_json: nothing to do for {role}; tasks find each other without services of theirs"
                )
                continue
            if role not in ("", "master", *self.roles):
                self.draft.remark(f"--cluster_spec_json: the job has no {role}")
                continue
            for name, value in spec.pop("env", {}).items():
                for target in [role] if role else self.roles:
                    path = ("master", "env", name) if target == "master" else ("roles", target, "env", name)
                    self._set(path, value, option)
            of_role = ("roles", role) if role else ()
            for key, value in spec.items():
                self._set(("engines", "kubernetes", *of_role, key), value, option)

    # -- what changes nothing --

    def _remarks(self) -> None:
        if self._has("cluster_spec"):
            instead = "write what it adds as --cluster_spec_json, or as a template: --set engines.kubernetes.pod=..."
            raise unsupported(self.words["cluster_spec"], "a Python file that changes pods", instead)
        for name in ("need_task_manager", "need_pod_manager"):
            if not self._is(name):
                raise unsupported(self.words[name], "a job without the parts of its master", "leave the flag out")
        if self._text("critical_worker_index") not in ("default", "none"):
            instead = "completion.first or completion.failures, by --set, say with which task a job ends"
            raise unsupported(
                self.words["critical_worker_index"], "a list of workers with which the job fails", instead
            )
        notes: dict[str, Callable[[], str]] = {
            "num_evaluators": lambda: (
                "" if self.is_own_program else "the workers evaluate beside training, by --evaluation_steps"
            ),
            "critical_worker_index": lambda: "a job fails with any task that cannot be started again",
            "ps_is_critical": lambda: "a job always fails with a server that cannot be started again",
            "launch_worker_after_ps_running": lambda: (
                "" if self.is_own_program else "workers always wait for their servers"
            ),
        }
        for name in self.words:
            if not self._has(name):
                continue
            note = NOTHING.get(name) or notes.get(name, lambda: "")()
            if note:
                self.draft.remark(f"--{name}: nothing to do; {note}")
        self._remark_unused()

    def _remark_unused(self) -> None:
        """Name the flags whose role or program the job does not have."""
        for name in self.words:
            role = name.partition("_")[0]
            is_of_role = name.startswith(("ps_", "chief_", "evaluator_")) and name != "ps_is_critical"
            if is_of_role and role not in self.roles and self._has(name):
                self.draft.remark(f"--{name}: nothing to do; the job has no {role}")
        if not self.is_own_program:
            return
        of_model = [flag.name for flag in of(self.verb) if flag.to_worker and not flag.name.endswith("_data")]
        shared = ("model_zoo", "distribution_strategy", "num_epochs")
        if unread := [
            f"--{name}" for name in of_model if self._has(name) and name in self.words and name not in shared
        ]:
            self.draft.remark(f"{', '.join(unread)}: nothing to do; the program of --job_command has flags of its own")


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
