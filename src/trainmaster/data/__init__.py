"""Data of a job: inputs listed and staged, records streamed, outputs committed, checkpoints saved and put back."""
