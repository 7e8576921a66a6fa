"""Train on handwritten digits and apply the model by Spark ML, in the form of TensorFlowOnSpark's keras/mnist_pipeline.py.

    python examples/digits/data.py
    spark-submit --master ... examples/digits-tensorflowonspark/mnist_pipeline.py --cluster_size 2 --mode train
    spark-submit --master ... examples/digits-tensorflowonspark/mnist_pipeline.py --mode inference

The executors' Python has TensorFlow. Spark reads the digits and feeds them; each node trains on its part, and the chief saves its model.
"""


def main_fun(args, ctx):
    import os

    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras
    import numpy as np

    from trainmaster.spark import TFNode, compat

    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10, name="prediction")]
    model = keras.Sequential([keras.Input((64,), name="image"), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(args.learning_rate), loss)

    feed = TFNode.DataFeed(ctx.mgr, input_mapping=args.input_mapping)
    losses = []
    while not feed.should_stop():
        batch = feed.next_batch(args.batch_size)
        if len(batch["label"]) > 0:
            images = np.array(batch["image"], "float32") / 16
            losses.append(float(model.train_on_batch(images, np.array(batch["label"]))))
    print(f"{ctx.job_name}:{ctx.task_index} made {len(losses)} steps, loss {losses[-1]:.4f}", flush=True)
    compat.export_saved_model(model, args.export_dir, ctx.job_name == "chief")


if __name__ == "__main__":
    import argparse
    from pathlib import Path

    from pyspark.sql import SparkSession

    from trainmaster.spark.pipeline import TFEstimator, TFModel

    spark = SparkSession.builder.appName("mnist_pipeline").getOrCreate()
    sc = spark.sparkContext
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", help="number of records per batch", type=int, default=64)
    parser.add_argument("--cluster_size", help="number of nodes in the cluster", type=int, default=1)
    parser.add_argument("--data_dir", help="the digits", default=str(Path(__file__).parents[1] / "digits" / "data"))
    parser.add_argument("--epochs", help="number of epochs", type=int, default=10)
    parser.add_argument("--export_dir", help="path to export saved_model", default="mnist_export")
    parser.add_argument("--learning_rate", help="learning rate", type=float, default=2e-3)
    parser.add_argument("--mode", help="train|inference", choices=["train", "inference"], default="train")
    args = parser.parse_args()
    print("args:", args)

    def parse(line):
        numbers = [float(number) for number in line.split(",")]
        return numbers[1:], int(numbers[0])

    part = "train" if args.mode == "train" else "test"
    df = spark.createDataFrame(sc.textFile(f"file://{args.data_dir}/{part}/*.csv").map(parse), ["image", "label"])

    if args.mode == "train":
        estimator = TFEstimator(main_fun, args)
        estimator.setInputMapping({"image": "image", "label": "label"}).setExportDir(args.export_dir)
        estimator.setClusterSize(args.cluster_size).setEpochs(args.epochs).setBatchSize(args.batch_size)
        model = estimator.fit(df)
    else:
        scaled = df.rdd.map(lambda row: ([pixel / 16 for pixel in row.image],)).toDF(["image"])
        model = TFModel(args).setInputMapping({"image": "image"}).setOutputMapping({"output_0": "prediction"})
        model.setSignatureDefKey("serving_default").setExportDir(args.export_dir).setBatchSize(args.batch_size)
        digits = model.transform(scaled).rdd.map(lambda row: max(range(10), key=lambda digit: row.prediction[digit]))
        labels = df.rdd.map(lambda row: row.label)
        right = sum(digit == label for digit, label in zip(digits.collect(), labels.collect(), strict=True))
        print(f"{right / labels.count():.4f} of the held-out digits are read rightly")
    spark.stop()
