"""Run TensorFlowOnSpark's examples as they are, with the flags of their READMEs: examples.py NAME SOURCE WORK.

The environment names a Spark cluster (SPARK_CONF_DIR), its Spark and its Python. A line for each: NAME/EXAMPLE passed|failed|refused WORDS.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

NAME, SOURCE, WORK = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
HERE, EXAMPLES, DATA, OUT = Path(__file__).parent, SOURCE / "examples", WORK / "data", WORK / "out" / NAME
CSV, TFR = DATA / "mnist/csv", DATA / "mnist/tfr"
PYTHON, SPARK = os.environ["PYSPARK_PYTHON"], os.environ["SPARK_HOME"]
IS_ALIAS = NAME.startswith("alias")
# With InputMode.SPARK a node of ours keeps its slot, so the tasks that feed it need another: the one change to the commands.
CORES = 4 if IS_ALIAS else 2
JAVA = {"spark.executorEnv.JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {}
DATASETS = {"TFDS_DATA_DIR": str(DATA / "tensorflow_datasets")}
OF_EXECUTORS = {**DATASETS, "HOME": DATA / "home"}  # Keras keeps weights in its user's directory
if IS_ALIAS:  # for functions that Spark alone runs
    OF_EXECUTORS["PYTHONPATH"] = os.environ["PYTHONPATH"]
LIMIT = 1500  # seconds

Outcome = tuple[int, str, Path]  # exit status, what shows the accuracy, where it is


def submit(name: str, script: str | Path, *flags: object, cores: int = CORES, confs: tuple[str, ...] = ()) -> list[str]:
    words = [f"{SPARK}/bin/spark-submit", "--jars", str(SOURCE / "lib/tensorflow-hadoop-1.0-SNAPSHOT.jar")]
    settings = {
        "spark.cores.max": cores,
        "spark.task.cpus": 1,
        **JAVA,
        **{f"spark.executorEnv.{k}": v for k, v in OF_EXECUTORS.items()},
    }
    for key, value in settings.items():
        words += ["--conf", f"{key}={value}"]
    return [*words, *confs, str(EXAMPLES / script), *map(str, flags)]


def place(name: str, kind: str) -> Path:
    return OUT / f"{name}-{kind}"


def fresh(name: str, kind: str) -> Path:
    shutil.rmtree(place(name, kind), ignore_errors=True)
    return place(name, kind)


def run(name: str, *arguments: object, **options: object) -> int:
    with place(name, "log").open("w") as log:
        words = submit(name, *arguments, **options)
        environ = {**os.environ, **DATASETS}
        return subprocess.run(words, env=environ, stdout=log, stderr=log, timeout=LIMIT, cwd=OUT).returncode


def changed(script: str, *pairs: tuple[str, str]) -> Path:
    """Make a copy of an example, with the second text of each pair in the place of the first."""
    text, copy = (EXAMPLES / script).read_text(), OUT / Path(script).name
    for old, new in pairs:
        assert old in text, f"{script} has no {old}"
        text = text.replace(old, new)
    copy.write_text(text)
    return copy


def train(name: str, script: str | Path, *flags: object, kind: str = "saved", **options: object) -> Outcome:
    model, export = fresh(name, "model"), fresh(name, "export")
    exports = () if kind == "checkpoint" else ("--export_dir", export)
    status = run(name, script, "--cluster_size", 2, "--model_dir", model, *exports, *flags, **options)
    return status, kind, model if kind == "checkpoint" else export


def saved_model(name: str) -> Path:
    export = place(name, "export")
    return max((path.parent for path in export.glob("**/saved_model.pb")), default=export)


def infer(name: str, kind: str) -> Outcome:
    output = fresh(name, "predictions")
    flags = ("--cluster_size", 2, "--images_labels", TFR / "test", "--output", output)
    status = run(name, f"mnist/{kind}/mnist_inference.py", "--export_dir", saved_model(f"{kind}_spark"), *flags)
    return status, "pairs", output


def pipeline(name: str, kind: str, form: str, mode: str = "train") -> Outcome:
    rows = {"csv": CSV, "tfr": TFR}[form] / ("train" if mode == "train" else "test")
    flags = ("--images_labels", rows, "--format", form, "--mode", mode)
    if mode == "train":
        return train(name, f"mnist/{kind}/mnist_pipeline.py", *flags, "--epochs", 1)
    output = fresh(name, "predictions")
    export = saved_model(name.removesuffix("_inference"))
    return (
        run(name, f"mnist/{kind}/mnist_pipeline.py", *flags, "--export_dir", export, "--output", output),
        "json",
        output,
    )


def resnet(name: str) -> Outcome:
    flags = ("--cluster_size", 2, "--epochs=1", "--data_dir", DATA / "cifar-10-batches-bin", "--num_gpus=0")
    sizes = ("--train_epochs", 1, "--train_steps", 60, "--batch_size", 64, "--skip_eval")
    files = ("--py-files", str(EXAMPLES / "resnet/resnet_cifar_dist.py"))
    status = run(name, "resnet/resnet_cifar_spark.py", *flags, "--ds=multi_worker_mirrored", *sizes, confs=files)
    log = place(name, "nodes")
    if IS_ALIAS:
        job = re.findall(r"^trainmaster: job (\S+):", place(name, "log").read_text(errors="replace"), re.MULTILINE)[-1]
        text = subprocess.run(["tm", "logs", job], capture_output=True, text=True).stdout
    else:
        folders = Path(os.environ["TRAINMASTER_STATE_DIR"]).glob("**/app-*")
        newest = max(folders, key=lambda folder: folder.stat().st_mtime)
        text = "".join(path.read_text(errors="replace") for path in newest.glob("*/std*"))
    log.write_text(text)
    return status, "log", log


def stream(name: str) -> Outcome:
    """Give the program a file at once and another a minute later; then stop it as their README says."""
    folder, draft, model = fresh(name, "stream"), fresh(name, "draft"), fresh(name, "model")
    folder.mkdir()
    draft.mkdir()
    flags = ("--cluster_size", 3, "--images_labels", folder, "--model_dir", model)
    # TensorFlow 2.4 has given the strategy's name to another one. The old one is where it was in TensorFlow 1.
    old = "tf.distribute.experimental.ParameterServerStrategy"
    strategy = (old, old.replace("tf.", "tf.compat.v1."))
    flag = ("args.export_dir", "args.model_dir")  # the program has no flag of the first name
    script = changed("mnist/estimator/mnist_spark_streaming.py", strategy, flag)
    words = submit(name, script, *flags, cores=6 if IS_ALIAS else 3)
    rows = min((CSV / "train").glob("part-*"))
    with place(name, "log").open("w") as log, subprocess.Popen(words, stdout=log, stderr=log, cwd=OUT) as job:
        try:
            for number in range(3):
                try:
                    return job.wait(60), "checkpoint", model  # it ended too early
                except subprocess.TimeoutExpired:
                    if number < 2:
                        shutil.copy(rows, draft / f"part-{number}")
                        (draft / f"part-{number}").rename(folder / f"part-{number}")
            addresses = re.findall(r"\('([^']+)', (\d+)\)", place(name, "log").read_text(errors="replace"))
            subprocess.run([PYTHON, str(EXAMPLES / "utils/stop_streaming.py"), *addresses[-1]], timeout=60)
            return job.wait(300), "checkpoint", model
        finally:
            job.kill()


def set_up(name: str) -> Outcome:
    shutil.rmtree(DATA / "mnist", ignore_errors=True)
    return run(name, "mnist/mnist_data_setup.py", "--output", DATA / "mnist"), "csv", CSV


def without_eager(name: str) -> Outcome:
    """TensorFlow 2.15 asks for this line where an Estimator has an evaluator and MultiWorkerMirroredStrategy."""
    line = "  import tensorflow as tf\n"
    script = changed("mnist/estimator/mnist_tf.py", (line, f"{line}  tf.compat.v1.disable_eager_execution()\n"))
    return train(name, script, "--epochs", 1)


def example(script: str, *flags: object, **options: object) -> Callable[[str], Outcome]:
    return lambda name: train(name, script, *flags, **options)


TFDS = (DATA / "tensorflow_datasets/mnist/3.0.1/mnist-train.tfrecord*", "--data_format", "tfds")
PROGRAMS: dict[str, Callable[[str], Outcome]] = {
    "data_setup": set_up,
    "keras_tf": example("mnist/keras/mnist_tf.py", "--epochs", 1),
    "keras_tf_ds": example("mnist/keras/mnist_tf_ds.py", "--epochs", 1, "--images_labels", *TFDS),
    "keras_spark": example("mnist/keras/mnist_spark.py", "--epochs", 1, "--images_labels", CSV / "train"),
    "keras_inference": lambda name: infer(name, "keras"),
    "keras_pipeline_csv": lambda name: pipeline(name, "keras", "csv"),
    "keras_pipeline_csv_inference": lambda name: pipeline(name, "keras", "csv", "inference"),
    "keras_pipeline_tfr": lambda name: pipeline(name, "keras", "tfr"),
    "keras_pipeline_tfr_inference": lambda name: pipeline(name, "keras", "tfr", "inference"),
    "segmentation": example("segmentation/segmentation_spark.py", "--epochs", 1, "--batch_size", 8, kind="pixels"),
    "resnet": resnet,
    "estimator_tf": example("mnist/estimator/mnist_tf.py", "--epochs", 1),
    "estimator_tf_without_eager": without_eager,
    "estimator_spark": example("mnist/estimator/mnist_spark.py", "--epochs", 1, "--images_labels", CSV / "train"),
    "estimator_inference": lambda name: infer(name, "estimator"),
    "estimator_pipeline_csv": lambda name: pipeline(name, "estimator", "csv"),
    "estimator_pipeline_csv_inference": lambda name: pipeline(name, "estimator", "csv", "inference"),
    "estimator_streaming": stream,
}


# Modules of other repositories that an example imports, and the variable that names a checkout.
NEEDS = {"segmentation": ("tensorflow_examples", "TENSORFLOW_EXAMPLES"), "resnet": ("official", "TENSORFLOW_MODELS")}


def judge(program: Callable[[str], Outcome], name: str) -> tuple[str, str]:
    try:
        status, kind, path = program(name)
    except (OSError, subprocess.SubprocessError, LookupError, ValueError) as error:
        return "failed", f"{type(error).__name__}: {error}"
    if status:
        return "failed", f"exit status {status}, see {place(name, 'log')}"
    words = [PYTHON, str(HERE / "accuracy.py"), kind, str(path), str(DATA)]
    figures = subprocess.run(words, env={**os.environ, **DATASETS}, capture_output=True, text=True)
    lines = (figures.stdout or figures.stderr).strip().splitlines()
    return "failed" if figures.returncode else "passed", lines[-1] if lines else ""


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    only = os.environ.get("ONLY", "")
    names = [name for name in PROGRAMS if only in f"{NAME}/{name}"]
    if names and not (DATA / "tensorflow_datasets/oxford_iiit_pet").exists():
        subprocess.run([PYTHON, str(HERE / "data.py"), str(DATA)], check=True, stdout=sys.stderr)
    if names and "data_setup" not in names and not CSV.exists():
        names.insert(0, "data_setup")
    for name in names:
        module, variable = NEEDS.get(name, ("pyspark", ""))
        began = time.monotonic()
        if (Path(SPARK).parent / module).exists():
            verdict, words = judge(PROGRAMS[name], name)
        else:
            verdict, words = "refused", f"{variable} names no checkout with {module}"
        print(f"{NAME}/{name} {verdict} {words}; {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
