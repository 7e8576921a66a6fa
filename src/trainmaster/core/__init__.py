"""The pure core: what a job is, what happened to it, what to do next. No clock, socket, file or thread."""
