"""Trains, evaluates and predicts with the model files of `zoo`, in one process: `zoo_keras.py BACKEND DIRECTORY`. Prints facts as JSON."""

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = sys.argv[1]
ZOO = str(Path(__file__).parent / "zoo")
directory = Path(sys.argv[2])
facts: dict[str, Any] = {"directory": str(directory)}


def run(name: str, task: str, model: str, **flags: Any) -> dict[str, Any]:
    """Run the program with these flags, and note its exit status and what it printed."""
    from trainmaster.zoo.__main__ import main

    flags = {"model_zoo": ZOO, "model_def": model, "minibatch_size": 16, **flags}
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([task, *(part for key, value in flags.items() for part in (f"--{key}", str(value)))])
    facts[name] = {"status": status, "out": out.getvalue().splitlines(), "err": err.getvalue().splitlines()}
    return facts[name]


def write_data() -> None:
    flowers = [(number % 7, number % 5, number % 3, number % 2, number % 3) for number in range(150)]
    lines = ["a,b,c,d,class", *(",".join(map(str, flower)) for flower in flowers)]
    (directory / "iris.csv").write_text("\n".join(lines) + "\n")
    people = directory / "people"
    people.mkdir()
    for part in range(3):
        rows = [{"age": 20 + number, "pay": part / 2, "rich": number % 2} for number in range(10 + part)]
        (people / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def wide() -> None:
    """A subclassed model of several inputs and outputs; its callbacks; a reader of its own."""
    people, model = directory / "people", "models.keras_wide.custom_model"
    run("wide", "train", model, training_data=people, validation_data=people, num_epochs=3, log_loss_steps=1,
        output=directory / "wide", checkpoint_dir=directory / "wide-checkpoints")  # fmt: skip
    from models import keras_wide

    facts["callbacks"] = list(keras_wide.Tell.calls)
    starts = {"checkpoint": directory / "wide-checkpoints", "export": directory / "wide"}
    starts["weights"] = directory / "wide" / "model.keras"
    for name, start in starts.items():
        run(f"evaluate from {name}", "evaluate", model, validation_data=people, checkpoint_dir_for_init=start)
    cut = directory / "cut.keras"
    cut.write_bytes(starts["weights"].read_bytes()[:1000])
    run("cut short", "evaluate", model, validation_data=people, checkpoint_dir_for_init=cut)
    run("predict", "predict", model, prediction_data=people, checkpoint_dir_for_init=starts["export"],
        output=directory / "predictions")  # fmt: skip
    facts["processed"] = list(keras_wide.PredictionOutputsProcessor.seen)
    facts["predictions"] = {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted((directory / "predictions").iterdir())
    }
    run("wrong loss", "train", model, training_data=people, loss="wrong_loss")
    if os.environ["KERAS_BACKEND"] == "tensorflow":
        run("repeats", "train", model, training_data=people, feed="repeating_feed")
        run(
            "caches",
            "train",
            model,
            training_data=people,
            feed="caching_feed",
            minibatch_size=1,
            callbacks="no_callbacks",
        )
    run("custom", "train", model, training_data="somewhere", custom_data_reader="own_reader",
        data_reader_params="fails=False", checkpoint_dir=directory / "custom", callbacks="no_callbacks", num_epochs=2)  # fmt: skip
    run("custom again", "train", model, training_data="somewhere", custom_data_reader="own_reader",
        checkpoint_dir=directory / "custom", callbacks="no_callbacks", num_epochs=2)  # fmt: skip
    keras_wide.EXPORTED.append(str(directory / "by-callback"))
    run("export by callback", "train", model, training_data=people)
    facts["exported by callback"] = sorted(path.name for path in (directory / "by-callback").iterdir())


def iris() -> None:
    """A functional model of records of CSV. Its exports give what the model gives, in plain Keras and TensorFlow."""
    csv, model = directory / "iris.csv", "models.keras_iris.custom_model"
    run("iris", "train", model, training_data=csv, num_epochs=2, output=directory / "iris", max_step=7, checkpoint_steps=5,
        checkpoint_dir=directory / "iris-checkpoints", model_params="units=5")  # fmt: skip
    for name, epochs in (("patience", 3), ("patience again", 5)):
        run(name, "train", model, training_data=csv, num_epochs=epochs, callbacks="plateau_callbacks",
            checkpoint_dir=directory / "patience")  # fmt: skip
    run("predict iris", "predict", model, prediction_data=csv, checkpoint_dir_for_init=directory / "iris",
        output=directory / "iris-predictions", model_params="units=5")  # fmt: skip
    run("another model", "predict", model, prediction_data=csv, checkpoint_dir_for_init=directory / "iris-checkpoints",
        output=directory / "none", model_params="units=6")  # fmt: skip
    run("parameter server", "train", model, training_data=csv, distribution_strategy="ParameterServerStrategy")
    run("no data", "train", model, training_data=directory / "nothing")
    run("bad record", "train", model, training_data=bad_records())
    import keras
    import numpy
    import tensorflow as tf

    features = numpy.array([[number % 7, number % 5, number % 3, number % 2] for number in range(150)], "f4")
    written = [
        json.loads(line) for line in (directory / "iris-predictions" / "shard-00000000.jsonl").read_text().splitlines()
    ]
    loaded = keras.saving.load_model(directory / "iris" / "model.keras")
    saved = tf.saved_model.load(str(directory / "iris" / "saved_model"))
    others = [loaded.predict(features, verbose=0), saved.serve(features).numpy()]
    facts["exported"] = sorted(os.listdir(directory / "iris" / "saved_model"))
    facts["differences"] = [float(abs(other - numpy.array(written)).max()) for other in others]


def ids() -> None:
    """Ids that an embedding has no row for, in the first batch and in a later one; Keras's own counts negative ones from its end."""
    for kind, record, wrong in (("keras", 0, 99), ("keras", 150, 99), ("keras", 150, -3), ("tables", 150, -3)):
        lines = [f"{wrong if number == record else number % 13},14,30,1" for number in range(160)]
        csv = directory / "ids.csv"
        csv.write_text("\n".join(["a,b,c,label", *lines]) + "\n")
        flags = {"training_data": csv, "minibatch_size": 40, "model_params": f"kind='{kind}'"}
        run(f"id {wrong} of record {record}, {kind}", "train", "clicks.keras_clicks.custom_model", **flags)


def bad_records() -> Path:
    path = directory / "bad.csv"
    path.write_text("a,b,c,d,class\n1,2,3,4,0\n1,2,3\n")
    return path


if __name__ == "__main__":
    write_data()
    wide()
    if os.environ["KERAS_BACKEND"] == "tensorflow":
        iris()
    ids()
    print(json.dumps(facts))
