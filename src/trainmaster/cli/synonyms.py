"""Other systems' names of our commands and options, for whoever types them: unknown name -> what it is called here, or what to do."""

from __future__ import annotations

COMMANDS = {
    **dict.fromkeys(("abort", "cancel", "delete", "end", "stop", "terminate"), "kill"),
    **dict.fromkeys(("history", "jobs", "ls", "ps", "queue"), "list"),
    **dict.fromkeys(("describe", "get", "info", "inspect", "show"), "status"),
    **dict.fromkeys(("check", "lint", "validate"), "run --dry-run"),
    **dict.fromkeys(("exec", "launch", "start"), "run"),
    **dict.fromkeys(("apply", "create"), "submit"),
    **dict.fromkeys(("clean", "gc"), "prune"),
    **dict.fromkeys(("dashboard", "web"), "ui"),
    **dict.fromkeys(("rerun", "restart", "resume"), "retry"),
    "log": "logs", "rm": "remove", "stacks": "dump", "tail": "logs -f", "watch": "attach",
}  # fmt: skip
OF_CLUSTER = {
    **dict.fromkeys(("list", "ls", "nodes", "queues"), "show"),
    **dict.fromkeys(("create", "start"), "up"),
    **dict.fromkeys(("delete", "rm", "stop"), "down"),
    "ps": "status",
}
OPTIONS = {
    **dict.fromkeys(("--nnodes", "--np", "--num-workers", "--worker-num", "--workers"), "-n"),
    "--nproc-per-node": "--processes",
    **dict.fromkeys(("--cpu", "--cpus", "--vcores"), "--cores"),
    **dict.fromkeys(("--mem", "--worker-memory"), "--memory"),
    **dict.fromkeys(("--gpu", "--num-gpus"), "--gpus"),
    **dict.fromkeys(("--conf", "--config", "--param"), "--set"),
    **dict.fromkeys(("--backend", "--master"), "--engine"),
}
_FOUND = "tasks find each other without it"
INSTEAD = {  # torchrun's
    **{
        f"--{'-'.join(words)}": _FOUND
        for words in (("standalone",), ("master", "addr"), ("master", "port"), ("node", "rank"))
    },
    **{f"--rdzv-{word}": _FOUND for word in ("backend", "conf", "endpoint", "id")},
    "-m": "a module runs by: tm run -- python -m MODULE",
    "--module": "a module runs by: tm run -- python -m MODULE",
    "--max-restarts": "say: --set roles.worker.restart.limit=N",
    "--log-dir": "each task's output is kept: tm logs JOB",
}
