"""Train on handwritten digits that Spark feeds, in the form of TensorFlowOnSpark's keras/mnist_spark.py; then read held-out ones.

    python examples/digits/data.py
    spark-submit --master ... examples/digits-tensorflowonspark/mnist_spark.py --cluster_size 2

The executors' Python has TensorFlow; the digits are at --data_dir of the driver's machine, and of the executors'. The training loop is
TensorFlow's own, since `fit` of Keras 3 does not run under MultiWorkerMirroredStrategy.
"""


def build(args):
    import os

    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    optimizer = keras.optimizers.Adam(args.learning_rate)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def train_fun(args, ctx):
    import os

    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras
    import tensorflow as tf

    from trainmaster.spark import TFNode

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model, optimizer = build(args)

    def step(images, labels):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                labels, model(images, training=True), from_logits=True
            )
            loss = tf.reduce_sum(losses) / (args.batch_size * ctx.num_workers)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function
    def train(images, labels):
        strategy.run(step, (images, labels))

    feed = TFNode.DataFeed(ctx.mgr, False)

    def rows():
        while not feed.should_stop():
            yield from feed.next_batch(1)

    row = tf.TensorSpec((64,), tf.float32), tf.TensorSpec((), tf.int64)
    batches = tf.data.Dataset.from_generator(rows, output_signature=row).batch(args.batch_size)
    steps = int(0.9 * args.rows * args.epochs / args.batch_size / ctx.num_workers)
    for images, labels in batches.take(steps):
        train(images, labels)
    if ctx.job_name == "chief":
        model.save_weights(f"{args.model_dir}/digits.weights.h5")
    feed.terminate()


def inference_fun(args, ctx):
    import numpy as np

    model, _ = build(args)
    model.load_weights(f"{args.model_dir}/digits.weights.h5")
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        batch = feed.next_batch(args.batch_size)
        if batch:
            images, labels = (np.array(column) for column in zip(*batch, strict=True))
            feed.batch_results(
                [(int(label), int(digit)) for label, digit in zip(labels, model(images).numpy().argmax(1), strict=True)]
            )


if __name__ == "__main__":
    import argparse
    from pathlib import Path

    from pyspark.conf import SparkConf
    from pyspark.context import SparkContext

    from trainmaster.spark import TFCluster

    sc = SparkContext(conf=SparkConf().setAppName("mnist_keras"))
    executors = sc.getConf().get("spark.executor.instances")
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", help="number of records per batch", type=int, default=64)
    parser.add_argument("--cluster_size", help="number of nodes in the cluster", type=int, default=int(executors or 1))
    parser.add_argument("--data_dir", help="the digits", default=str(Path(__file__).parents[1] / "digits" / "data"))
    parser.add_argument("--epochs", help="number of epochs", type=int, default=10)
    parser.add_argument("--learning_rate", help="learning rate", type=float, default=2e-3)
    parser.add_argument("--model_dir", help="where the chief saves the weights; all nodes see it", default="/tmp")
    args = parser.parse_args()

    def parse(line):
        label, *pixels = line.split(",")
        return [float(pixel) / 16 for pixel in pixels], int(label)

    def rows(name):
        return sc.textFile(f"file://{args.data_dir}/{name}", 4).map(parse)

    args.rows = rows("train").count()
    cluster = TFCluster.run(
        sc, train_fun, args, args.cluster_size, num_ps=0, input_mode=TFCluster.InputMode.SPARK, master_node="chief"
    )
    cluster.train(rows("train"), args.epochs)
    cluster.shutdown()

    cluster = TFCluster.run(sc, inference_fun, args, args.cluster_size, num_ps=0, input_mode=TFCluster.InputMode.SPARK)
    results = cluster.inference(rows("test")).collect()
    cluster.shutdown()
    right = sum(label == digit for label, digit in results) / len(results)
    print(f"{right:.4f} of the {len(results)} held-out digits are read rightly")
