"""What the translations of other command lines share: their words, read as their parsers did, and a job said in two layers.

A dialect's own defaults and its site file are weaker than what stands on this machine for all jobs, its flags are stronger:

    dialect's defaults < dialect's site file < our site file < our user file < TRAINMASTER_SET_... < dialect's flags < --set

So each key of the job is said with what it was made of, and goes into the weak or the strong layer. What we do not have is refused by its
name; what needs nothing done is told as a remark. Nothing is dropped.

Errors and warnings about the job name keys of a job file that its user never wrote. They are said in the words of the command line instead:
a key that a flag has said is that flag, any other one is `--set KEY=VALUE`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from trainmaster.client.spec import settings
from trainmaster.client.spec.describe import Described
from trainmaster.client.spec.flags import put
from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.core.spec.job import Input, Job, Output, Role
from trainmaster.engines import registry

Place = tuple[str, ...]
VALUE, FLAG = True, False  # whether an option has a value
OURS = {"dry-run": FLAG, "engine": VALUE, "json": FLAG, "idempotency-key": VALUE, "set": VALUE, "help": FLAG, "h": FLAG}
ENGINE = "yarn"  # of both: what they ran on
# A key of a job file in a text: dotted, or with a value, or with a colon alone behind it (`bare`).
_KEY = re.compile(
    r"(?<![\w./-])(?<!--set )(?P<key>[a-z_]+(?:\.[\w-]+)*)"
    r"(?:: (?P<value>[\w.]+)(?=$|[,;.)]| or | and )|(?P<bare>:)(?=$|[,;)]))?(?![\w-])"
)
_FIELDS: Mapping[type, set[str]] = {
    kind: {field.name.rstrip("_") for field in attrs.fields(kind)} for kind in (Job, Role, Input, Output)
}
_SECTIONS: Mapping[str, type] = {"roles": Role, "inputs": Input, "outputs": Output}
BASED = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)  # a URL


@attrs.frozen(slots=True)
class Said:
    """A value as it was written; `origin` names the place. `strong`: a flag, not a default or a site file."""

    text: str
    origin: str
    strong: bool = True


@attrs.frozen(slots=True)
class Options:
    """What among the words is ours."""

    engine: str
    dry_run: bool = False
    as_json: bool = False
    key: str = ""  # of idempotency
    sets: tuple[Said, ...] = ()
    help: bool = False


@attrs.frozen(slots=True)
class Translation:
    """A job, the job file that says it, and what was said that needs nothing done."""

    described: Described
    file: dict[str, Any]
    options: Options
    remarks: tuple[str, ...] = ()
    stays: bool = False  # until the job's end
    lists_inputs: bool = False  # an input that matches no file is refused at submit, wherever it lies

    def check_inputs(self) -> None:
        """Raise BadInput where the dialect's own client would have refused an input that is not there."""
        from trainmaster.core.spec.job import HADOOP
        from trainmaster.data.sources import list_input

        for entry in self.described.job.inputs.values() if self.lists_inputs else ():
            if not entry.format.startswith(HADOOP):
                list_input(entry)

    def spoken(self, text: str, place: str = "") -> str:
        """Return advice with the keys of a job file as this command line says them. `place`: the key that the advice is about."""
        about = tuple(place.partition(":")[0].split("."))
        return _KEY.sub(lambda match: self._say_key(match, about), text).replace("set --set", "use --set")

    def _say_key(self, match: re.Match[str], about: Place) -> str:
        key, value = tuple(match["key"].split(".")), match["value"]
        is_key = len(key) > 1 or value is not None or match["bare"]  # else a word, which may be one of a text
        if not (is_key and key[0] in _FIELDS[Job]):
            kind = _SECTIONS.get(about[0])
            if kind is None or len(about) < 2 or key[0] not in _FIELDS[kind]:
                return match[0]
            key = (*about[:2], *key)
        if (option := self._flag(key)) and value is None:
            return option if is_key or key == about else match[0]
        if not is_key:
            return match[0]
        if match["bare"]:
            value = "VALUE"
            if len(key) == 1 and getattr(attrs.fields(Job), key[0]).metadata["of"]:
                key = (*key, "KEY")
        return f"--set {'.'.join(key)}" + ("" if value is None else f"={value}")

    def _flag(self, key: Place) -> str:
        """The flag that has said a key, or the section that it is in; "" where none has."""
        origins = self.described.origins
        origin = next(
            (origins[key[:end]] for end in range(len(key), 1, -1) if key[:end] in origins), origins.get(key, "")
        )
        return origin.removeprefix("flag ") if origin.startswith("flag ") else ""

    def retold(self, items: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield what `follow` tells of the job, with what it waits for and the advice of its end in the words of this command line."""
        for item in items:
            if why := item.get("why"):
                item = {**item, "why": self.spoken(why)}
            for kind in {"status", "end"} & item.keys():
                item = {**item, kind: self._spoken_status(item[kind])}
            yield item

    def _spoken_status(self, status: dict[str, Any]) -> dict[str, Any]:
        changes: dict[str, Any] = {"waiting": self.spoken(status["waiting"])} if status.get("waiting") else {}
        reason = status.get("reason") or {}
        if advice := reason.get("advice"):
            role = str(reason.get("task") or "").partition(":")[0]
            changes["reason"] = {**reason, "advice": self.spoken(advice, f"roles.{role}")}
        return {**status, **changes}

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Have what is found wrong with the job said in the words of this command line."""
        try:
            yield
        except TrainmasterError as error:
            key = error.place.partition("   (")[0].partition(":")[0]
            error.mend = self.spoken(error.mend, key)
            if option := self._flag(tuple(key.split("."))):
                error.place = f"flag {option}   ({error.place.partition('   (')[0]})"
            raise


@attrs.frozen(slots=True)
class Verb:
    """Something else than a job to run: help, or what is asked of a job that was submitted (show, kill)."""

    name: str
    job: str = ""


class Draft:
    """A job in the making."""

    def __init__(self) -> None:
        self.weak: settings.Layer = ({}, {})
        self.strong: settings.Layer = ({}, {})
        self.remarks: list[str] = []

    def say(self, path: Place, value: Any, *by: Said) -> None:
        """Set a key, made of the values `by`: it is as strong as the strongest of them, whose origin it has."""
        best = max(by, key=lambda said: said.strong)
        data, origins = self.strong if best.strong else self.weak
        put(data, path, value)  # type: ignore[arg-type]
        origins[path] = best.origin  # type: ignore[index]

    def remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)

    def translation(self, name: str, options: Options, stays: bool, lists_inputs: bool = False) -> Translation:
        """The job, which has this name where nobody gives it another. Raises BadInput as reading a job file would."""
        from trainmaster.client.spec.jobfile import value

        more: settings.Layer = ({}, {})
        for said in options.sets:
            path, mark, text = said.text.partition("=")
            if not mark or not all(place := tuple(path.split("."))):
                raise BadInput(f"--set {said.text!r} has no PATH=", mend="write --set PATH=VALUE", anchor="wrong-value")
            put(more[0], place, value(text, place))  # type: ignore[arg-type]
            more[1][place] = said.origin  # type: ignore[index]
        named: settings.Layer = ({"name": name}, {("name",): "its program"})
        registry.engine(options.engine)  # raises BadInput where there is none
        layers = [named, self.weak, *settings.standing(), self.strong, more]
        job, origins = settings.job(layers)
        file, _ = settings.merged(layers)
        return Translation(
            Described(job, Path.cwd(), origins, options.engine), file, options, tuple(self.remarks), stays, lists_inputs
        )


def parsed(words: Sequence[str], known: Mapping[str, bool], what: str) -> tuple[list[tuple[str, Said]], list[str]]:
    """Options in order, by name, and the words behind them. `known`: name -> VALUE or FLAG.

    As their parsers had it: `--name VALUE`, `--name=VALUE`, also with one dash; and `true` or `false` behind a flag.
    """
    found: list[tuple[str, Said]] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        name, mark, text = word.lstrip("-").partition("=")
        taking = {**known, **OURS}.get(name)
        if taking is None:
            raise unknown(f"--{name}", [f"--{one}" for one in known], what)
        if taking is FLAG:
            given = name not in OURS and rest[:1] in (["true"], ["false"])
            text = text or (rest.pop(0) if given else "true")
        elif not mark:
            if not rest:
                raise BadInput(
                    f"--{name} has no value", place=f"flag --{name}", mend=f"write --{name} VALUE", anchor="wrong-value"
                )
            text = rest.pop(0)
        found.append((name, Said(text, f"flag --{name}")))
    return found, rest[1:] if rest[:1] == ["--"] else rest


def unknown(given: str, known: Sequence[str], what: str) -> BadInput:
    from difflib import get_close_matches

    near = get_close_matches(given, known, 1, 0.6)
    system = "Submarine" if "Submarine" in what else "XLearning"
    pages = f"see tm submit --{system.lower()} --help, and the page Coming from {system}"
    return BadInput(
        f"{what} has no {given}", place=given, mend=f"did you mean {near[0]}?" if near else pages, anchor="dialect"
    )


def not_here(said: Said, what: str, instead: str) -> BadInput:
    """What a dialect has and we do not: named, with what to do instead."""
    return BadInput(
        f"{what} is not to be had here", place=f"{said.text}   ({said.origin})", mend=instead, anchor="dialect"
    )


def wrong(said: Said, expected: str) -> BadInput:
    return BadInput(
        f"{said.text!r} is not what {said.origin} takes",
        place=said.origin,
        mend=f"expected {expected}",
        anchor="wrong-value",
    )


def only(said: Said, known: Mapping[str, Any], lower: bool = True) -> Any:
    """The meaning of a word out of a table."""
    word = said.text.strip()
    if (key := word.lower() if lower else word) not in known:
        raise wrong(said, " or ".join(known))
    return known[key]


def flag(said: Said) -> bool:
    return bool(only(said, {"true": True, "false": False}))


def count(said: Said, least: int = 0) -> int:
    text = said.text.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
        raise wrong(said, f"a whole number, {least} or more")
    return int(text)


def is_on_this_machine(engine: str) -> bool:
    return registry.engine(engine).capabilities.on_this_machine


def location(text: str, engine: str, user: str) -> str:
    """A path as these systems understood it: on the cluster's default file system, unless it says otherwise; on one machine, its own."""
    if text.startswith("hdfs://default/"):
        text = "hdfs:///" + text.removeprefix("hdfs://default/") if not _nameservice("default") else text
    if is_on_this_machine(engine):
        return text.removeprefix("file://")
    if BASED.match(text):
        return text
    return f"hdfs://{text}" if text.startswith("/") else f"hdfs:///user/{user}/{text}"


def _nameservice(name: str) -> bool:
    """Whether the cluster's configuration has a nameservice of this name."""
    from trainmaster.hadoop.conf import load, name_services
    from trainmaster.hadoop.errors import ConfError

    try:
        return name in name_services(load())
    except ConfError:
        return False


def plain(text: str, otherwise: str) -> str:
    """A name of ours near any text."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-_.")[:63] or otherwise


def board(logs: str, engine: str, more: str = "", program: str = "tensorboard") -> str:
    """The command of TensorBoard, to be reached from this machine, or from anywhere in the cluster."""
    import shlex

    host = "--host 127.0.0.1" if is_on_this_machine(engine) else "--bind_all"
    return f'{program} --logdir {shlex.quote(logs)} --port "$TRAINMASTER_PORT_BOARD" {host}{more}'


def ours(found: Sequence[tuple[str, Said]], engine: str) -> Options:
    """What among the options is ours; `engine` where none of them says one."""
    told: dict[str, list[Said]] = {name: [] for name in OURS}
    for name, said in found:
        if name in OURS:
            told[name].append(said)
    last = {name: said[-1].text for name, said in told.items() if said}
    return Options(
        last.get("engine", engine), "dry-run" in last, "json" in last, last.get("idempotency-key", ""), tuple(told["set"]),
        "help" in last or "h" in last,
    )  # fmt: skip


def checked(told: Translation) -> tuple[dict[str, Any], list[str]]:
    """What would be done, as data; and as comments below the job file. Raises BadInput as submitting would; its engine may be asked."""
    from trainmaster.client.submit.preview import lines, preview

    asked = told.described
    told.check_inputs()
    found = preview(asked.job, asked.base, asked.engine)
    more = list(lines(found))
    return found, [f"# {line}" for line in (f"tm run --engine {asked.engine} job.yaml", *more[more.index("") + 1 :])]


def job_file(told: Translation) -> str:
    """The job as one would write it: a fixed number of replicas is a number."""
    import yaml

    roles = {name: dict(role) for name, role in told.file["roles"].items()}
    for role in roles.values():
        sizes = role.get("replicas")
        if isinstance(sizes, Mapping) and len(set(sizes.values())) == 1:
            role["replicas"] = next(iter(sizes.values()))
    text: str = yaml.safe_dump(
        {**told.file, "roles": roles}, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True
    )
    return text


def shown(told: Translation) -> Iterator[str]:
    """The job file that says the same, then what would be asked for: the translation is shown without a cluster too."""
    yield job_file(told).rstrip("\n")
    yield "\n".join(checked(told)[1])


def usage(what: str, calls: Sequence[str], known: Mapping[str, bool]) -> Iterator[str]:
    """How a dialect is called, its flags, and those of ours that may stand among them."""
    for number, call in enumerate(calls):
        yield f"{'       ' if number else 'Usage: '}tm submit --{what.lower()} {call}"
    yield f"What each flag becomes is on the page Coming from {what}."
    for title, options in ((f"Flags of {what}:", known), ("Flags of tm:", OURS)):
        yield from ("", title)
        for name, has_value in options.items():
            value = {"engine": " local|yarn", "set": " PATH=VALUE"}.get(name, " VALUE" if has_value else "")
            yield f"  {'-' if len(name) == 1 else '--'}{name}{value}"
