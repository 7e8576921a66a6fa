"""A Request is the words of one ElasticDL command, with what they say of the whole job, and the job under construction.

The strategy and the roles follow from several flags together. `programs`, `inputs`, `results` and `containers` each set their keys of the
job; all of them read the words here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.core.errors import BadInput
from trainmaster.core.spec.quantities import parse_seconds
from trainmaster.engines import registry
from trainmaster.integrations import dialect
from trainmaster.integrations.dialect import Option, Place, choice, count, wrong_value
from trainmaster.integrations.elasticdl import values
from trainmaster.integrations.elasticdl.flags import BY_NAME
from trainmaster.zoo.flags import ALLREDUCE, BOOL, EVALUATE, PARAMETER_SERVER, SINGLE, STRATEGIES, TRAIN

Words = Mapping[str, Option]  # flag -> its value, of those that were written
_ONE = Option("1", "the one worker", False)


class Request:
    """The words of one command. `is_theirs`: they are an ElasticDL command line. Raises BadInput, naming the flag.

    `is_here`: the job runs on this machine; `in_pods`: in pods; `is_in_image`: programs, models and data are in images and volumes.
    `sizes`: of each role of programs, the option that says its number of tasks.
    """

    def __init__(self, verb: str, words: Words, options: dialect.OwnOptions, is_theirs: bool) -> None:
        self.verb, self.words, self.options, self.is_theirs = verb, words, options, is_theirs
        self.engine, self.draft = options.engine, dialect.Draft()
        self.always = Option("", "ElasticDL's way", False)
        self.is_here = registry.is_on_this_machine(self.engine)
        self.in_pods = registry.engine(self.engine).capabilities.mounts
        self.is_in_image = is_theirs and self.in_pods
        self._check_values()
        self.volumes = values.volumes(words["volume"]) if self.has("volume") else []
        self.is_own_program = self.has("job_command")
        self.strategy = self._strategy()
        workers, self.servers = self._workers(), self._servers()
        has_chief = self.has("chief_resource_request") or self.has("chief_resource_limit")
        sizes = {
            "ps": self.servers if count(self.servers) else None, "chief": _ONE if self.is_own_program and has_chief else None,
            "worker": workers, "evaluator": self.option("num_evaluators") if self.is_own_program and self.count("num_evaluators") else None,
        }  # fmt: skip
        self.sizes = {role: option for role, option in sizes.items() if option is not None}
        self.former: str | None = (
            None  # what servers begin from of `--checkpoint_dir_for_init`; None: nobody has looked
        )
        self.name = dialect.plain(
            self.text("job_name") or self.text("model_def").rpartition(".")[0].rpartition(".")[2], verb
        )
        if self.has("job_name"):
            self.set("name", dialect.job_name(words["job_name"]), words["job_name"])

    @property
    def roles(self) -> list[str]:
        return [*self.sizes]

    # -- words --

    def has(self, name: str) -> bool:
        return name in self.words and bool(self.words[name].text.strip())

    def option(self, name: str) -> Option:
        """Return the value of a flag as it was written, else its default."""
        return self.words.get(name) or Option(BY_NAME[name].default, f"flag --{name}'s default", False)

    def text(self, name: str) -> str:
        return self.option(name).text.strip()

    def count(self, name: str) -> int:
        return count(self.option(name))

    def is_true(self, name: str) -> bool:
        return values.boolean(self.option(name))

    def set(self, path: str | Place, value: Any, *by: Option) -> None:
        """Set a key of the job, made of these options; of none: by ElasticDL's way."""
        self.draft.set_key(path, value, *(by or (self.always,)))

    def remark(self, text: str) -> None:
        self.draft.remark(text)

    def refused(self, name: str, message: str, mend: str) -> BadInput:
        return dialect.wrong(self.option(name), message, mend)

    def _check_values(self) -> None:
        """Refuse values of another form than their flags'. A program's parser would refuse them only where the job runs."""
        for name, option in self.words.items():
            flag = BY_NAME[name]
            if flag.is_number:
                count(option, flag.least)
            elif flag.metavar == BOOL:
                values.boolean(option)
            elif flag.metavar == "DURATION" and option.text.strip():
                try:
                    parse_seconds(option.text)
                except ValueError as error:
                    raise wrong_value(option, f"a duration ({error})") from error
            elif flag.choices and name != "distribution_strategy":
                word = option.text.upper() if name == "log_level" else option.text
                choice(Option(word, option.origin), dict.fromkeys(flag.choices), lower=False)

    # -- how the work is shared --

    def _strategy(self) -> str:
        option = self.option("distribution_strategy")
        # A model that is not trained needs servers only where its tables are too large for a worker.
        is_alone = not option.strong and (self.verb != TRAIN or self.is_own_program) and not self.count("num_ps_pods")
        if is_alone or not option.text.strip():
            return SINGLE
        return str(choice(option, {name: name for name in STRATEGIES}, lower=False))

    def _workers(self) -> Option:
        are_many = self.has("num_workers") and self.count("num_workers") > 1
        if self.verb == EVALUATE:  # metrics are of all data, so one worker has them
            if are_many:
                self.remark("--num_workers: one worker evaluates all data")
            return _ONE
        is_single = self.strategy == SINGLE and self.verb == TRAIN and not self.is_own_program
        if is_single and are_many:
            mend = f"leave it out, or write --distribution_strategy {ALLREDUCE}"
            raise self.refused("num_workers", f"{SINGLE} is one worker", mend)
        return _ONE if is_single else self.option("num_workers")

    def _servers(self) -> Option:
        option = self.option("num_ps_pods")
        if self.strategy != PARAMETER_SERVER:
            if count(option):
                self.remark(f"--num_ps_pods: {self.strategy} has no servers")
            return Option("0", "", False)
        if count(option) or self.is_own_program:
            return option
        if option.strong:
            mend = f"write 1 or more, or --distribution_strategy {SINGLE}"
            raise self.refused("num_ps_pods", f"{PARAMETER_SERVER} needs a server", mend)
        return Option("1", option.origin, False)
