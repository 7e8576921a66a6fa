"""The names of variables that programs read."""


class WorkerEnv:
    MASTER_ADDR = "MASTER_ADDR"
    WORKER_ID = "WORKER_ID"
    WORKER_NUM = "WORKER_NUM"
