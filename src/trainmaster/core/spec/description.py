"""Describe a job for people: its file as understood, without secrets, and where each of its values comes from.

The sources of values are kept beside the job as it is submitted: dotted key -> source (`job.yaml line 7`, `flag --queue`). A section that
was written as a whole has one source, which holds for each value in it. A value without a source is built in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainmaster.core.spec.redaction import is_secret, redact

BUILT_IN = "built-in"

Place = tuple[str, ...]


def description(job: Mapping[str, Any], site: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return what is known of a job from its beginning: {job, sources, engine, user, application, link, place}.

    `job`: as plain data. `site`: the facts that were noted at submit; each may be missing. `place`: the URL of its storage.
    """
    sources = site.get("sources")
    known = {str(key): str(text) for key, text in sources.items()} if isinstance(sources, Mapping) else {}
    keys = [".".join(path) for path, _ in leaves(job)]
    texts = {name: str(site.get(name) or "") for name in ("engine", "user", "application", "link")}
    if not texts["link"].startswith(("http://", "https://")):  # in a storage that others write, it may be anything
        texts["link"] = ""
    return {
        "job": redacted(job),
        "sources": {key: text for key in keys if (text := source(key, known)) != BUILT_IN},
        **texts,
        "place": redact(place),
    }


def shown_event(record: dict[str, Any]) -> dict[str, Any]:
    """Return an event as readers see it: the one that has the whole job has it redacted."""
    return record | {"job": redacted(record["job"])} if isinstance(record.get("job"), Mapping) else record


def redacted(job: Mapping[str, Any]) -> Any:
    """Return a job, as plain data, in which secret values are redacted."""
    return redact(job, secret_values(job))


def secret_values(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values of the secret variables that a job sets."""
    environments = [_mapping(role).get("env") for role in _mapping(job.get("roles")).values()]
    variables = [item for environment in environments for item in _mapping(environment).items()]
    return tuple(value for name, value in variables if isinstance(value, str) and value and is_secret(name))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def source(key: str, sources: Mapping[str, str]) -> str:
    """Return where the value of a dotted key comes from: its own source, or that of the nearest section around it."""
    while key:
        if origin := sources.get(key):
            return origin
        key = key.rpartition(".")[0]
    return BUILT_IN


def sources_of(origins: Mapping[Place, str]) -> dict[str, str]:
    """Return the sources of values, by dotted key. `origins`: by path, those of sections too, whose values have sources of their own."""
    sections = {path[:end] for path in origins for end in range(len(path))}
    return {".".join(path): origin for path, origin in origins.items() if path not in sections}


def leaves(value: Any, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield the values of nested mappings with their paths; an empty mapping is a value."""
    if isinstance(value, Mapping) and value:
        for key, child in value.items():
            yield from leaves(child, (*path, str(key)))
    else:
        yield path, value
