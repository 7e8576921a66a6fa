"""One attempt of a task: its directory, its program, its end."""
