"""TensorFlowOnSpark's names, as `trainmaster.spark` has them."""
