"""ElasticDL's flags, as a table: each flag's value, its default, its meaning here, and the commands that have it.

Facts: elasticdl_client/common/args.py of sql-machine-learning/elasticdl, at its end and in August 2021, when it had most flags. The table
needs nothing of ours and no click: the command line makes its options from it.
"""

from __future__ import annotations

from typing import NamedTuple

TRAIN, EVALUATE, PREDICT = "train", "evaluate", "predict"
ALL = (TRAIN, EVALUATE, PREDICT)
ALONE, SERVERS, ALLREDUCE = "Local", "ParameterServerStrategy", "AllreduceStrategy"
# How a value is written, as the help shows it.
TEXT, COUNT, BOOL, FILE, RESOURCES = "TEXT", "N", "[true|false]", "FILE", "cpu=1,memory=4096Mi,gpu=1"
# Sections of the help, in their order.
MODEL, DATA, TRAINING, RESULTS, JOB, CONTAINERS = (
    "Model",
    "Data",
    "Training",
    "Checkpoints and results",
    "Job",
    "Containers",
)
SILENT = ""  # of no section: a flag that changes nothing here


class Flag(NamedTuple):
    """One flag. `verbs`: the commands that have it. `to_worker`: the worker's program is given it as it was written."""

    name: str
    metavar: str
    default: str
    section: str
    doc: str
    verbs: tuple[str, ...] = ALL
    to_worker: bool = False


_TRAIN, _EVALUATES = (TRAIN,), (TRAIN, EVALUATE)
ROLES = ("master", "worker", "ps", "chief", "evaluator")
_REQUESTS = {"master": "cpu=0.1,memory=1024Mi"}
REQUEST = "cpu=1,memory=4096Mi"  # the default of every role but the master

FLAGS = (
    Flag("model_zoo", "DIR", "", MODEL, "the directory of model files; it is sent with the job", to_worker=True),
    Flag("model_def", "DIR.MODULE.NAME", "", MODEL, "the model's function or class in a file of the zoo", to_worker=True),
    Flag("model_params", "K=V;K=V", "", MODEL, "arguments of the model's function", to_worker=True),
    Flag("loss", "NAME", "loss", MODEL, "the loss function in the model file", _TRAIN, True),
    Flag("optimizer", "NAME", "optimizer", MODEL, "the function that makes the optimizer", _TRAIN, True),
    Flag("feed", "NAME", "feed", MODEL, "the function that makes batches of records", to_worker=True),
    Flag("dataset_fn", "NAME", "", MODEL, "an older name of --feed", to_worker=True),
    Flag("eval_metrics_fn", "NAME", "eval_metrics_fn", MODEL, "the function that gives the metrics", _EVALUATES, True),
    Flag("callbacks", "NAME", "callbacks", MODEL, "the function that gives callbacks", _TRAIN, True),
    Flag("custom_data_reader", "NAME", "custom_data_reader", MODEL, "the function that makes a reader", to_worker=True),
    Flag("prediction_outputs_processor", "NAME", "PredictionOutputsProcessor", MODEL, "the class that is given each prediction",
         (PREDICT,), True),
    Flag("training_data", "URL", "", DATA, "what is trained on: a path, a pattern or a URL", _TRAIN, True),
    Flag("validation_data", "URL", "", DATA, "what the model is evaluated on", _EVALUATES, True),
    Flag("prediction_data", "URL", "", DATA, "what is predicted", (PREDICT,), True),
    Flag("data_reader_params", "K=V;K=V", "", DATA, "arguments of the reader", to_worker=True),
    Flag("minibatch_size", COUNT, "64", DATA, "records of a batch", to_worker=True),
    Flag("num_minibatches_per_task", COUNT, "8", DATA, "batches of a shard, where files can be cut so; default for files: by size",
         to_worker=True),
    Flag("num_epochs", COUNT, "1", DATA, "how often every record is read", _TRAIN, True),
    Flag("distribution_strategy", f"{ALONE}|{SERVERS}|{ALLREDUCE}", SERVERS, TRAINING, "how workers share the model", to_worker=True),
    Flag("get_model_steps", COUNT, "1", TRAINING, "the model is fetched from the servers every so many steps", _TRAIN, True),
    Flag("grads_to_wait", COUNT, "1", TRAINING, "gradients that make one synchronous step", _TRAIN, True),
    Flag("sync_version_tolerance", COUNT, "0", TRAINING, "versions that a gradient may be late", _TRAIN, True),
    Flag("use_async", BOOL, "false", TRAINING, "whether each gradient is applied at once", _TRAIN, True),
    Flag("lr_staleness_modulation", BOOL, "false", TRAINING, "whether late gradients count less; with --use_async", _TRAIN, True),
    Flag("embedding_size", "BYTES", "2097152", TRAINING, "larger embeddings move to the servers", _TRAIN, True),
    Flag("evict_unused", "DURATION", "", TRAINING, "rows of tables that were in no batch for so long are removed, as by 7d", _TRAIN, True),
    Flag("evaluation_steps", COUNT, "0", TRAINING, "the model is evaluated every so many steps, and at the end", _TRAIN, True),
    Flag("log_loss_steps", COUNT, "100", TRAINING, "the loss is printed every so many steps", _TRAIN, True),
    Flag("max_step", COUNT, "0", TRAINING, "training ends after so many steps; 0: with its data", _TRAIN, True),
    Flag("checkpoint_steps", COUNT, "0", RESULTS, "a checkpoint is made every so many steps, and at the end", _TRAIN, True),
    Flag("checkpoint_dir", "URL", "", RESULTS, "where checkpoints are kept; default: with the job", _TRAIN),
    Flag("keep_checkpoint_max", COUNT, "0", RESULTS, "checkpoints that are kept; 0: all", _TRAIN, True),
    Flag("checkpoint_dir_for_init", "URL", "", RESULTS, "a checkpoint, an exported model or weights to begin from", to_worker=True),
    Flag("output", "URL", "", RESULTS, "where the model is exported to, or predictions are written", (TRAIN, PREDICT)),
    Flag("tensorboard_log_dir", "URL", "", RESULTS, "event files for TensorBoard to show", _TRAIN),
    Flag("job_name", "NAME", "", JOB, "the job's name; default: the model's"),
    Flag("num_workers", COUNT, "2", JOB, "workers, at most; Local has one"),
    Flag("num_ps_pods", COUNT, "0", JOB, "parameter servers; training by servers has at least one"),
    Flag("num_evaluators", COUNT, "0", JOB, "evaluators of --job_command", _TRAIN),
    Flag("job_command", "COMMAND", "", JOB, "a program of yours in the place of the model's", _TRAIN),
    Flag("need_tf_config", BOOL, "false", JOB, "whether programs get TF_CONFIG", _TRAIN),
    Flag("relaunch_on_worker_failure", COUNT, "1", JOB, "restarts of a worker without progress", _TRAIN),
    Flag("ps_relaunch_max_num", COUNT, "1", JOB, "restarts of each server", _TRAIN),
    Flag("launch_worker_after_ps_running", "default|on|off", "default", JOB, "whether the workers of --job_command wait for servers",
         _TRAIN),
    Flag("envs", "K=V,K=V", "", JOB, "variables of the programs"),
    Flag("populate_env_names", "PATTERN", "", JOB, "variables of yours that the programs get"),
    Flag("log_level", "DEBUG|INFO|WARNING|ERROR|CRITICAL", "INFO", JOB, "what the workers print", to_worker=True),
    Flag("aux_params", "K=V;K=V", "", JOB, "disable_relaunch=true: nothing restarts"),
    Flag("yaml", FILE, "", JOB, "write the job file there, for Kubernetes the objects, and start nothing"),
    Flag("image_name", "IMAGE", "", CONTAINERS, "the image of all containers"),
    Flag("worker_image", "IMAGE", "", CONTAINERS, "the workers' image"),
    Flag("ps_image", "IMAGE", "", CONTAINERS, "the servers' image"),
    *(
        Flag(f"{role}_resource_request", RESOURCES, _REQUESTS.get(role, REQUEST), CONTAINERS, f"what each {role} asks for")
        for role in ROLES
    ),
    *(
        Flag(f"{role}_resource_limit", RESOURCES, "", CONTAINERS, f"the most that each {role} may use; default: what it asks for")
        for role in ROLES
    ),
    *(
        Flag(f"{role}_pod_priority", "CLASS|FRACTION", "", CONTAINERS, f"the priority class of each {role}; on Kubernetes")
        for role in ROLES
    ),
    Flag("volume", "K=V,K=V;...", "", CONTAINERS, "host_path=H,mount_path=M or claim_name=C,mount_path=M; on Kubernetes"),
    Flag("image_pull_policy", "Always|IfNotPresent|Never", "Always", CONTAINERS, "on Kubernetes"),
    Flag("namespace", "NAME", "", CONTAINERS, "on Kubernetes; default: the kubeconfig's"),
    Flag("cluster_spec_json", "JSON", "", CONTAINERS, "labels, annotations, tolerations, affinity and env of pods; on Kubernetes"),
    Flag("cluster_spec", FILE, "", SILENT, "a Python file that changes pods"),
    Flag("restart_policy", "Never|OnFailure|Always", "Never", SILENT, "of pods"),
    Flag("extra_pypi_index", "URL", "", SILENT, "where packages come from"),
    Flag("force_use_kube_config_file", BOOL, "false", SILENT, "whether the kubeconfig is used inside a cluster"),
    Flag("log_file_path", FILE, "", SILENT, "a file for the output"),
    Flag("need_elasticdl_job_service", BOOL, "false", SILENT, "whether a model file is run", _TRAIN),
    Flag("need_task_manager", BOOL, "true", SILENT, "whether data are given out in shards", _TRAIN),
    Flag("need_pod_manager", BOOL, "true", SILENT, "whether the master starts pods", _TRAIN),
    Flag("task_fault_tolerance", BOOL, "true", SILENT, "whether lost shards are given out again", _TRAIN),
    Flag("relaunch_timeout_worker", BOOL, "false", SILENT, "whether a worker that hangs is started again", _TRAIN),
    Flag("ps_is_critical", BOOL, "true", SILENT, "whether the job fails with a server", _TRAIN),
    Flag("critical_worker_index", TEXT, "default", SILENT, "workers with which the job fails", _TRAIN),
    Flag("enable_automate_memory", BOOL, "true", SILENT, "whether the memory of workers is changed", _TRAIN),
    Flag("use_go_ps", BOOL, "true", SILENT, "whether the servers are those written in Go", _TRAIN),
    Flag("custom_training_loop", BOOL, "false", SILENT, "whether the model file has a loop of its own", _TRAIN),
    Flag("evaluation_start_delay_secs", COUNT, "100", SILENT, "seconds before the first evaluation", _TRAIN),
    Flag("evaluation_throttle_secs", COUNT, "0", SILENT, "seconds between evaluations", _TRAIN),
)  # fmt: skip
BY_NAME = {flag.name: flag for flag in FLAGS}


def of(verb: str) -> list[Flag]:
    """Return the flags of a command."""
    return [flag for flag in FLAGS if verb in flag.verbs]


def abbreviated(name: str, flags: list[str]) -> str:
    """Return the one name that begins with `name`, as ElasticDL's parser took it; else `name` itself."""
    names = [flag for flag in flags if flag.startswith(name)]
    return names[0] if name not in flags and len(names) == 1 else name
