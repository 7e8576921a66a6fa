"""Train on handwritten digits as they come, in the form of TensorFlowOnSpark's mnist_spark_streaming.py.

    python examples/digits/data.py
    spark-submit --master ... examples/digits-tensorflowonspark/mnist_streaming.py --cluster_size 2 --stream_dir /shared/new
    cp examples/digits/data/train/*.csv /shared/new/             # whenever there are some
    python examples/digits-tensorflowonspark/stop_streaming.py HOST PORT

The executors' Python has TensorFlow. Each node trains on its part, and the chief saves its model. HOST and PORT are printed.
"""


def main_fun(args, ctx):
    import os

    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(args.learning_rate), loss)

    feed, steps, last = ctx.get_data_feed(), 0, 0.0
    while not feed.should_stop():
        batch = feed.next_batch(args.batch_size)
        if batch:
            images, labels = (np.array(column) for column in zip(*batch, strict=True))
            last, steps = float(model.train_on_batch(images, labels)), steps + 1
    print(f"{ctx.job_name}:{ctx.task_index} made {steps} steps, loss {last:.4f}", flush=True)
    if ctx.job_name == "chief":
        model.save(f"{args.model_dir}/digits.keras")


if __name__ == "__main__":
    import argparse

    from pyspark.conf import SparkConf
    from pyspark.context import SparkContext
    from pyspark.streaming import StreamingContext

    from trainmaster.spark import TFCluster

    sc = SparkContext(conf=SparkConf().setAppName("mnist_streaming"))
    executors = sc.getConf().get("spark.executor.instances")
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_interval", help="seconds between two batches of the stream", type=float, default=10)
    parser.add_argument("--batch_size", help="number of records per batch", type=int, default=64)
    parser.add_argument("--cluster_size", help="number of nodes in the cluster", type=int, default=int(executors or 1))
    parser.add_argument("--learning_rate", help="learning rate", type=float, default=2e-3)
    parser.add_argument("--model_dir", help="where the chief saves its model", default="/tmp")
    parser.add_argument("--stream_dir", help="the directory that new files of digits come to", required=True)
    args = parser.parse_args()

    def parse(line):
        label, *pixels = line.split(",")
        return [float(pixel) / 16 for pixel in pixels], int(label)

    ssc = StreamingContext(sc, args.batch_interval)
    stream = ssc.textFileStream(f"file://{args.stream_dir}").map(parse)

    cluster = TFCluster.run(
        sc, main_fun, args, args.cluster_size, num_ps=0, input_mode=TFCluster.InputMode.SPARK, master_node="chief"
    )
    print("to stop: stop_streaming.py {} {}".format(*cluster.cluster_meta["server_addr"]), flush=True)
    cluster.train(stream)
    ssc.start()
    cluster.shutdown(ssc)
