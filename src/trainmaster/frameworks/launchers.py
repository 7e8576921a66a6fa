"""The variables that launchers set for their own programs. They are not part of the environment of whoever submits a job.

`tm` may itself run under torchrun, mpirun or srun, or in a task of another job. A program of the new job that read the outer launcher's
rank, addresses or files would take part in the outer group, or wait for it. So submit takes these variables out; the frameworks set them
anew where the new job has them. A role's `env` passes one on: `env: {RANK: }`.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

OURS = "Trainmaster"
# Launcher -> the names of its variables, or patterns of them. ROLE_NAME and INDEX, which are set too, are as likely a user's own.
VARIABLES: Mapping[str, tuple[str, ...]] = {
    # torch/distributed/elastic/agent/server/local_elastic_agent.py; INIT_METHOD is of other launchers of PyTorch programs
    "torchrun": (
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE",
        "MASTER_ADDR", "MASTER_PORT", "INIT_METHOD", "TORCHELASTIC_*",
    ),
    "TensorFlow's cluster": ("TF_CONFIG", "TF_CLUSTER_DEF", "TF_ROLE", "TF_INDEX"),
    "mpirun": (
        "OMPI_COMM_WORLD_*", "OMPI_UNIVERSE_SIZE", "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_*", "PMI_*", "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS", "MV2_COMM_WORLD_*",
    ),
    "srun": ("SLURM_PROCID", "SLURM_LOCALID"),
    # horovod/runner/gloo_run.py; other HOROVOD_* are settings of users
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_*", "HOROVOD_CROSS_*", "HOROVOD_GLOO_*", "HOROVOD_HOSTNAME"),
    "dmlc-submit": ("DMLC_ROLE", "DMLC_TASK_ID", "DMLC_NUM_*", "DMLC_TRACKER_*", "DMLC_PS_ROOT_*"),
    "other launchers": ("JAX_PROCESS_ID", "NODE_RANK"),
    OURS: (
        "TRAINMASTER_JOB", "TRAINMASTER_ROLE", "TRAINMASTER_INDEX", "TRAINMASTER_ATTEMPT", "TRAINMASTER_GENERATION",
        "TRAINMASTER_RESTARTS", "TRAINMASTER_COPY", "TRAINMASTER_COPIES", "TRAINMASTER_PORT_*", "TRAINMASTER_PEERS",
        "TRAINMASTER_INPUT_*", "TRAINMASTER_OUTPUT_*", "TRAINMASTER_FEED_*", "TRAINMASTER_SOCKET", "TRAINMASTER_CHECKPOINT",
        "TRAINMASTER_MEMORY", "TRAINMASTER_MEMORY_LIMIT", "TRAINMASTER_ALIAS", "INPUT_FILE_LIST",
    ),
}  # fmt: skip


def set_by_launchers(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Return launcher -> the variables of it that are in `environ`, for each launcher that has any there."""
    by_launcher = {
        launcher: sorted(name for name in environ if any(fnmatchcase(name, pattern) for pattern in patterns))
        for launcher, patterns in VARIABLES.items()
    }
    if by_launcher[OURS]:  # the frameworks of that outer job have set names of other launchers
        by_launcher = {OURS: sorted(name for names in by_launcher.values() for name in names)}
    return {launcher: names for launcher, names in by_launcher.items() if names}


def without_launchers(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the variables of outer launchers."""
    theirs = {name for names in set_by_launchers(environ).values() for name in names}
    return {name: value for name, value in environ.items() if name not in theirs}
