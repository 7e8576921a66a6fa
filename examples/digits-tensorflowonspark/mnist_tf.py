"""Train on handwritten digits inside a Spark application, in the form of TensorFlowOnSpark's keras/mnist_tf.py.

    python examples/digits/data.py
    spark-submit --master ... examples/digits-tensorflowonspark/mnist_tf.py --cluster_size 2

The executors' Python has TensorFlow, and every node reads the digits at --data_dir. The training loop is TensorFlow's own, since `fit` of
Keras 3 does not run under MultiWorkerMirroredStrategy.
"""


def main_fun(args, ctx):
    import os

    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import glob

    import keras
    import numpy as np
    import tensorflow as tf

    from trainmaster.spark import compat

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def read(name):
        files = sorted(glob.glob(f"{args.data_dir}/{name}/*.csv"))
        table = np.concatenate([np.loadtxt(path, delimiter=",", ndmin=2) for path in files])
        return (table[:, 1:] / 16).astype("float32"), table[:, 0].astype("int64")

    images, labels = read("train")
    options = tf.data.Options()
    compat.disable_auto_shard(options)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shard(ctx.num_workers, ctx.executor_id)
    dataset = dataset.repeat().shuffle(args.buffer_size, seed=0).batch(args.batch_size, drop_remainder=True)
    batches = iter(dataset.with_options(options))

    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10)]
        model = keras.Sequential([keras.Input((64,)), *layers])
        optimizer = keras.optimizers.Adam(args.learning_rate)
        optimizer.build(model.trainable_variables)

    def step(images, labels):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                labels, model(images, training=True), from_logits=True
            )
            loss = tf.reduce_sum(losses) / (args.batch_size * ctx.num_workers)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train(images, labels):
        return strategy.reduce("SUM", strategy.run(step, (images, labels)), axis=None)

    steps_per_epoch = len(images) // (args.batch_size * ctx.num_workers)
    for epoch in range(args.epochs):
        for _ in range(steps_per_epoch):
            loss = train(*next(batches))
        print(f"epoch {epoch + 1}: loss {loss:.4f}", flush=True)

    images, labels = read("test")
    accuracy = np.mean(model(images).numpy().argmax(1) == labels)
    print(f"{ctx.job_name}:{ctx.task_index} reads {accuracy:.4f} of the held-out digits rightly", flush=True)
    compat.export_saved_model(model, args.export_dir, ctx.job_name == "chief")


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
    parser.add_argument("--buffer_size", help="size of shuffle buffer", type=int, default=1000)
    parser.add_argument("--cluster_size", help="number of nodes in the cluster", type=int, default=int(executors or 1))
    parser.add_argument("--data_dir", help="the digits", default=str(Path(__file__).parents[1] / "digits" / "data"))
    parser.add_argument("--epochs", help="number of epochs", type=int, default=10)
    parser.add_argument("--export_dir", help="where the chief saves the model", default="mnist_export")
    parser.add_argument("--learning_rate", help="learning rate", type=float, default=2e-3)
    parser.add_argument("--tensorboard", help="launch tensorboard process", action="store_true")
    args = parser.parse_args()
    print("args:", args)

    cluster = TFCluster.run(
        sc, main_fun, args, args.cluster_size, num_ps=0, tensorboard=args.tensorboard,
        input_mode=TFCluster.InputMode.TENSORFLOW, master_node="chief",
    )  # fmt: skip
    cluster.shutdown()
