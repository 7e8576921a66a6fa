"""The package `tensorflowonspark` for programs that cannot change their imports.

It is on nobody's path: a user puts this directory on it, for the driver alone.

    PYTHONPATH=$(python -m trainmaster.spark.alias) spark-submit train.py

Functions that such a driver sends to nodes find the same names there. Where the original is installed too, the directory comes first.
"""

from trainmaster.runtime.aliases import serve

_PLACES = (
    "spark.TFCluster", "spark.TFNode", "spark.TFParallel", "spark.compat", "spark.dfutil", "spark.gpu_info", "spark.nodes.TFManager",
    "spark.nodes.TFSparkNode", "spark.pipeline", "spark.reservation",
)  # fmt: skip
MODULES = {f"tensorflowonspark.{place.rpartition('.')[2]}": f"trainmaster.{place}" for place in _PLACES}
MODULES["tensorflowonspark.marker"] = "trainmaster.spark.nodes.TFManager"
serve(MODULES)
