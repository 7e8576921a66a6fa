"""The shared part of the translations of other command lines: their words, parsed as their own parsers did, and a job in two layers.

A dialect's own defaults and its site file are weaker than this machine's settings for all jobs; its flags are stronger:

    dialect's defaults < dialect's site file < our site file < our user file < TRAINMASTER_SET_... < dialect's flags < --set

So each key of the job is set together with the options that it was made of, and goes into the weak or the strong layer. A feature that we
do not have is refused by its name; an option that needs no action becomes a remark. Nothing is dropped.

Errors and warnings about the job name keys of a job file that its user never wrote. They are translated to the words of the command line:
a key that a flag has set becomes that flag, any other key becomes `--set KEY=VALUE`.
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
from trainmaster.core.nearest import meant
from trainmaster.core.spec.job import Input, Job, Output, Role
from trainmaster.engines import registry

Place = tuple[str, ...]
VALUE, FLAG = True, False  # whether an option has a value
OURS = {"dry-run": FLAG, "engine": VALUE, "json": FLAG, "idempotency-key": VALUE, "set": VALUE, "help": FLAG, "h": FLAG}
ENGINE = "yarn"  # both systems ran on it
# A key of a job file in a text: dotted, or with a value, or followed by a colon alone (`bare`).
_KEY = re.compile(
    r"(?<![\w./-])(?<!--set )(?P<key>[a-z_]+(?:\.[\w-]+)*)"
    r"(?:: (?P<value>[\w.]+)(?=$|[,;.)]| or | and )|(?P<bare>:)(?=$|[,;)]))?(?![\w-])"
)
_OUR_FLAG = re.compile(r" \(--[a-z-]+(?: \w+)?\)")  # of `tm run`, behind its key
_FIELDS: Mapping[type, set[str]] = {
    kind: {field.name.rstrip("_") for field in attrs.fields(kind)} for kind in (Job, Role, Input, Output)
}
_SECTIONS: Mapping[str, type] = {"roles": Role, "inputs": Input, "outputs": Output}
BASED = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)  # a URL


@attrs.frozen(slots=True)
class Option:
    """An option's value as it was written. `origin` names the place. `strong`: a flag, not a default or a site file."""

    text: str
    origin: str
    strong: bool = True


@attrs.frozen(slots=True)
class OwnOptions:
    """Our own options among the words."""

    engine: str
    dry_run: bool = False
    as_json: bool = False
    key: str = ""  # of idempotency
    sets: tuple[Option, ...] = ()
    help: bool = False


@attrs.frozen(slots=True)
class Translation:
    """A job, the job file for it, and remarks on options that need no action."""

    described: Described
    file: dict[str, Any]
    options: OwnOptions
    remarks: tuple[str, ...] = ()
    stays: bool = False  # until the job's end
    lists_inputs: bool = False  # an input that matches no file is refused at submit, wherever it lies

    def check_inputs(self) -> None:
        """Raise BadInput where the dialect's own client would have refused a missing input."""
        from trainmaster.core.spec.job import HADOOP
        from trainmaster.data.sources import list_input

        for entry in self.described.job.inputs.values() if self.lists_inputs else ():
            if not entry.format.startswith(HADOOP):
                list_input(entry)

    def spoken(self, text: str, place: str = "") -> str:
        """Return advice with the keys of a job file in the words of this command line. `place`: the key that the advice is about."""
        about = tuple(place.partition(":")[0].split("."))
        text = _OUR_FLAG.sub("", text)
        return _KEY.sub(lambda match: self._say_key(match, about), text).replace("set --set", "use --set")

    def _say_key(self, match: re.Match[str], about: Place) -> str:
        key, value = tuple(match["key"].split(".")), match["value"]
        is_key = len(key) > 1 or value is not None or match["bare"]  # else a word, which may belong to a text
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
        """Return the flag that has set a key, or the key's section; "" where none has."""
        origins = self.described.origins
        origin = next(
            (origins[key[:end]] for end in range(len(key), 1, -1) if key[:end] in origins), origins.get(key, "")
        )
        return origin.removeprefix("flag ") if origin.startswith("flag ") else ""

    def retold(self, items: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the items that `follow` reports of the job, with its waiting and the advice of its end in this command line's words."""
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
        """Translate errors about the job to the words of this command line."""
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
    """A request other than to run a job: help, or a verb for a submitted job (show, kill)."""

    name: str
    job: str = ""


class Draft:
    """A job under construction."""

    def __init__(self) -> None:
        self.weak: settings.Layer = ({}, {})
        self.strong: settings.Layer = ({}, {})
        self.remarks: list[str] = []

    def set_key(self, path: str | Place, value: Any, *by: Option) -> None:
        """Set a key, made of the options `by`. It has the strength and the origin of the strongest of them.

        `path`: dotted, or a tuple where a part may have a dot in it.
        """
        place = _place(path)
        strongest = max(by, key=lambda option: option.strong)
        data, origins = self.strong if strongest.strong else self.weak
        put(data, place, value)  # type: ignore[arg-type]
        origins[place] = strongest.origin  # type: ignore[index]

    def set_keys(self, section: str | Place, values: Mapping[str, Any], *by: Option) -> None:
        """Set several keys of a section."""
        for key, value in values.items():
            self.set_key((*_place(section), *_place(key)), value, *by)

    def set_texts(self, keys: Mapping[str, Option | None]) -> None:
        """Set keys to what options say as they say it, where they are there."""
        for path, option in keys.items():
            if option is not None:
                self.set_key(path, option.text, option)

    def remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)

    def translation(self, name: str, options: OwnOptions, stays: bool, lists_inputs: bool = False) -> Translation:
        """Return the job, which has this name by default. Raises BadInput as reading a job file would."""
        from trainmaster.client.spec.jobfile import value

        sets: settings.Layer = ({}, {})
        for option in options.sets:
            path, mark, text = option.text.partition("=")
            if not mark or not all(place := tuple(path.split("."))):
                raise BadInput(
                    f"--set {option.text!r} has no PATH=", mend="write --set PATH=VALUE", anchor="wrong-value"
                )
            put(sets[0], place, value(text, place))  # type: ignore[arg-type]
            sets[1][place] = option.origin  # type: ignore[index]
        default: settings.Layer = ({"name": name}, {("name",): "its program"})
        registry.engine(options.engine)  # raises BadInput where there is none
        layers = [default, self.weak, *settings.standing(), self.strong, sets]
        job, origins = settings.job(layers)
        file, _ = settings.merged(layers)
        return Translation(
            Described(job, Path.cwd(), origins, options.engine), file, options, tuple(self.remarks), stays, lists_inputs
        )


def _place(path: str | Place) -> Place:
    return tuple(path.split(".")) if isinstance(path, str) else path


def parsed(words: Sequence[str], known: Mapping[str, bool], subject: str) -> tuple[list[tuple[str, Option]], list[str]]:
    """Return the options in order, with their names, and the words after the last one. `known`: name -> VALUE or FLAG.

    The forms are those of the original parsers: `--name VALUE`, `--name=VALUE`, also with one dash; and `true` or `false` behind a flag.
    """
    options: list[tuple[str, Option]] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        name, mark, text = word.lstrip("-").partition("=")
        kind = {**known, **OURS}.get(name)
        if kind is None:
            raise unknown(f"--{name}", [f"--{flag_name}" for flag_name in known], subject)
        if kind is FLAG:
            has_word = name not in OURS and rest[:1] in (["true"], ["false"])
            text = text or (rest.pop(0) if has_word else "true")
        elif not mark:
            if not rest:
                raise wrong(Option("", f"flag --{name}"), f"--{name} has no value", f"write --{name} VALUE")
            text = rest.pop(0)
        options.append((name, Option(text, f"flag --{name}")))
    return options, rest[1:] if rest[:1] == ["--"] else rest


def unknown(name: str, known: Sequence[str], subject: str) -> BadInput:
    system = "Submarine" if "Submarine" in subject else "XLearning"
    pages = f"see tm submit --{system.lower()} --help, and the page Coming from {system}"
    match = meant(name, known)
    mend = f"did you mean {match}?" if match else pages
    return BadInput(f"{subject} has no {name}", place=name, mend=mend, anchor="dialect")


def unsupported(option: Option, feature: str, instead: str) -> BadInput:
    """Return the error for a feature that a dialect has and we do not, with the alternative."""
    place = f"{option.text}   ({option.origin})"
    return BadInput(f"{feature} is not to be had here", place=place, mend=instead, anchor="dialect")


def wrong(option: Option, message: str, mend: str, anchor: str = "wrong-value") -> BadInput:
    """Return the error for what an option says, with its place."""
    return BadInput(message, place=option.origin, mend=mend, anchor=anchor)


def wrong_value(option: Option, expected: str) -> BadInput:
    return wrong(option, f"{option.text!r} is not what {option.origin} takes", f"expected {expected}")


def job_name(option: Option) -> str:
    """Return a job's name. Raises BadInput where a job of ours cannot have it."""
    if plain(option.text, "") != option.text:
        raise wrong_value(option, f"a name of letters, digits, -, _ and ., like {plain(option.text, 'job')}")
    return option.text


def choice(option: Option, known: Mapping[str, Any], lower: bool = True) -> Any:
    """Return the meaning of an option's word in the table `known`."""
    word = option.text.strip()
    if (key := word.lower() if lower else word) not in known:
        raise wrong_value(option, " or ".join(known))
    return known[key]


def flag(option: Option) -> bool:
    return bool(choice(option, {"true": True, "false": False}))


def count(option: Option, least: int = 0) -> int:
    text = option.text.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
        raise wrong_value(option, f"a whole number, {least} or more")
    return int(text)


def location(text: str, engine: str, user: str) -> str:
    """Return a path as these systems understood it: on the cluster's default file system unless it names another; on one machine, local."""
    if text.startswith("hdfs://default/"):
        text = "hdfs:///" + text.removeprefix("hdfs://default/") if not _nameservice("default") else text
    if registry.is_on_this_machine(engine):
        return text.removeprefix("file://")
    if BASED.match(text):
        return text
    return f"hdfs://{text}" if text.startswith("/") else f"hdfs:///user/{user}/{text}"


def _nameservice(name: str) -> bool:
    """Tell whether the cluster's configuration has a nameservice of this name."""
    from trainmaster.hadoop.conf import load, name_services
    from trainmaster.hadoop.errors import ConfError

    try:
        return name in name_services(load())
    except ConfError:
        return False


def plain(text: str, otherwise: str) -> str:
    """Return a valid name of ours that is close to `text`, else `otherwise`."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-_.")[:63] or otherwise


def own_options(options: Sequence[tuple[str, Option]], engine: str) -> OwnOptions:
    """Return our own options among all; `engine` where none of them names one."""
    last = {name: option.text for name, option in options}
    sets = tuple(option for name, option in options if name == "set")
    key, is_help = last.get("idempotency-key", ""), "help" in last or "h" in last
    return OwnOptions(last.get("engine", engine), "dry-run" in last, "json" in last, key, sets, is_help)


def checked(translation: Translation) -> tuple[dict[str, Any], list[str]]:
    """Return the planned request as data, and as comments for the job file. Raises BadInput as submitting would; may ask the engine."""
    from trainmaster.client.submit.preview import preview, request_lines

    described = translation.described
    translation.check_inputs()
    request = preview(described.job, described.base, described.engine)
    rows = (f"tm run --engine {described.engine} job.yaml", *request_lines(request))
    return request, [f"# {line}" for line in rows]


def job_file(translation: Translation) -> str:
    """Return the job file as a user would write it: a fixed number of replicas is a number."""
    import yaml

    roles = {name: dict(role) for name, role in translation.file["roles"].items()}
    for role in roles.values():
        sizes = role.get("replicas")
        if isinstance(sizes, Mapping) and len(set(sizes.values())) == 1:
            role["replicas"] = next(iter(sizes.values()))
    text: str = yaml.safe_dump(
        {**translation.file, "roles": roles}, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True
    )
    return text


def shown(translation: Translation) -> Iterator[str]:
    """Yield the equivalent job file, then the request for it. The translation is shown even without a cluster."""
    yield job_file(translation).rstrip("\n")
    yield "\n".join(checked(translation)[1])


def usage(system: str, calls: Sequence[str], known: Mapping[str, bool]) -> Iterator[str]:
    """Yield how a dialect is called, its flags, and those of our flags that may stand among them."""
    for number, call in enumerate(calls):
        yield f"{'       ' if number else 'Usage: '}tm submit --{system.lower()} {call}"
    yield f"The page Coming from {system} says what each flag becomes."
    for title, options in ((f"Flags of {system}:", known), ("Flags of tm:", OURS)):
        yield from ("", title)
        for name, has_value in options.items():
            value = {"engine": " local|yarn", "set": " PATH=VALUE"}.get(name, " VALUE" if has_value else "")
            yield f"  {'-' if len(name) == 1 else '--'}{name}{value}"
