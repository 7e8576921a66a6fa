"""The package `tensorflowonspark` for programs that cannot change their imports.

It is on nobody's path: a user puts this directory on it, for the driver alone.

    PYTHONPATH=$(python -m trainmaster.spark.alias) spark-submit train.py

Functions that such a driver sends to nodes find the same names there. Where the original is installed too, the directory comes first.
"""
