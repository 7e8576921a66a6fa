"""The variables that every program has, whatever its framework: one table, from which the reference is made.

Most of them are known when the generation is formed, and are set here. The agent sets the others, which are known only where the program
runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache

import attrs

from trainmaster.core.machine.formation import Formation
from trainmaster.core.plain import Plain
from trainmaster.core.spec.job import variable_name
from trainmaster.core.spec.threads import VARIABLES as THREADS
from trainmaster.frameworks.contract import Placement

LONGEST = 100 * 1024  # bytes of INPUT_FILE_LIST; Linux takes 128 KiB in one variable (execve(2), MAX_ARG_STRLEN)
PEERS_FILE = "peers.json"
FILE_LIST_FILE = "inputFileList.txt"


@attrs.frozen(slots=True, eq=False, repr=False)
class Variable(Plain):
    """A variable as the reference shows it."""

    name: str
    doc: str
    example: str
    agent: bool = False  # set where the program runs


_UNLESS_SET = "unless the job or its submitter sets it"
_OF_CLUSTERS = f"on a cluster, {_UNLESS_SET}"
_OF_PYTORCH = f"on a cluster, and `lo` for several PyTorch programs on one machine, {_UNLESS_SET}"
NETWORK = (
    Variable("GLOO_SOCKET_IFNAME", f"the interface of the task's address; {_OF_PYTORCH}", "eth0", agent=True),
    Variable("TP_SOCKET_IFNAME", f"the same, for PyTorch's RPC; {_OF_PYTORCH}", "eth0", agent=True),
    Variable("NCCL_SOCKET_IFNAME", f"the same, where the job has a `network`; {_OF_CLUSTERS}", "=ib0", agent=True),
    Variable("NCCL_NET", f"`Socket` or `IB`, by `network.transport`; {_OF_CLUSTERS}", "IB", agent=True),
    Variable("NCCL_IB_HCA", f"the device of `network.transport: rdma`; {_OF_CLUSTERS}", "=mlx5_0:1", agent=True),
    Variable(
        "UCX_NET_DEVICES", f"the device or the interface of `network.transport`; {_OF_CLUSTERS}", "mlx5_0:1", agent=True
    ),
)
VARIABLES = (
    Variable("TRAINMASTER_JOB", "the job's id", "digits-k3x7qa"),
    Variable("TRAINMASTER_ROLE", "the task's role", "worker"),
    Variable("TRAINMASTER_INDEX", "the task's index in its role, from 0", "1"),
    Variable("TRAINMASTER_ATTEMPT", "which try of the task this is, from 1", "2"),
    Variable(
        "TRAINMASTER_GENERATION",
        "which formation of the tasks this is, from 1; a change of members makes a new one",
        "3",
    ),
    Variable("TRAINMASTER_RESTARTS", "how often the job restarted its programs so far", "1"),
    Variable("TRAINMASTER_COPY", "which copy of the program in its container this is, from 0 (`processes`)", "0"),
    Variable("TRAINMASTER_COPIES", "how many copies of the program its container runs", "1"),
    Variable("TRAINMASTER_PORT_<NAME>", "a port reserved for this task, of `ports` or of the framework", "23017"),
    Variable(
        "TRAINMASTER_PEERS",
        'a JSON file: role -> a list of {"address", "ports"} by index, of every task of the job that was reached so far',
        "/tmp/trainmaster-1000/.../peers.json",
    ),
    Variable(
        "TRAINMASTER_INPUT_<NAME>",
        "where the input NAME is; for `list` a file with a URL a line",
        "/data/train",
        agent=True,
    ),
    Variable(
        "TRAINMASTER_OUTPUT_<NAME>",
        "where to write the output NAME; what an earlier attempt wrote is not there, unless tasks share the directory",
        "/data/model",
        agent=True,
    ),
    Variable(
        "TRAINMASTER_SOCKET",
        "the agent's socket, which `trainmaster.runtime` speaks to",
        "/tmp/trainmaster-1000/.../1f3a.sock",
        agent=True,
    ),
    Variable(
        "TRAINMASTER_CHECKPOINT",
        "the job's `checkpoint.path`, where `trainmaster.runtime.checkpoint` stores states",
        "/data/ckpt",
        agent=True,
    ),
    Variable(
        "TRAINMASTER_MEMORY",
        "shared memory of the agent's, in which `trainmaster.runtime.checkpoint` keeps states for a killed program's successor; not set in "
        "a job with `checkpoint` and shards",
        "/proc/4711/fd/12:/proc/4711/fd/13:/proc/4711/fd/14",
        agent=True,
    ),
    Variable(
        "TRAINMASTER_MEMORY_LIMIT",
        "the bytes of memory that the task's programs may use together (`resources.memory`); with more they are ended",
        "4294967296",
        agent=True,
    ),
    Variable(
        "INPUT_FILE_LIST",
        f"JSON: input -> the list of its URLs, for inputs `as: list`; above {LONGEST // 1024} KiB it is in the file "
        f"{FILE_LIST_FILE} of the working directory instead",
        '{"train": ["hdfs://data/a.csv"]}',
        agent=True,
    ),
    Variable(
        "TRAINMASTER_ALIAS",
        "set by a job whose program imports ElasticDL's own names: they are on its path, behind our packages",
        "elasticdl",
        agent=True,
    ),
    Variable(
        "PYTHONPATH",
        "one directory more, the last, with our packages for programs alone (`trainmaster.runtime`, `zoo`, `ps`, `elasticdl`)",
        "/tmp/trainmaster-1000/.../digits-k3x7qa/python",
        agent=True,
    ),
    Variable(
        "CUDA_VISIBLE_DEVICES",
        "the GPUs that the container was given, and no other. If it asked for none, it is empty on YARN, and on this machine where "
        "that has GPUs and the submitter has not set it",
        "GPU-5d1f0d2e-...",
        agent=True,
    ),
    *(
        Variable(
            name,
            "how many threads a library uses: the program's share of the cores (`threads`); not set where the job or its submitter "
            f"sets it{f' or {general}' if general else ''}",
            "2",
            agent=True,
        )
        for name, general in THREADS.items()
    ),
    *NETWORK,
    Variable(
        "TORCHELASTIC_ERROR_FILE",
        "where a program that torch's `record` wraps, or torchrun, writes its exception as JSON, which is read for the job's end; not set "
        "where the job sets it",
        "/tmp/trainmaster-1000/.../errors-1-0.json",
        agent=True,
    ),
    Variable("PYTHONUNBUFFERED", "1, so that Python's output is seen at once; not set where the job sets it", "1"),
)


def environment(formation: Formation, task: str) -> Placement:
    """Return the variables of `task` that are known once the generation is formed."""
    me = formation.by_task[task]
    env = {
        "TRAINMASTER_JOB": formation.job,
        "TRAINMASTER_ROLE": me.role,
        "TRAINMASTER_INDEX": str(me.index),
        "TRAINMASTER_ATTEMPT": str(me.attempt),
        "TRAINMASTER_GENERATION": str(formation.generation),
        "TRAINMASTER_RESTARTS": str(formation.restarts),
        "TRAINMASTER_COPIES": str(me.copies),
    }
    env |= {f"TRAINMASTER_PORT_{variable_name(name)}": str(port) for name, port in me.ports.items()}
    return Placement(
        env,
        [{"TRAINMASTER_COPY": str(copy)} for copy in range(me.copies)],
        {PEERS_FILE: peers(formation)},
        {"TRAINMASTER_PEERS": PEERS_FILE},
        {"PYTHONUNBUFFERED": "1"},
    )


@lru_cache(maxsize=1)  # the same bytes for every task of a formation
def peers(formation: Formation) -> bytes:
    """Return the content of the peers' file. An index that has no address is null, so that each place in a list is an index."""
    table: dict[str, list[dict[str, object] | None]] = {}
    for role, members in formation.roles.items():
        table[role] = [None] * (members[-1].index + 1)
        for peer in members:
            table[role][peer.index] = {"address": peer.address, "ports": dict(peer.ports)}
    return json.dumps(table).encode()


def file_list(lists: Mapping[str, Sequence[str]]) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return INPUT_FILE_LIST, or the file that replaces it: (variables, files of the working directory)."""
    if not lists:
        return {}, {}
    text = json.dumps({name: list(urls) for name, urls in lists.items()})
    encoded = text.encode()
    return ({"INPUT_FILE_LIST": text}, {}) if len(encoded) <= LONGEST else ({}, {FILE_LIST_FILE: encoded})
