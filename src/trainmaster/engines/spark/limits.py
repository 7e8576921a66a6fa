"""Refuse at submit a request that the application can never grant, with the amounts and the key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trainmaster.core.containers import Request
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.quantities import format_bytes, parse_bytes
from trainmaster.engines.contract import Free

_LEAST_OVERHEAD = 384 * 1024**2  # bytes; as the default part of the heap, of Spark's own defaults
_OVERHEAD = 0.1
_UNITS = {"": "MiB", "b": "B", "k": "KiB", "m": "MiB", "g": "GiB", "t": "TiB"}


def check(
    requests: Sequence[Request], executors: Sequence[Free], conf: Mapping[str, str], chooses_nodes: bool = False
) -> None:
    """Raise BadInput for a request that no executor is large enough for. No executors: Spark may bring some. `chooses_nodes`: the
    application's cluster places executors as the job's roles say.
    """
    limit = memory_limit(conf)
    for request in requests:
        place, key = f"roles.{request.role}", f"roles.{request.role}.resources"
        if not chooses_nodes and (request.nodes.get("labels") or request.nodes.get("exclude")):
            raise BadInput(
                f"{request.role} chooses its nodes, and Spark places tasks by itself", place=f"{place}.nodes",
                mend="leave it out; an application that is started for the job on YARN can choose them", anchor="larger-than-the-cluster",
            )  # fmt: skip
        for name, amount, present in _amounts(request, executors):
            if present and amount > max(present) and not _grows(conf):
                setting = "cores" if name == "cores" else f"resource.{name.removesuffix('s')}.amount"
                raise BadInput(
                    f"{request.role} needs {amount:g} {name}, and no executor has more than {max(present):g}",
                    place=f"{key}.{name}", mend=f"ask for fewer, or set spark.executor.{setting}", anchor="larger-than-the-cluster",
                )  # fmt: skip
        if limit is not None and request.memory > limit and not _grows(conf):
            raise BadInput(
                f"{request.role} needs {format_bytes(request.memory)} beside Spark's heap, and executors have {format_bytes(limit)} there",
                place=f"{key}.memory", mend="ask for less, or set spark.executor.memoryOverhead", anchor="larger-than-the-cluster",
            )  # fmt: skip


def _amounts(request: Request, executors: Sequence[Free]) -> Iterator[tuple[str, float, list[float]]]:
    """Yield what a request asks for: its name, the amount, and that of each executor."""
    yield "cores", request.cores, [node.cores for node in executors]
    yield "gpus", request.gpus, [node.gpus for node in executors]
    for name, count in request.extended.items():
        yield name, count, [node.extended.get(name, 0) for node in executors]


def memory_limit(conf: Mapping[str, str]) -> int | None:
    """Return the bytes that all tasks of an executor may use beside its heap; None where its cluster enforces nothing (standalone)."""
    if not conf.get("spark.master", "").startswith(("yarn", "k8s:")):
        return None
    heap = _bytes(conf.get("spark.executor.memory", "1g"))
    factor = float(conf.get("spark.executor.memoryOverheadFactor", _OVERHEAD))
    overhead = _bytes(conf.get("spark.executor.memoryOverhead", "")) or max(_LEAST_OVERHEAD, round(heap * factor))
    return overhead + _bytes(conf.get("spark.executor.pyspark.memory", ""))


def _grows(conf: Mapping[str, str]) -> bool:
    """Tell whether executors are made as large as what is asked for."""
    return conf.get("spark.dynamicAllocation.enabled", "false") == "true"


def _bytes(size: str) -> int:
    """Read a size as Spark writes it, as `512m`; MiB where it has no unit."""
    digits = size.strip().lower().removesuffix("b").rstrip("kmgt")
    unit = size.strip().lower()[len(digits) :].removesuffix("ib") or ""
    return parse_bytes(f"{digits}{_UNITS[unit[:1]]}") if digits else 0
