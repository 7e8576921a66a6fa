"""ElasticDL's flags for a job: those that its workers take too (`zoo.flags`), and those of the job itself.

Facts: elasticdl_client/common/args.py of sql-machine-learning/elasticdl, at its end and in August 2021, when it had most flags. The table
needs no click: the command line makes its options from it.
"""

from __future__ import annotations

from trainmaster.zoo import flags as worker
from trainmaster.zoo.flags import BOOL, COUNT, JOB, PARAMETER_SERVER, RESULTS, TRAIN, Flag

ALL = worker.TASKS
FILE, RESOURCES = "FILE", "cpu=1,memory=4096Mi,gpu=1"
CONTAINERS = "Containers"  # a section of the help
SILENT = (
    ""  # no section: flags that change nothing here. Their texts say why; those without one say something after all.
)
ROLES = ("master", "worker", "ps", "chief", "evaluator")
_TRAIN = (TRAIN,)
_BY_STEPS = "--evaluation_steps says when the model is evaluated"

FLAGS = (
    *(flag._replace(default=PARAMETER_SERVER) if flag.name == "distribution_strategy" else flag for flag in worker.FLAGS),
    Flag("dataset_fn", "NAME", "", worker.MODEL, "an older name of --feed"),
    Flag("tensorboard_log_dir", "URL", "", RESULTS, "event files for TensorBoard to show", _TRAIN),
    Flag("job_name", "NAME", "", JOB, "the job's name; default: the model's"),
    Flag("num_workers", COUNT, "2", JOB, "workers, at most; Local has one", least=1),
    Flag("num_evaluators", COUNT, "0", JOB, "evaluators of --job_command", _TRAIN),
    Flag("job_command", "COMMAND", "", JOB, "a program of yours in the place of the model's", _TRAIN),
    Flag("need_tf_config", BOOL, "false", JOB, "whether programs get TF_CONFIG", _TRAIN),
    Flag("relaunch_on_worker_failure", COUNT, "1", JOB, "restarts of a worker without progress", _TRAIN),
    Flag("ps_relaunch_max_num", COUNT, "1", JOB, "restarts of each server", _TRAIN),
    Flag("launch_worker_after_ps_running", "default|on|off", "default", JOB, "whether workers of --job_command wait for servers", _TRAIN),
    Flag("envs", "K=V,K=V", "", JOB, "variables of the programs"),
    Flag("populate_env_names", "PATTERN", "", JOB, "variables of yours that the programs get"),
    Flag("aux_params", "K=V;K=V", "", JOB, "disable_relaunch=true: nothing restarts"),
    Flag("yaml", FILE, "", JOB, "write the job file there, for Kubernetes the objects, and start nothing"),
    Flag("image_name", "IMAGE", "", CONTAINERS, "the image of all containers"),
    Flag("worker_image", "IMAGE", "", CONTAINERS, "the workers' image"),
    Flag("ps_image", "IMAGE", "", CONTAINERS, "the servers' image"),
    *(
        Flag(f"{role}_{name}", metavar, "cpu=0.1,memory=1024Mi" if default and role == "master" else default, CONTAINERS, doc.format(role))
        for name, metavar, default, doc in (
            ("resource_request", RESOURCES, "cpu=1,memory=4096Mi", "what each {} asks for"),
            ("resource_limit", RESOURCES, "", "the most that each {} may use; default: what it asks for"),
            ("pod_priority", "CLASS or FRACTION", "", "the priority class of each {}; on Kubernetes"),
        )
        for role in ROLES
    ),
    Flag("volume", "K=V,K=V;...", "", CONTAINERS, "host_path=H,mount_path=M or claim_name=C,mount_path=M; on Kubernetes"),
    Flag("image_pull_policy", "Always|IfNotPresent|Never", "Always", CONTAINERS, "on Kubernetes"),
    Flag("namespace", "NAME", "", CONTAINERS, "on Kubernetes; default: the kubeconfig's"),
    Flag("cluster_spec_json", "JSON", "", CONTAINERS, "labels, annotations, tolerations, affinity and env of pods; on Kubernetes"),
    Flag("cluster_spec", FILE, "", SILENT, ""),
    Flag("need_task_manager", BOOL, "true", SILENT, "", _TRAIN),
    Flag("need_pod_manager", BOOL, "true", SILENT, "", _TRAIN),
    Flag("restart_policy", "Never|OnFailure|Always", "Never", SILENT,
         "Kubernetes restarts no pod in place; tasks restart by --relaunch_on_worker_failure"),
    Flag("extra_pypi_index", "URL", "", SILENT, "packages come with the image, or from environment.requirements"),
    Flag("force_use_kube_config_file", BOOL, "false", SILENT, "the kubeconfig is found as kubectl finds it"),
    Flag("log_file_path", FILE, "", SILENT, "tm logs JOB shows the output, and keeps it"),
    Flag("need_elasticdl_job_service", BOOL, "false", SILENT, "a model file is run unless --job_command names a program", _TRAIN),
    Flag("task_fault_tolerance", BOOL, "true", SILENT, "a lost shard is always given out again", _TRAIN),
    Flag("relaunch_timeout_worker", BOOL, "false", SILENT, "a worker that hangs is started again after timeouts.stall", _TRAIN),
    Flag("ps_is_critical", BOOL, "true", SILENT, "a job always fails with a server that cannot be started again", _TRAIN),
    Flag("critical_worker_index", "TEXT", "default", SILENT, "a job fails with any task that cannot be started again", _TRAIN),
    Flag("enable_automate_memory", BOOL, "true", SILENT, "roles.worker.retry_memory gives more memory after out-of-memory", _TRAIN),
    Flag("use_go_ps", BOOL, "true", SILENT, "the servers are ours", _TRAIN),
    Flag("custom_training_loop", BOOL, "false", SILENT, "the loop is ours, or a program's by --job_command", _TRAIN),
    Flag("evaluation_start_delay_secs", COUNT, "100", SILENT, _BY_STEPS, _TRAIN),
    Flag("evaluation_throttle_secs", COUNT, "0", SILENT, _BY_STEPS, _TRAIN),
)  # fmt: skip
BY_NAME = {flag.name: flag for flag in FLAGS}
# Flags that the worker's program is given as they were written. The job itself says the other three.
TO_WORKER = {"dataset_fn", *(flag.name for flag in worker.FLAGS)} - {"checkpoint_dir", "output", "num_ps_pods"}


def of(verb: str) -> list[Flag]:
    """Return the flags of a command."""
    return [flag for flag in FLAGS if verb in flag.verbs]


def abbreviated(name: str, flags: list[str]) -> str:
    """Return the one name that begins with `name`, as ElasticDL's parser took it; else `name` itself."""
    names = [flag for flag in flags if flag.startswith(name)]
    return names[0] if name not in flags and len(names) == 1 else name
