"""ElasticDL's flags as jobs: every flag becomes what it meant, is refused by its name, or is said to change nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from trainmaster.cli.tm import tm
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.reading import job_from, job_to
from trainmaster.host import machine
from trainmaster.integrations.dialect import Option, OwnOptions, Translation, job_file
from trainmaster.integrations.elasticdl import values
from trainmaster.integrations.elasticdl.flags import ALL, BY_NAME, FLAGS, abbreviated
from trainmaster.integrations.elasticdl.jobs import translated
from trainmaster.zoo.model_file import DEFAULT_NAMES

W, K = "roles.worker", "engines.kubernetes"
PROGRAM = "--job_command=python train.py"
LOCAL = "--distribution_strategy=Local"
ALLREDUCE = "--distribution_strategy=AllreduceStrategy"
SERVERS = "--distribution_strategy=ParameterServerStrategy"


@pytest.fixture(autouse=True)
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo with one model file, data, and a machine of eight cores and 64 GiB; the zoo's directory is the present one."""
    (tmp_path / "zoo/iris").mkdir(parents=True)
    names = ["custom_model", "loss", "optimizer", "feed", "eval_metrics_fn", "Mine"]
    names += [TO_WORKER[part] for part in DEFAULT_NAMES]
    (tmp_path / "zoo/iris/dnn.py").write_text("".join(f"def {name}():\n    pass\n" for name in names))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.csv").write_text("1,2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "cores", lambda: 8.0)
    monkeypatch.setattr(machine, "memory", lambda: 64 << 30)
    return tmp_path


BASIC = {
    "train": ["--model_zoo=zoo", "--model_def=iris.dnn.custom_model", "--training_data=data", LOCAL],
    "evaluate": [
        "--model_zoo=zoo",
        "--model_def=iris.dnn.custom_model",
        "--validation_data=data",
        "--checkpoint_dir_for_init=data",
    ],
    "predict": [
        "--model_zoo=zoo",
        "--model_def=iris.dnn.custom_model",
        "--prediction_data=data",
        "--checkpoint_dir_for_init=data",
    ],
}


def job(
    *flags: str, verb: str = "train", engine: str = "local", is_theirs: bool = False, basic: bool = True
) -> Translation:
    """The job of some flags, `--name=value` each, added to those that every job needs."""
    words = [*(BASIC[verb] if basic else []), *flags]
    pairs = [word.removeprefix("--").partition("=") for word in words]
    said = {name: Option(value, f"flag --{name}") for name, _, value in pairs}
    return translated(verb, said, OwnOptions(engine), is_theirs)


def value(translation: Translation, path: str) -> Any:
    """What the job has at a path, as a job file would write it."""
    at: Any = job_to(translation.described.job)
    for part in path.split("."):
        at = at.get(part.replace("/", ".")) if isinstance(at, dict) else None
    return at


def worker_flag(translation: Translation, name: str) -> str:
    """The value of a flag in the worker's command; "" where it is not there."""
    command = value(translation, f"{W}.command")
    return command[command.index(f"--{name}") + 1] if f"--{name}" in command else ""


def refused(*flags: str, **options: Any) -> str:
    with pytest.raises(BadInput) as caught:
        job(*flags, **options)
    return str(caught.value)


# Flags that the worker's program is given as they were written: their value, and the command that has it.
TO_WORKER = {
    "model_params": "layers=3", "loss": "my_loss", "optimizer": "my_optimizer", "feed": "my_feed", "eval_metrics_fn": "metrics",
    "callbacks": "my_callbacks", "custom_data_reader": "MyReader", "prediction_outputs_processor": "Sink",
    "data_reader_params": "columns=['a']; sep=';'", "minibatch_size": "32", "get_model_steps": "2", "grads_to_wait": "3",
    "sync_version_tolerance": "1", "embedding_size": "1000000", "evict_unused": "7d",
    "evaluation_steps": "50", "log_loss_steps": "10", "max_step": "7",
    "checkpoint_steps": "100", "log_level": "DEBUG", "num_epochs": "2", "use_async": "true", "lr_staleness_modulation": "true",
}  # fmt: skip
# Each other flag: further flags, the engine, and what the job then has.
MEANINGS: dict[str, tuple[list[str], str, dict[str, Any]]] = {
    "model_zoo": ([], "yarn", {"files": ["TMP/zoo#zoo"]}),
    "training_data": (["--training_data=data/*.csv"], "local", {"inputs.training.url": "TMP/data/*.csv", "inputs.training.as": "shards"}),
    "validation_data": (["--validation_data=data"], "local", {"inputs.validation.url": "TMP/data", "inputs.validation.as": "mount"}),
    "num_minibatches_per_task": (["--training_data=records://1000", "--num_minibatches_per_task=4"], "local",
                                 {"inputs.training.url": "records://1000/256", "inputs.training.shard_records": 0}),
    "num_epochs": (["--num_epochs=3"], "local", {"inputs.training.epochs": 3}),
    "distribution_strategy": ([ALLREDUCE], "local", {f"{W}.replicas": {"min": 1, "max": 2, "start": 0}, f"{W}.restart.scope": "task"}),
    "checkpoint_dir": (["--checkpoint_dir=saved"], "local", {"checkpoint.url": "TMP/saved", "checkpoint.keep": 999_999_999}),
    "keep_checkpoint_max": (["--keep_checkpoint_max=5"], "local", {"checkpoint.keep": 5, "checkpoint.path": "checkpoint"}),
    "checkpoint_dir_for_init": (["--checkpoint_dir_for_init=data"], "yarn",
                                {"inputs.init.url": "TMP/data", "inputs.init.as": "download", "inputs.init.split": "whole"}),
    "output": (["--output=out"], "local", {"outputs.model.url": "TMP/out", "outputs.model.layout": "flat",
                                              "outputs.model.from": "worker:0"}),
    "tensorboard_log_dir": (["--tensorboard_log_dir=events"], "local", {"tensorboard.logs": "events"}),
    "job_name": (["--job_name=iris-1"], "local", {"name": "iris-1"}),
    "num_workers": ([ALLREDUCE, "--num_workers=4"], "local", {f"{W}.replicas": {"min": 1, "max": 4, "start": 0}}),
    "num_ps_pods": ([SERVERS, "--num_ps_pods=2"], "local",
                    {"roles.ps.replicas.start": 2, "roles.ps.counts": False, f"{W}.after": {"ps": "running"},
                     "roles.ps.command": ["python", "-m", "trainmaster.ps", "--servers", "2"], "roles.ps.ports": {"ps": 0}}),
    "num_evaluators": ([PROGRAM, "--num_evaluators=1", "--validation_data=data"], "local",
                       {"roles.evaluator.command": "python train.py", "roles.evaluator.counts": False,
                        "inputs.validation.to": ["evaluator"]}),
    "job_command": ([PROGRAM], "local", {f"{W}.command": "python train.py", "inputs.training.as": "shards"}),
    "need_tf_config": ([PROGRAM, "--need_tf_config=true"], "local", {"framework": "tensorflow"}),
    "relaunch_on_worker_failure": (["--relaunch_on_worker_failure=7"], "local", {f"{W}.restart.limit": 7}),
    "ps_relaunch_max_num": ([SERVERS, "--num_ps_pods=3", "--ps_relaunch_max_num=4"], "local",
                            {"roles.ps.restart.limit": 12}),  # of each server; the limit is of all of them
    "launch_worker_after_ps_running": ([PROGRAM, SERVERS, "--num_ps_pods=1", "--launch_worker_after_ps_running=on"], "local",
                                       {f"{W}.after": {"ps": "running"}}),
    "envs": (["--envs=A=1,B=x,y,C="], "local", {f"{W}.env": {"A": "1", "B": "x,y", "C": ""}}),
    "populate_env_names": (["--populate_env_names=POPUL.*"], "yarn", {f"{W}.env": {"POPULATED": None}}),
    "aux_params": (["--aux_params=disable_relaunch=true"], "local", {f"{W}.restart.scope": "never"}),
    "image_name": (["--image_name=x:1"], "kubernetes", {"environment.image": "x:1", f"{K}.pull": "always"}),
    "worker_image": (["--worker_image=y:1"], "kubernetes", {f"{W}.image": "y:1"}),
    "ps_image": ([PROGRAM, SERVERS, "--num_ps_pods=1", "--ps_image=z:1"], "kubernetes", {"roles.ps.image": "z:1", f"{W}.image": None}),
    "worker_resource_request": (["--worker_resource_request=cpu=250m,memory=512Mi,gpu=1,ephemeral-storage=1Gi"], "kubernetes",
                                {f"{W}.resources.cores": 0.25, f"{W}.resources.memory": "512MiB", f"{W}.resources.gpus": 1,
                                 f"{K}.roles.worker.pod.spec.containers": [
                                     {"name": "program", "resources": {"requests": {"ephemeral-storage": "1Gi"}}}]}),
    "worker_resource_limit": (["--worker_resource_request=cpu=1,memory=1024Mi", "--worker_resource_limit=cpu=1,memory=3Gi"], "kubernetes",
                              {f"{W}.resources.memory": "3GiB", f"{W}.resources.cores": 1.0}),
    "master_resource_request": (["--master_resource_request=cpu=0.2,memory=2Gi"], "kubernetes",
                                {"master.resources.memory": "2GiB", "master.resources.cores": 0.2}),
    "master_resource_limit": (["--master_resource_limit=memory=4Gi"], "kubernetes", {"master.resources.memory": "4GiB"}),
    "ps_resource_request": ([PROGRAM, SERVERS, "--num_ps_pods=1", "--ps_resource_request=cpu=2,memory=1Gi"], "local",
                            {"roles.ps.resources.cores": 2.0, "roles.ps.command": "python train.py"}),
    "ps_resource_limit": ([PROGRAM, SERVERS, "--num_ps_pods=1", "--ps_resource_limit=memory=5Gi"], "kubernetes",
                          {"roles.ps.resources.memory": "5GiB"}),
    "chief_resource_request": ([PROGRAM, "--chief_resource_request=cpu=1,memory=1Gi"], "local",
                               {"roles.chief.replicas.max": 1, "inputs.training.to": ["chief", "worker"]}),
    "chief_resource_limit": ([PROGRAM, "--chief_resource_limit=memory=2Gi"], "kubernetes", {"roles.chief.resources.memory": "2GiB"}),
    "evaluator_resource_request": ([PROGRAM, "--num_evaluators=1", "--evaluator_resource_request=cpu=3"], "local",
                                   {"roles.evaluator.resources.cores": 3.0}),
    "evaluator_resource_limit": ([PROGRAM, "--num_evaluators=1", "--evaluator_resource_limit=memory=9Gi"], "kubernetes",
                                 {"roles.evaluator.resources.memory": "9GiB"}),
    "master_pod_priority": (["--master_pod_priority=top"], "kubernetes", {f"{K}.roles.master.priority_class": "top"}),
    "worker_pod_priority": (["--worker_pod_priority=0.5"], "kubernetes",
                            {f"{K}.priority_class.worker": {"class": "high", "fraction": 0.5, "other": "low"}}),
    "ps_pod_priority": ([PROGRAM, SERVERS, "--num_ps_pods=1", "--ps_pod_priority=high"], "kubernetes", {f"{K}.priority_class.ps": "high"}),
    "chief_pod_priority": ([PROGRAM, "--chief_resource_request=cpu=1", "--chief_pod_priority=high"], "kubernetes",
                           {f"{K}.priority_class.chief": "high"}),
    "evaluator_pod_priority": ([PROGRAM, "--num_evaluators=1", "--evaluator_pod_priority=low"], "kubernetes",
                               {f"{K}.priority_class.evaluator": "low"}),
    "volume": (["--volume=host_path=/h,mount_path=/data,type=Directory;claim_name=c,mount_path=/p,sub_path=s", "--training_data=/data/a"],
               "kubernetes", {f"{K}.volumes": [{"host_path": "/h", "path": "/data", "type": "Directory"},
                                               {"claim": "c", "path": "/p", "sub_path": "s"}],
                              "inputs.training.url": "file:///data/a"}),
    "image_pull_policy": (["--image_pull_policy=IfNotPresent"], "kubernetes", {f"{K}.pull": "missing"}),
    "namespace": (["--namespace=ads"], "kubernetes", {f"{K}.namespace": "ads"}),
    "cluster_spec_json": (
        ["--cluster_spec_json=" + json.dumps({
            "pod_spec": {"labels": {"a": "b"}, "env": [{"name": "N", "value": "1"}]},
            "worker_pod_spec": {"tolerations": [{"key": "k", "operator": "Exists"}]},
            "master_pod_spec": {"annotations": {"c": "d"}},
        })],
        "kubernetes",
        {f"{K}.labels": {"a": "b"}, f"{W}.env": {"N": "1"}, f"{K}.roles.worker.tolerations": [{"key": "k", "operator": "Exists"}],
         f"{K}.roles.master.annotations": {"c": "d"}},
    ),
}  # fmt: skip
# Flags that are refused, or that only a remark answers: what is written, and words of the answer.
NOT_HERE = {
    "cluster_spec": ("spec.py", "a Python file that changes pods is not to be had here"),
    "need_task_manager": ("false", "a job without the parts of its master"),
    "need_pod_manager": ("false", "a job without the parts of its master"),
    "critical_worker_index": ("0:1", "a list of workers"),
}
SAID = {
    "extra_pypi_index": "https://x", "force_use_kube_config_file": "true", "log_file_path": "x.log", "need_elasticdl_job_service": "true",
    "task_fault_tolerance": "false", "relaunch_timeout_worker": "true", "enable_automate_memory": "true", "use_go_ps": "true",
    "custom_training_loop": "true", "evaluation_start_delay_secs": "1", "evaluation_throttle_secs": "1", "restart_policy": "Always",
    "ps_is_critical": "false",
}  # fmt: skip
ELSEWHERE = {"model_def", "dataset_fn", "yaml", "prediction_data"}  # are in tests of their own below


def test_every_flag_is_in_a_table_of_these() -> None:
    assert {*TO_WORKER, *MEANINGS, *NOT_HERE, *SAID, *ELSEWHERE} == {flag.name for flag in FLAGS}


@pytest.mark.parametrize("name", TO_WORKER)
def test_what_the_workers_need_they_get_as_it_was_written(name: str) -> None:
    verb = BY_NAME[name].verbs[0]
    assert worker_flag(job(f"--{name}={TO_WORKER[name]}", verb=verb), name) == TO_WORKER[name]
    assert worker_flag(job(verb=verb), name) == "", "a default is the program's own"


@pytest.mark.parametrize("name", MEANINGS)
def test_a_flag_means_what_it_meant(name: str, zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPULATED", "1")
    flags, engine, meaning = MEANINGS[name]
    translation = job(*flags, engine=engine)
    expected = json.loads(json.dumps(meaning).replace("TMP", str(zoo)))
    assert {path: value(translation, path) for path in meaning} == expected
    assert job_from(yaml.safe_load(job_file(translation))) == translation.described.job, "the job file is the same job"


@pytest.mark.parametrize("name", NOT_HERE)
def test_what_is_not_to_be_had_is_refused_by_its_name(name: str) -> None:
    text, words = NOT_HERE[name]
    message = refused(f"--{name}={text}")
    assert words in message
    assert f"flag --{name}" in message


@pytest.mark.parametrize("name", SAID)
def test_what_changes_nothing_is_said(name: str) -> None:
    translation = job(f"--{name}={SAID[name]}")
    assert translation.described.job == job().described.job
    assert [text for text in translation.remarks if text.startswith(f"--{name}: nothing to do; ")]


@pytest.mark.parametrize("name", ["namespace", "image_pull_policy", "worker_pod_priority", "cluster_spec_json"])
def test_what_only_kubernetes_has_is_kept_and_said(name: str) -> None:
    text = {"image_pull_policy": "Never", "cluster_spec_json": '{"pod_spec": {"labels": {"a": "b"}}}'}.get(name, "high")
    translation = job(f"--{name}={text}", engine="yarn")
    assert f"--{name}: changes nothing on yarn; the job file keeps it for Kubernetes" in translation.remarks
    assert value(translation, K)


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--minibatch_size=0", "a whole number, 1 or more"),
        ("--num_epochs=two", "a whole number, 1 or more"),
        ("--use_async=perhaps", "true or false"),
        ("--distribution_strategy=Mirrored", "Local or ParameterServerStrategy or AllreduceStrategy"),
        ("--image_pull_policy=Sometimes", "Always or IfNotPresent or Never"),
        ("--envs=A", "k=v,k2=v2"),
        ("--envs=A=b=c", "--set roles.worker.env.NAME=VALUE"),
        ("--job_name=my job", "my-job"),
        ("--worker_resource_request=memory=4", "a size with a unit"),
        ("--worker_resource_request=cpu=0", "a number of cores"),
        ("--worker_resource_request=cpu=1,cpu=2", "each once: cpu"),
        ("--worker_resource_request=fpga=1", "not fpga"),
        ("--worker_resource_request=gpu=half", "a whole number of gpu"),
        ("--volume=mount_path=/a", "either a claim_name or a host_path"),
        ("--volume=claim=c,mount_path=/a", "not claim"),
        ("--worker_pod_priority=1.5", "from 0 to 1"),
        ("--worker_pod_priority=high=much", "from 0 to 1"),
        ("--cluster_spec_json={", "JSON"),
        ('--cluster_spec_json={"worker_spec": {}}', "not worker_spec"),
        ('--cluster_spec_json={"pod_spec": {"hostname": "x"}}', "not hostname"),
        ('--cluster_spec_json={"pod_spec": {"env": [{"name": "A", "valueFrom": {}}]}}', "a variable that Kubernetes fills in"),
        ("--aux_params=debug=true", "disable_relaunch is the one there was"),
        ("--populate_env_names=[", "a regular expression"),
        ("--num_workers=2", "Local is one worker"),
        ("--model_def=iris.dmm.custom_model", "iris has dnn"),
        ("--model_def=custom_model", "names no function of a file"),
        ("--model_zoo=zou", "the model zoo does not exist"),
        ("--checkpoint_dir_for_init=nowhere", "does not exist"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_its_place(flag: str, words: str) -> None:
    message = refused(flag)
    assert words in message
    assert flag.partition("=")[0].strip("-") in message


def test_servers_are_asked_for_as_far_as_they_are_needed() -> None:
    flags = [flag for flag in BASIC["train"] if flag != LOCAL]
    assert value(job(*flags, basic=False), "roles.ps.replicas.start") == 1, "the default strategy"
    assert "ParameterServerStrategy needs a server" in refused(*flags, "--num_ps_pods=0", basic=False)
    assert "ps" not in job("--num_ps_pods=1").described.job.roles
    assert "--num_ps_pods: Local has no servers" in job("--num_ps_pods=1").remarks
    assert "ps" not in job(verb="evaluate").described.job.roles
    assert value(job("--num_ps_pods=2", verb="predict"), "roles.ps.replicas.max") == 2


ALIAS = {"TRAINMASTER_ALIAS": "elasticdl"}


def test_a_program_has_the_variables_of_elasticdl_s_programs() -> None:
    shown = value(job(PROGRAM, "--num_workers=3", "--num_evaluators=1", "--envs=MY_POD_IP=here"), "roles")
    assert shown["worker"]["env"] == {"WORKER_NUM": "3", "WORKER_ID": "{index}", "MY_POD_IP": "here", **ALIAS}
    assert shown["evaluator"]["env"] == {"WORKER_NUM": "3", "MY_POD_IP": "here", **ALIAS}
    assert value(job(), f"{W}.env") == {}, "a model file has no program of its own"


def test_a_program_in_a_checkout_of_elasticdl_leaves_its_packages_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "elasticai_api/__init__.py",
        "model_zoo/train.py",
        ".git/HEAD",
        "venv/pyvenv.cfg",
        "ignored/large",
        ".gitignore",
    ):
        (tmp_path / "edl" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "edl" / name).write_text("ignored\n")
    monkeypatch.chdir(tmp_path / "edl")
    made = job(PROGRAM, basic=False)
    assert (value(made, "files"), value(made, f"{W}.workdir")) == ([".gitignore", "model_zoo"], "copy")
    assert any("without elasticai_api" in remark for remark in made.remarks)
    Path("elasticai_api/__init__.py").unlink()
    assert value(job(PROGRAM, basic=False), "files") == ["."]


def test_a_program_counts_its_own_records_unless_a_flag_names_data() -> None:
    alone = value(job(PROGRAM, "--num_epochs=3", basic=False), "inputs.training")
    assert (alone["url"], alone["as"], alone["epochs"]) == ("records://", "shards", 3)
    with_roles = value(job(PROGRAM, "--num_evaluators=1", "--num_ps_pods=1", basic=False), "inputs.training")
    assert with_roles["to"] == ["ps", "worker", "evaluator"], "each role's program makes the service"
    assert (
        value(job(PROGRAM, "--training_data=records://100", basic=False), "inputs.training.url") == "records://100/512"
    )


READER = """
class Own:
    def __init__(self, data_origin, records_per_task, count=10):
        self.count = int(count)

    def create_shards(self):
        return {"a": (0, self.count), "b": (5, 20)}

    def read_records(self, task):
        yield from range(task.shard.start, task.shard.end)


custom_data_reader = Own


def loss(labels, predictions):
    pass


def optimizer():
    pass


def feed(dataset, mode, metadata):
    pass
"""


def test_workers_share_the_records_of_a_reader_of_the_model_file_s_own(zoo: Path) -> None:
    with (zoo / "zoo/iris/dnn.py").open("a") as file:
        file.write(READER)
    shared = job(
        ALLREDUCE, "--training_data=of nobody", "--minibatch_size=4", "--num_minibatches_per_task=2", "--num_epochs=3"
    )
    assert value(shared, "inputs.training.url") == "records://30/8"
    assert value(shared, "inputs.training.as") == "shards"
    assert value(shared, "inputs.training.epochs") == 3
    assert worker_flag(shared, "training_data") == "of nobody"
    assert worker_flag(shared, "num_minibatches_per_task") == "2"
    more = job("--data_reader_params=count=100", "--custom_data_reader=Own", verb="predict")
    assert value(more, "inputs.prediction.url") == "records://120/512"
    assert value(job(), "inputs.training.url") == f"{zoo}/data", "one worker alone needs no number"
    message = refused(ALLREDUCE, "--data_reader_params=coumt=3")
    assert "it does not say here how many there are: " in message
    assert "coumt" in message
    assert "--set inputs.training.url=records://COUNT/SIZE" in message


def test_shards_of_files_have_the_records_of_elasticdl_s_tasks() -> None:
    assert value(job("--minibatch_size=16", "--num_minibatches_per_task=4"), "inputs.training.shard_records") == 64
    assert value(job(), "inputs.training.shard_records") == 0, "by the size of the data where nothing is said"


def test_the_number_of_a_reader_s_records_may_be_said(zoo: Path) -> None:
    with (zoo / "zoo/iris/dnn.py").open("a") as model:
        model.write("\n\nclass Own:\n    pass\n")
    words = [
        word.removeprefix("--").partition("=") for word in (*BASIC["train"][:2], ALLREDUCE, "--custom_data_reader=Own")
    ]
    said = {name: Option(value, f"flag --{name}") for name, _, value in words}
    told = translated(
        "train", said, OwnOptions("local", sets=(Option("inputs.training.url=records://70/7", "flag --set"),))
    )
    assert value(told, "inputs.training.url") == "records://70/7"
    assert value(told, "inputs.training.as") == "shards"


def test_one_worker_evaluates_and_several_predict() -> None:
    assert value(job("--num_workers=3", verb="evaluate"), f"{W}.replicas.max") == 1
    assert "--num_workers: one worker evaluates all data" in job("--num_workers=3", verb="evaluate").remarks
    assert value(job("--num_workers=3", verb="predict"), f"{W}.replicas") == {"min": 1, "max": 3, "start": 0}


@pytest.mark.parametrize("verb", ALL)
def test_a_job_needs_a_model_and_data(verb: str) -> None:
    for missing, words in enumerate(("there is no --model_zoo", "there is no --model_def", "there are no data")):
        flags = [flag for position, flag in enumerate(BASIC[verb]) if position != missing]
        assert words in refused(*flags, verb=verb, basic=False)
    if verb != "train":
        assert "there is no trained model" in refused(*BASIC[verb][:3], verb=verb, basic=False)
    assert (
        value(
            job(verb=verb),
            "inputs." + {"train": "training", "evaluate": "validation", "predict": "prediction"}[verb] + ".as",
        )
        == "shards"
    )


def test_results_of_prediction_are_an_output_of_each_worker(zoo: Path) -> None:
    translation = job("--output=out", verb="predict")
    assert value(translation, "outputs.predictions") == {
        "url": f"{zoo}/out", "from": "worker", "as": "upload", "format": "auto", "layout": "task", "options": {}, "overwrite": False,
        "required": "all",
    }  # fmt: skip
    assert "no --output: predictions go to PredictionOutputsProcessor alone" in job(verb="predict").remarks


def test_defaults_are_elasticdl_s_but_on_this_machine_all_tasks_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    there = job(ALLREDUCE, engine="yarn")
    assert value(there, f"{W}.resources.memory") == "4GiB"
    assert value(there, "master.resources.cores") == 0.1
    assert value(there, f"{W}.restart.limit") == 1
    monkeypatch.setattr(machine, "cores", lambda: 2.0)
    monkeypatch.setattr(machine, "memory", lambda: 8 << 30)
    here = job(ALLREDUCE, "--num_workers=4")
    assert value(here, f"{W}.resources.cores") == 0.5
    assert value(here, f"{W}.resources.memory") == "1843MiB"
    assert value(here, f"{W}.threads") == "machine"
    assert value(job("--worker_resource_request=cpu=2"), f"{W}.resources.cores") == 2.0


def test_site_files_are_stronger_than_defaults_and_weaker_than_flags(
    zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = zoo / "site.yaml"
    site.write_text("roles: {worker: {restart: {limit: 9}}}\n")
    monkeypatch.setenv("TRAINMASTER_SITE", str(site))
    assert value(job(), f"{W}.restart.limit") == 9
    assert value(job("--relaunch_on_worker_failure=2"), f"{W}.restart.limit") == 2


def test_a_host_path_is_only_another_name_on_this_machine(zoo: Path) -> None:
    volume = f"--volume=host_path={zoo},mount_path=/mnt"
    assert value(job(volume, "--training_data=/mnt/data"), "inputs.training.url") == f"{zoo}/data"
    assert (
        value(job("--volume=host_path=/nowhere,mount_path=/mnt", "--training_data=/mnt/d"), "inputs.training.url")
        == "/mnt/d"
    )


# The command lines of ElasticDL's own tests (scripts/client_test.sh, docs/tutorials), and the job files that they become.
THEIRS = {
    "train": (
        "--image_name=elasticdl:ci --model_zoo=model_zoo --model_def=deepfm_functional_api.deepfm_functional_api.custom_model "
        "--training_data=/data/frappe/train --validation_data=/data/frappe/test --num_epochs=1 "
        "--master_resource_request=cpu=0.2,memory=1024Mi --master_resource_limit=cpu=1,memory=2048Mi "
        "--worker_resource_request=cpu=0.4,memory=2048Mi --worker_resource_limit=cpu=1,memory=3072Mi "
        "--ps_resource_request=cpu=0.2,memory=1024Mi --ps_resource_limit=cpu=1,memory=2048Mi --minibatch_size=64 "
        "--num_minibatches_per_task=2 --num_workers=2 --num_ps_pods=1 --checkpoint_steps=500 --evaluation_steps=500 --grads_to_wait=1 "
        "--use_async=True --job_name=test-train --log_level=INFO --image_pull_policy=Never --output=/data/saved_model/model_output "
        "--need_elasticdl_job_service=true --volume=host_path=/mnt,mount_path=/data"
    ),
    "estimator": (
        "--image_name=elasticdl:1.0.0 --worker_image=elasticdl:iris --ps_image=elasticdl:iris "
        "--job_command=python\\ -m\\ model_zoo.iris.dnn_estimator --num_ps_pods=1 --ps_resource_request=cpu=0.2,memory=1024Mi "
        "--num_workers=1 --worker_resource_request=cpu=0.3,memory=1024Mi --chief_resource_request=cpu=0.3,memory=1024Mi "
        "--num_evaluators=1 --evaluator_resource_request=cpu=0.3,memory=1024Mi --job_name=test-iris-estimator "
        "--image_pull_policy=Never --distribution_strategy=ParameterServerStrategy --need_tf_config=true "
        "--volume=host_path=/iris,mount_path=/data"
    ),
    "allreduce": (
        "--image_name=elasticdl:ci --model_zoo=model_zoo --model_def=mnist.mnist_functional_api.custom_model "
        "--training_data=/data/mnist/train --num_epochs=1 --worker_resource_request=cpu=0.3,memory=2048Mi "
        "--minibatch_size=64 --num_minibatches_per_task=2 --num_workers=2 "
        "--distribution_strategy=AllreduceStrategy --job_name=test-allreduce --image_pull_policy=Never "
        "--volume=claim_name=mnist,mount_path=/data"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", THEIRS)
def test_elasticdl_s_own_command_lines_become_these_job_files(name: str) -> None:
    import shlex

    translation = job(*shlex.split(THEIRS[name]), engine="kubernetes", is_theirs=True, basic=False)
    recorded = Path(__file__).parent.parent / "recordings" / "elasticdl" / f"{name}.yaml"
    assert yaml.safe_load(job_file(translation)) == yaml.safe_load(recorded.read_text())
    assert not translation.stays, "the command returned there"


def test_names_may_be_shortened_in_an_elasticdl_command_line() -> None:
    names = [f"--{flag.name}" for flag in FLAGS]
    assert abbreviated("--num_ps", names) == "--num_ps_pods"
    assert abbreviated("--num_evaluator", names) == "--num_evaluators"
    assert abbreviated("--num", names) == "--num", "which of them is not clear"
    assert abbreviated("--checkpoint_dir", names) == "--checkpoint_dir"


def test_an_image_s_priority_and_pods_are_read_as_they_were() -> None:
    assert values.priority(Option("high=0.5", "x")) == {"class": "high", "fraction": 0.5, "other": "low"}
    assert values.priority(Option("low", "x")) == "low"
    assert values.variables(Option("A=1", "x")) == {"A": "1"}


# -- the commands --


def tm_says(*words: str) -> Result:
    return CliRunner().invoke(tm, words, catch_exceptions=True)


@pytest.mark.parametrize("verb", ALL)
def test_dry_run_prints_the_job_file_and_starts_nothing(verb: str, zoo: Path) -> None:
    done = tm_says(verb, *BASIC[verb], "--dry-run", "--minibatch_size", "8")
    assert done.exit_code == 0, done.output
    data = yaml.safe_load(done.stdout)
    assert data["roles"]["worker"]["command"][:4] == ["python", "-m", "trainmaster.zoo", verb]
    assert "# asked of local" in done.stdout
    assert not (zoo / "state").exists()


def test_yaml_writes_a_job_file_that_tm_run_takes_from_anywhere(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (zoo / "elsewhere").mkdir()
    done = tm_says("train", *BASIC["train"], "--output=out", "--yaml", "elsewhere/job.yaml")
    assert done.exit_code == 0, done.output
    assert "elsewhere/job.yaml has the job file" in done.stderr
    monkeypatch.chdir(zoo / "elsewhere")
    again = tm_says("run", "job.yaml", "--dry-run")
    assert again.exit_code == 0, again.output
    assert f"url: {zoo}/out" in again.stdout
    assert tm_says("train", *BASIC["train"], "--yaml", f"{zoo}/no/such/job.yaml").exception is not None


def test_an_unknown_flag_is_refused_with_the_nearest_name() -> None:
    from trainmaster.cli.tm import _parts

    for command in (["train"], ["elasticdl", "train"]):
        done = CliRunner().invoke(tm, [*command, "--minibatchsize", "3"], standalone_mode=False)
        assert done.exception is not None
        message, lines, _, status = _parts(done.exception)  # type: ignore[arg-type]
        assert message == "there is no option --minibatchsize; did you mean --minibatch_size?"
        assert status == 2
        assert lines == [f"tm {' '.join(command)} --help"]


def test_a_flag_of_another_command_is_refused_and_in_elasticdl_s_line_named() -> None:
    done = tm_says("evaluate", *BASIC["evaluate"], "--num_epochs=1", "--dry-run")
    assert done.exit_code == 2
    assert "--num_epochs belongs to tm train, not to tm evaluate" in done.output
    theirs = tm_says("elasticdl", "evaluate", *BASIC["evaluate"], "--num_epochs=1", "--engine=local", "--dry-run")
    assert theirs.exit_code == 0, theirs.output
    assert "--num_epochs: nothing to do; it belongs to train" in theirs.stderr


def test_true_and_false_may_stand_behind_a_flag_or_not() -> None:
    for words in (["--use_async"], ["--use_async", "true"], ["--use_async=T"]):
        done = tm_says("train", *BASIC["train"][:3], *words, "--dry-run")
        assert done.exit_code == 0, done.output
        command = yaml.safe_load(done.stdout)["roles"]["worker"]["command"]
        assert command[command.index("--use_async") + 1] == "true"


def test_an_older_name_of_the_feed_is_the_feed() -> None:
    done = tm_says("train", *BASIC["train"], "--dataset_fn", "my_feed", "--dry-run")
    command = yaml.safe_load(done.stdout)["roles"]["worker"]["command"]
    assert command[command.index("--feed") + 1] == "my_feed"


def test_errors_speak_of_flags_and_settings() -> None:
    done = tm_says("train", *BASIC["train"], "--worker_resource_request=cpu=9000,memory=1Gi", "--dry-run")
    assert isinstance(done.exception, BadInput)
    assert "flag --worker_resource_request" in done.exception.place


def test_formats_are_those_in_which_the_program_reads_files_by_hand() -> None:
    """A directory of .csv files has a header in each. Where an ending tells nothing, whoever reads the files looks into them."""
    assert value(job(), "inputs.training.format") == "csv"
    assert value(job("--data_reader_params=reader_type=Text"), "inputs.training.format") == "lines"
    assert value(job("--custom_data_reader=Mine"), "inputs.training.format") == "auto"
    assert value(job("--training_data=hdfs:///data/part"), "inputs.training.format") == "auto"
    theirs = job("--training_data=/data/part", engine="kubernetes", is_theirs=True)
    assert value(theirs, "inputs.training.format") == "auto"
    assert "there is no reader of the type Tetx" in refused("--data_reader_params=reader_type=Tetx")


@pytest.mark.parametrize("verb", ALL)
def test_the_workers_program_takes_the_flags_that_its_command_has(verb: str) -> None:
    from trainmaster.zoo.flags import parse

    flags = [
        f"--{name}={text}"
        for name, text in TO_WORKER.items()
        if verb in BY_NAME[name].verbs and name != "custom_data_reader"
    ]
    command = value(job(*flags, verb=verb), f"{W}.command")
    assert command[:4] == ["python", "-m", "trainmaster.zoo", verb]
    task, values_of_program = parse(command[3:])
    assert task == verb
    for name, text in TO_WORKER.items():
        if verb in BY_NAME[name].verbs and name != "custom_data_reader":
            assert str(values_of_program[name]).lower() == text.lower(), name


def test_every_flag_is_on_the_page_for_those_who_come_from_there() -> None:
    page = (Path(__file__).parents[2] / "docs/coming-from/elasticdl.md").read_text()
    assert [flag.name for flag in FLAGS if f"`--{flag.name}" not in page] == []


def test_checkpoints_have_a_place_or_are_done_without(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Kubernetes a job without storage keeps its events alone. A lone worker must not begin anew in the middle of its data."""
    without = job(engine="kubernetes")
    assert value(without, "checkpoint") is None
    assert value(without, f"{W}.restart.scope") == "never"
    assert any(
        "no checkpoints are kept, and a worker that fails is not started again" in text for text in without.remarks
    )
    shared = job(ALLREDUCE, engine="kubernetes")
    assert (value(shared, "checkpoint"), value(shared, f"{W}.restart.scope")) == (None, "task"), (
        "the others have the state"
    )
    assert value(job("--checkpoint_dir=s3://b/c", engine="kubernetes"), "checkpoint.url") == "s3://b/c"
    site = zoo / "site.yaml"
    site.write_text("storage: s3://bucket/jobs\n")
    monkeypatch.setenv("TRAINMASTER_SITE", str(site))
    assert value(job(engine="kubernetes"), "checkpoint.path") == "checkpoint"


def test_servers_keep_their_files_where_all_of_them_see_them_or_in_their_container(zoo: Path) -> None:
    variable = "env.TRAINMASTER_PS_DIRECTORY"
    alone = job(SERVERS, engine="yarn")
    assert value(alone, f"roles.ps.{variable}") == "servers"
    assert value(alone, "checkpoint") is None
    kept = job(SERVERS, "--checkpoint_steps=10", engine="yarn")
    assert "no --checkpoint_dir: the servers' checkpoints end with the job" in kept.remarks
    shared = job(SERVERS, "--checkpoint_dir=file:///shared/servers", engine="yarn")
    assert {value(shared, f"roles.{role}.{variable}") for role in ("ps", "worker")} == {"/shared/servers"}
    with pytest.raises(BadInput, match="that every node sees, and hdfs:///servers is not one"):
        job(SERVERS, "--checkpoint_dir=hdfs:///servers", engine="yarn")
    assert value(job(SERVERS), f"roles.ps.{variable}") == "{work}/../servers"
    here = job(SERVERS, "--checkpoint_dir=kept")
    assert {value(here, f"roles.{role}.{variable}") for role in ("ps", "worker")} == {str(zoo / "kept")}
    assert value(here, "checkpoint") is None
    (zoo / "taken").touch()
    assert f"nothing can be kept there: {zoo}/taken is not a directory" in refused("--checkpoint_dir=taken/x", SERVERS)


def keep_checkpoint(folder: Path, servers: int) -> None:
    """Write what servers of a job leave of version 7, each in a directory of its own; of server 0 the manifest too."""
    shares = []
    for index in range(servers):
        place = folder / "files" / f"ps-{index}.1.abc" / "version-7"
        place.mkdir(parents=True)
        (place / f"variables-{index}-of-{servers}.ckpt").write_bytes(b"rows")
        shares.append({"bytes": 4, "digest": hashlib.blake2b(b"rows", digest_size=32).hexdigest(), "rows": 1})
    manifest = {"format": 1, "version": 7, "sequence": 9, "shares": shares}
    place = folder / "files" / "ps-0.1.abc" / "version-7"
    (place / f"manifest-of-{servers}.json").write_text(json.dumps(manifest))


def test_servers_begin_from_a_checkpoint_of_theirs(zoo: Path) -> None:
    keep_checkpoint(zoo / "kept", 2)
    command = value(job("--checkpoint_dir_for_init=kept", SERVERS), "roles.ps.command")
    assert command[-2:] == ["--init", str(zoo / "kept")]
    assert "--init" not in value(job("--checkpoint_dir_for_init=data", SERVERS), "roles.ps.command")
    for verb in ("evaluate", "predict"):
        flags = ["--checkpoint_dir_for_init=kept", "--num_ps_pods=3"]
        assert value(job(*flags, verb=verb), "roles.ps.command")[-2:] == ["--init", str(zoo / "kept")]
        command = value(job(*flags, verb=verb), f"{W}.command")
        assert command[command.index("--num_ps_pods") + 1] == "3"
    on_cluster = job("--checkpoint_dir_for_init=kept", SERVERS, engine="yarn")
    assert value(on_cluster, "inputs.init.to") == ["ps", "worker"]
    assert value(on_cluster, "inputs.init.url") == f"{zoo}/kept/**/version-7/*"
    assert value(on_cluster, "roles.ps.command")[-2:] == ["--init", "init"]
    keep_checkpoint(zoo / "more", 2)
    for engine in ("local", "yarn"):
        translation = job(f"--checkpoint_dir_for_init=file://{zoo}/more", SERVERS, engine=engine)
        assert value(translation, "inputs.init.url") == f"file://{zoo}/more/**/version-7/*"
        assert value(translation, "roles.ps.command")[-2:] == ["--init", "init"]
    for place in ("more", "nowhere"):  # a mount may have what this machine has not
        in_pods = job(f"--checkpoint_dir_for_init=file://{zoo}/{place}", SERVERS, engine="kubernetes")
        assert value(in_pods, "roles.ps.command")[-2:] == ["--init", f"{zoo}/{place}"]


def test_a_share_that_is_missing_is_reported_before_the_job_starts(zoo: Path) -> None:
    keep_checkpoint(zoo / "kept", 2)
    (zoo / "kept/files/ps-1.1.abc/version-7/variables-1-of-2.ckpt").unlink()
    text = refused("--checkpoint_dir_for_init=kept", SERVERS)
    assert "the share of server 1 is missing: no version-7/variables-1-of-2.ckpt" in text
    assert f"remove {zoo}/kept/files/ps-0.1.abc/version-7/manifest-of-2.json" in text
    assert "the share of server 1 is missing" in refused("--checkpoint_dir_for_init=kept", verb="evaluate")


@pytest.mark.parametrize("size", [0, 20])
def test_a_damaged_manifest_of_the_newest_checkpoint_is_refused_by_each_command(zoo: Path, size: int) -> None:
    """An older checkpoint is there too: to begin from that one would lose what was learned since, without a word."""
    keep_checkpoint(zoo / "kept", 2)
    shutil.copytree(zoo / "kept/files", zoo / "kept/older")
    for folder in (zoo / "kept/older").glob("*/version-7"):
        folder.rename(folder.with_name("version-5"))
    older = zoo / "kept/older/ps-0.1.abc/version-5/manifest-of-2.json"
    older.write_text(older.read_text().replace('"version": 7', '"version": 5'))
    manifest = zoo / "kept/files/ps-0.1.abc/version-7/manifest-of-2.json"
    manifest.write_bytes(manifest.read_bytes()[:size])
    for verb in ("train", "evaluate", "predict"):
        text = refused("--checkpoint_dir_for_init=kept", *([SERVERS] if verb == "train" else []), verb=verb)
        assert f"{manifest} is damaged" in text
        assert f"or remove {manifest} to begin from the checkpoint before" in text


def test_checkpoints_of_servers_at_a_url_are_found_and_looked_at_before_the_job_starts(zoo: Path) -> None:
    from trainmaster.data.store.stores import store_for

    keep_checkpoint(zoo / "kept", 2)
    store, url = store_for("memory://former"), "--checkpoint_dir_for_init=memory://former"
    for path in (path for path in (zoo / "kept").rglob("*") if path.is_file()):
        store.put(str(path.relative_to(zoo / "kept")), path.read_bytes())
    for engine in ("local", "kubernetes"):
        translation = job(url, SERVERS, engine=engine)
        assert value(translation, "inputs.init.url") == "memory://former/**/version-7/*"
        assert value(translation, "inputs.init.to") == ["ps", "worker"]
        assert value(translation, "roles.ps.command")[-2:] == ["--init", "init"]
    share = "files/ps-1.1.abc/version-7/variables-1-of-2.ckpt"
    store.put(share, b"row")
    assert "variables-1-of-2.ckpt has 3 bytes, and had 4: it was cut short" in refused(url, SERVERS)
    store.remove(share)
    assert "the share of server 1 is missing" in refused(url, SERVERS, engine="yarn")
    manifest = "files/ps-0.1.abc/version-7/manifest-of-2.json"
    for content in (b"{", b"[]", b'{"shares": [7]}', b'{"shares": [{"rows": 1}]}'):
        store.put(manifest, content)
        text = refused(url, SERVERS)
        assert f"{manifest} is not a manifest" in text
        assert f"remove memory://former/{manifest}" in text


def test_as_many_checkpoints_are_kept_as_is_said() -> None:
    assert value(job("--keep_checkpoint_max=2"), "checkpoint.keep") == 2
    command = value(job(SERVERS, "--keep_checkpoint_max=2"), f"{W}.command")
    assert command[command.index("--keep_checkpoint_max") + 1] == "2"


def test_the_life_of_rows_is_a_duration() -> None:
    assert "--evict_unused" in value(job("--evict_unused=7d", SERVERS), f"{W}.command")
    assert "a duration needs a unit" in refused("--evict_unused=7")
