"""TensorFlowOnSpark's names, as `trainmaster.spark` has them.

As with the original, importing the package shows log messages of the level INFO: programs report their progress by `logging.info`.
"""

import logging

import trainmaster.spark.alias  # noqa: F401

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s (%(threadName)s-%(process)d) %(message)s")
logging.getLogger("py4j").setLevel(logging.WARNING)  # it has a line for each call between Spark and a job
# py4j reports connections that it opens again by the root logger, each with a traceback.
logging.getLogger().addFilter(lambda record: record.levelno > logging.INFO or "py4j" not in record.pathname)

__version__ = "2.2.5"  # the version of TensorFlowOnSpark that has these names
