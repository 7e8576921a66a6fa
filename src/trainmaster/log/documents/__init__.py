"""Documents: the small files of ours, and those that a job's directory has."""
