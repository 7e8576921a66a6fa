"""The Python API, and what the command line is made of: describe a job, submit it, watch it, read it.

`api` is for users, and all of it is in `trainmaster` itself; the rest serves the commands.
"""
