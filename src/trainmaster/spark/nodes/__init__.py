"""A function of the driver as the program of a job: the driver ships it, and each task calls it with TensorFlowOnSpark's context."""
