"""Functions of TensorFlowOnSpark's `util`, from the modules of ours that have them."""

from trainmaster.spark.nodes.gpus import single_node_env as single_node_env
from trainmaster.spark.reservation import ip_address as get_ip_address

__all__ = ["get_ip_address", "single_node_env"]
