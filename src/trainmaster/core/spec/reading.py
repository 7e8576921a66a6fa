"""Read a job from plain data and write it back: `job_from(data, origins)` and `job_to(job)`.

Reading is strict: an unknown key is refused with the nearest name, a value of another shape with the expected shape. Each refusal names the
path and the place it came from (`origins`: path -> "job.yaml line 7", filled in by the loader of the data). The same reader serves files,
Python and flags, and the job as JSON in containers. There a newer minor version may have more keys, which are kept; a higher major version
is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from trainmaster.core.errors import BadInput
from trainmaster.core.foreign import number_in
from trainmaster.core.nearest import meant
from trainmaster.core.spec import job as model
from trainmaster.core.spec.dependencies import cycle
from trainmaster.core.spec.job import GIB, MIB, VERSION, Job, file_name, variable_name
from trainmaster.core.spec.redaction import is_secret
from trainmaster.core.spec.shapes import SHAPES, choice, name
from trainmaster.core.spec.shorthands import BY_NAME, SYNONYMS, by_name, keys_of, spelled
from trainmaster.core.spec.threads import CORES

Path = tuple[str, ...]
Origins = Mapping[Path, str]
_MOST_TASKS = 100_000
OF_SETTINGS = {  # keys that are not of one job but of all: the page Run a job, Settings
    "defaults": "set it for each role; defaults: is a key of your settings, for all jobs",
    "engine": "use --engine NAME; engine: is a key of your settings, for all jobs",
}


def job_from(data: Any, origins: Origins | None = None) -> Job:
    """Return the job that `data` describes. Raises BadInput, naming key, value and place, at the first mistake."""
    return _Reading(origins or {}).job(data)


def check_role(data: Any, origins: Origins, path: Path) -> None:
    """Raise BadInput, as `job_from` does, where `data` at `path` is not keys of a role; `command` may be missing."""
    section = {"command": "true", **data} if isinstance(data, Mapping) else data
    _Reading(origins).section(model.Role, section, path)


def job_to(job: Job) -> dict[str, Any]:
    """Return the job as plain JSON-able data that `job_from` reads as the same job."""
    data: dict[str, Any] = _plain(job)
    for path, value in job.unknown:
        section = data
        for part in path[:-1]:
            section = section.setdefault(part, {})
        section[path[-1]] = value
    return data


def nearest(word: str, known: Any) -> str:
    """Return the hint "did you mean X?", or list the known names."""
    names = sorted(known)
    name = meant(word, names)
    return f"did you mean {name}?" if name else f"there are: {', '.join(names)}" if names else ""


def _plain(value: Any) -> Any:
    """Return a section as data. Values that equal their default are written too, so that a later default changes nothing."""
    data = {}
    for field in attrs.fields(type(value)):
        if not field.metadata or (field.name == "name" and not isinstance(value, Job)):
            continue
        setting = getattr(value, field.name)
        if not (isinstance(setting, str) and not setting):  # an empty text: the key is left out
            data[file_name(field.name)] = _written(field.metadata["shape"], setting)
    return data


def _written(shape: str, value: Any) -> Any:
    if value is None and shape not in ("duration or none", "interval or none"):
        return None
    if shape in BY_NAME:
        return {key: _plain(section) for key, section in value.items()}
    if attrs.has(type(value)):
        return _plain(value)
    return SHAPES[shape][1](value) if shape in SHAPES else value


class _Reading:
    """One reading of a job; `_origins` says where each value came from."""

    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self._unknown: list[tuple[Path, Any]] = []
        self._newer = False
        self._data: Mapping[str, Any] = {}

    def job(self, data: Any) -> Job:
        if not isinstance(data, Mapping):
            raise self.wrong((), data, "expected a job: keys like name, framework and roles", "job-shape")
        self._check_version(data.get("version", VERSION))
        self._data = data
        values = self.section(Job, data, ())
        job = Job(**values, unknown=tuple(sorted(self._unknown, key=lambda path_and_value: path_and_value[0])))
        job = _derived(job, data)
        self._check(job)
        return job

    def _check_version(self, version: Any) -> None:
        first, _, second = str(version).partition(".")
        major, minor = number_in(first), number_in(second or "0")
        ours, our_minor = map(int, VERSION.split("."))
        if major is None or minor is None:
            raise self.wrong(("version",), version, "expected a version like 1.0", "job-shape")
        if major > ours:
            message = f"this job is of version {version}, and this Trainmaster reads {ours}.x"
            raise self.refused(("version",), version, message, "use a newer Trainmaster", "job-version")
        self._newer = (major, minor) > (ours, our_minor)

    # -- sections --

    def section(self, of: type[Any], data: Any, path: Path) -> dict[str, Any]:
        """Read the attributes of a section; missing keys are left to their defaults."""
        if not isinstance(data, Mapping):
            raise self.wrong(path, data, f"expected keys like {', '.join(list(keys_of(of))[:3])}", "job-shape")
        known = keys_of(of)
        values = {}
        for key, value in data.items():
            field = known.get(str(key))
            if field is None:
                self._not_known(path, str(key), value, known)
                continue
            if value is None and field.default is not attrs.NOTHING and field.metadata["of"] is not None:
                continue  # an empty section
            values[field.name] = self.value(field, value, (*path, str(key)))
        for key, field in known.items():
            if field.default is attrs.NOTHING and field.name not in values:
                message = f"{'.'.join((*path, key))} is missing: {field.metadata['doc']}"
                raise self.refused(path, None, message, self._misspelt(path) or f"add {key}:", "missing-key")
        return values

    def _misspelt(self, path: Path) -> str:
        """Suggest the section that one without its required keys was meant to be: a neighbour with a similar name."""
        others = [str(name) for name in self._section(*path[:-1]) or () if path and name != path[-1]]
        name = meant(path[-1], others) if path else ""
        return f"did you mean {'.'.join((*path[:-1], name))}?" if name else ""

    def _not_known(self, path: Path, key: str, value: Any, known: Mapping[str, Any]) -> None:
        if self._newer:
            self._unknown.append(((*path, key), value))
            return
        where = f" in {'.'.join(path)}" if path else ""
        value = None if key and is_secret(key) else value
        name = SYNONYMS.get(key.lower().replace("-", "_"), "")
        mend = f"did you mean {name}?" if name.partition(".")[0] in known else nearest(key, known)
        mend = OF_SETTINGS.get(key, mend) if not path else mend
        raise self.refused((*path, key), value, f"there is no key {key!r}{where}", mend, "unknown-key")

    def value(self, field: Any, value: Any, path: Path) -> Any:
        shape, of = field.metadata["shape"], field.metadata["of"]
        if shape in BY_NAME:
            return self._by_name(shape, of, value, path)
        if of is not None:
            return of(**self.section(of, self._spelled(shape, of, value, path), path))
        read = choice(shape) or SHAPES[shape][0]
        try:
            return read(value)
        except ValueError as error:
            raise self.wrong(path, value, str(error)) from None

    def _spelled(self, shape: str, of: type[Any], value: Any, path: Path) -> Any:
        try:
            return spelled(shape, of, value)
        except ValueError as error:
            raise self.wrong(path, None if shape == "secrets" else value, str(error)) from None

    def _by_name(self, shape: str, of: type[Any], value: Any, path: Path) -> dict[str, Any]:
        value = by_name(shape, value)
        if not isinstance(value, Mapping):
            raise self.wrong(path, value, "expected a section for each name", "job-shape")
        sections = {}
        for key, section in value.items():
            section_path = (*path, str(key))
            try:
                named = str(key) if shape == "links" else name(key)
            except ValueError as error:
                raise self.refused(
                    section_path, None, f"{key!r} cannot be a name: {error}", _plain_name(str(key)), "odd-name"
                ) from None
            attributes = self.section(of, self._spelled(shape, of, section, section_path), section_path)
            has_name = any(field.name == "name" for field in attrs.fields(of))
            sections[named] = of(**({"name": named} if has_name else {}), **attributes)
        return sections

    # -- checks that need the whole job --

    def _check(self, job: Job) -> None:
        if not job.roles:
            raise self.refused(("roles",), None, "the job has no role", "add roles: with at least one", "missing-key")
        self._check_roles(job)
        self._check_data(job)
        for role in job.roles.values():
            self._check_paths(job, role.name)
            self._check_streams(job, role)
        for label, link in job.links.items():
            self._check_link(job, ("links", label), link)
        self._check_completion(job)

    def _check_completion(self, job: Job) -> None:
        at, rule = ("completion",), job.completion
        if rule.first and rule.failures is not None:
            raise self.refused(at, None, "completion has both first and failures", "choose one of them", "wrong-value")
        if rule.first:
            self._known((*at, "first"), rule.first, job.roles, "role")
        if not any(role.counts for role in job.roles.values()):
            raise self.refused(
                ("roles",),
                None,
                "no role counts, so the job would never end",
                "set counts: true for one",
                "nothing-counts",
            )

    def _check_link(self, job: Job, at: Path, link: Any) -> None:
        self._known(at, link.role, job.roles, "role")
        self._task(at, f"{link.role}:{link.index}", job)
        ports = job.roles[link.role].ports
        if link.port not in ports:
            mend = nearest(link.port, ports) or f"add roles.{link.role}.ports: [{link.port}]"
            raise self.refused(at, link.port, f"role {link.role} has no port {link.port!r}", mend, "wrong-value")

    def _check_paths(self, job: Job, role: str) -> None:
        """Refuse two inputs, outputs or ports of one role that share a path of its working directory or a variable."""
        kinds = (
            ("inputs", [source for source in model.uses(job, role) if source.as_ in ("download", "mount", "follow")]),
            ("outputs", [output for output in model.writes(job, role) if output.as_ == "upload"]),
        )
        ports: dict[str, str] = {}
        for port in job.roles[role].ports:
            if (other := ports.setdefault(variable_name(port), port)) != port:
                message = f"ports {other} and {port} of role {role} are both TRAINMASTER_PORT_{variable_name(port)}"
                raise self.refused(
                    ("roles", role, "ports"), None, message, "give one of them another name", "equal-names"
                )
        paths: dict[str, str] = {}
        for kind, transfers in kinds:
            variables: dict[str, str] = {}
            for transfer in transfers:
                for table, label in (
                    (paths, f"./{transfer.local or transfer.name}"),
                    (variables, variable_name(transfer.name)),
                ):
                    other = table.setdefault(label, f"{kind}.{transfer.name}")
                    if other != f"{kind}.{transfer.name}":
                        message = f"{other} and {kind}.{transfer.name} are both {label} for role {role}"
                        mend = "set local: for one of them" if table is paths else "give one of them another name"
                        raise self.refused((kind, transfer.name), None, message, mend, "equal-names")

    def _check_streams(self, job: Job, role: Any) -> None:
        """Refuse a second stream each way: a program has one standard input and output, and its copies would have to share them."""
        input_streams = [("inputs", source.name) for source in model.uses(job, role.name) if source.as_ == "stream"]
        writers = {output.name: output.from_ for output in model.writes(job, role.name) if output.as_ == "stream"}
        apart = len(set(writers.values())) == len(writers) and all(":" in writer for writer in writers.values())
        output_streams = [("outputs", name) for name in writers][: 1 if apart else None]
        for streams in (input_streams, output_streams):
            if len(streams) > 1:
                message = (
                    f"role {role.name} has two streams: {' and '.join('.'.join(stream) for stream in streams[:2])}"
                )
                raise self.refused(streams[1], None, message, "use another as: for one of them", "two-streams")
            if streams and role.processes != 1:
                message = f"{'.'.join(streams[0])} is a stream, and role {role.name} runs {role.processes} processes in each container"
                mend = "set processes: 1, with more replicas; or another as: for it"
                raise self.refused(("roles", role.name, "processes"), role.processes, message, mend, "two-streams")

    def _check_roles(self, job: Job) -> None:
        for role in job.roles.values():
            at = ("roles", role.name)
            if role.replicas.min > role.replicas.max:
                both = f"{role.replicas.min} to {role.replicas.max}"
                raise self.refused(
                    (*at, "replicas"), both, "replicas.min is above replicas.max", "swap them", "job-shape"
                )
            start = role.replicas.start
            if start and not role.replicas.min <= start <= role.replicas.max:
                message = f"replicas.start is not between replicas.min, {role.replicas.min}, and replicas.max, {role.replicas.max}"
                raise self.refused((*at, "replicas", "start"), start, message, "choose one of these", "job-shape")
            if not role.counts and not role.serves and role.restart.scope == "group":
                message = f"role {role.name} neither counts nor serves, so the group would wait for it for ever"
                raise self.refused(
                    (*at, "restart", "scope"), "group", message, "set scope: task, or counts: true", "job-shape"
                )
            if role.feed and role.processes != 1:
                message = f"role {role.name} has a feed, and runs {role.processes} processes in each container, which would share it"
                raise self.refused(
                    (*at, "processes"), role.processes, message, "set processes: 1, with more replicas", "wrong-value"
                )
            for feed_name, feed in role.feed.items():
                owner = job.roles.get(feed.share) if feed.share else None
                if feed.share and (owner is None or feed_name not in owner.feed or owner.feed[feed_name].share):
                    message = f"role {feed.share} has no feed {feed_name} of its own that {role.name} could share"
                    mend = "name a role that has it, and shares none itself"
                    raise self.refused((*at, "feed", feed_name, "share"), feed.share, message, mend, "wrong-value")
            for other in role.after:
                self._known((*at, "after", other), other, job.roles, "role")
        if job.tasks > _MOST_TASKS:
            message = f"the job has {job.tasks:,} tasks, and at most {_MOST_TASKS:,} are possible"
            most = max(job.roles.values(), key=lambda role: role.replicas.max)
            raise self.refused(("roles", most.name, "replicas"), most.replicas.max, message, "lower it", "wrong-value")
        if circle := cycle({role.name: role.after for role in job.roles.values()}):
            message = f"these roles wait for each other: {' -> '.join(circle)}"
            raise self.refused(
                ("roles", circle[0], "after"), None, message, "take one of them out of after:", "role-cycle"
            )

    def _check_data(self, job: Job) -> None:
        for source in job.inputs.values():
            for role in source.to:
                self._known(("inputs", source.name, "to"), role, job.roles, "role")
            is_in_place = source.as_ in ("mount", "follow")
            if len(source.urls) > 1 and (
                is_in_place or any("?table=" in url or url.startswith("records:") for url in source.urls)
            ):
                at, kind = (
                    ("inputs", source.name, "url"),
                    f"an input as: {source.as_}" if is_in_place else "an input without files",
                )
                raise self.refused(at, None, f"{kind} has one URL", "make an input of each", "wrong-value")
            readers = [role for role in job.roles.values() if source in model.uses(job, role.name)]
            elastic = next((role for role in readers if role.replicas.elastic), None)
            has_split = "split" in (self._section("inputs", source.name) or {})
            if elastic is not None and source.as_ in model.STATIC_INPUTS and not has_split:
                message = f"role {elastic.name} may change its size, so how input {source.name} is divided must be said"
                mend = "split: again divides it anew each time, split: whole gives all to every task"
                raise self.refused(("inputs", source.name), None, message, mend, "elastic-split")
            shared = [role for role in readers if role.workdir == model.SHARED]
            if shared and source.as_ == "follow":
                message = f"input {source.name} is kept up to date at a path of the submitter's own directory"
                raise self.refused(
                    ("roles", shared[0].name, "workdir"), model.SHARED, message, "set workdir: copy", "equal-names"
                )
            if source.as_ == "download" and sum(role.replicas.max for role in shared) > 1:
                message = f"several tasks would put input {source.name} at one path of the directory that they share"
                mend = "set workdir: copy; or as: list or mount for the input"
                raise self.refused(("roles", shared[0].name, "workdir"), model.SHARED, message, mend, "equal-names")
        for output in job.outputs.values():
            if output.from_:
                at = ("outputs", output.name, "from")
                self._known(at, output.from_.partition(":")[0], job.roles, "role")
                self._task(at, output.from_, job)

    def _task(self, path: Path, task: str, job: Job) -> None:
        named, mark, index = task.partition(":")
        role = job.roles[named]
        if mark and not ((number := number_in(index)) is not None and number < role.replicas.max):
            most = role.replicas.max - 1
            mend = f"its tasks are {named}:0 to {named}:{most}" if most else f"its one task is {named}:0"
            raise self.refused(path, task, f"there is no task {task!r}", mend, "no-such-task")

    def _section(self, *path: str) -> Mapping[str, Any] | None:
        section: Any = self._data
        for part in path:
            section = section.get(part) if isinstance(section, Mapping) else None
        return section if isinstance(section, Mapping) else None

    def _known(self, path: Path, name: str, known: Any, noun: str) -> None:
        if name not in known:
            raise self.refused(
                path,
                None if path[-1] == name else name,
                f"there is no {noun} {name!r}",
                nearest(name, known),
                f"unknown-{noun}",
            )

    # -- errors --

    def wrong(self, path: Path, value: Any, why: str, anchor: str = "wrong-value") -> BadInput:
        return self.refused(path, value, f"{'.'.join(path) or 'the job'}: {why}", "", anchor)

    def refused(self, path: Path, value: Any, message: str, mend: str, anchor: str) -> BadInput:
        return BadInput(message, place=self.place(path, value), mend=mend, anchor=anchor)

    def place(self, path: Path, value: Any) -> str:
        """Return the line of a message that names the key, like `roles.worker.resources.memory: 12GiB   (job.yaml line 7)`."""
        short = "" if value is None or isinstance(value, Mapping) else f": {_shown(value)}"
        origin = self._origins.get(path) or self._origin_near(path)
        return f"{'.'.join(path)}{short}" + (f"   ({origin})" if origin else "") if path or origin else ""

    def _origin_near(self, path: Path) -> str:
        """Return the origin of a value inside the section, or else of the nearest section around it."""
        below = next((origin for at, origin in self._origins.items() if at[: len(path)] == path), "") if path else ""
        return below or next(
            (self._origins[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self._origins), ""
        )


def _plain_name(text: str) -> str:
    """Suggest a valid name that is close to `text`; "" where there is none."""
    plain = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "_.") else "-" for letter in text
    ).strip("-_.")
    return f"write {plain[:63]}, for example" if plain else ""


def _shown(value: Any) -> str:
    """Return a value as a job file writes it, cut where it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    text = f"[{', '.join(str(element) for element in value)}]" if isinstance(value, list | tuple) else str(value)
    text = " ".join(text.split()) or '""'
    return text if len(text) <= 60 else f"{text[:57]}..."


def _derived(job: Job, data: Mapping[str, Any]) -> Job:
    """Return the job with the defaults that depend on other keys filled in, where `data` does not set them."""
    roles_data = data.get("roles") or {}
    roles = {key: _derived_role(job, role, roles_data.get(key) or {}) for key, role in job.roles.items()}
    master = data.get("master") or {}
    resources = _with_overhead(job.master.resources, master.get("resources"))
    job = attrs.evolve(job, roles=roles, master=attrs.evolve(job.master, resources=resources))
    if "gang" not in data:
        together = job.framework in model.COLLECTIVE or (job.framework == "tensorflow" and job.tasks > 1)
        job = attrs.evolve(job, gang=together)
    return job


def _with_overhead(resources: model.Resources, data: Any) -> model.Resources:
    if isinstance(data, Mapping) and "overhead" in data:
        return resources
    return attrs.evolve(resources, overhead=min(GIB, max(64 * MIB, resources.program_memory // 20)))


def _derived_role(job: Job, role: Any, data: Mapping[str, Any]) -> Any:
    restart, resources, replicas = data.get("restart"), data.get("resources"), data.get("replicas")
    if "counts" not in data:
        role = attrs.evolve(role, counts=role.name not in model.NOT_COUNTING)
    if not (isinstance(restart, Mapping) and "total" in restart):
        role = attrs.evolve(role, restart=attrs.evolve(role.restart, total=max(role.restart.total, role.restart.limit)))
    if not (isinstance(restart, str) or (isinstance(restart, Mapping) and "scope" in restart)):
        # Tasks that share a checkpoint go back to it together: shards that any of them has done since are leased again.
        together = job.checkpoint is not None and any(source.as_ == "shards" for source in model.uses(job, role.name))
        scope = "group" if role.counts and (job.framework in model.COLLECTIVE or together) else "task"
        role = attrs.evolve(role, restart=attrs.evolve(role.restart, scope=scope))
    role = attrs.evolve(role, resources=_with_overhead(role.resources, resources))
    if "threads" not in data and isinstance(resources, Mapping) and "cores" in resources:
        role = attrs.evolve(role, threads=CORES)
    if isinstance(replicas, Mapping) and "max" not in replicas:
        role = attrs.evolve(role, replicas=attrs.evolve(role.replicas, max=role.replicas.min))
    if "workdir" not in data:
        interim = attrs.evolve(job, roles={**job.roles, role.name: role})
        own = any(source.as_ in ("download", "follow") for source in model.uses(interim, role.name)) or model.writes(
            interim, role.name
        )
        copied = bool(own) or (job.checkpoint is not None and (role.counts or role.serves))
        role = attrs.evolve(role, workdir=model.COPIED if copied else model.SHARED)
    return role
