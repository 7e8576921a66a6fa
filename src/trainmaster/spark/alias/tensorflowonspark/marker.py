"""The mark among the rows of a queue, as `trainmaster.spark.nodes.TFManager` has it."""

from trainmaster.spark.nodes.TFManager import EndPartition as EndPartition
