"""The job as its user describes it: the model, how it is read and written, quantities, secrets."""
