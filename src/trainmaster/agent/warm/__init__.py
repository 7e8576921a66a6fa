"""Warm restarts: the next attempt of a program begins with its heavy imports done.

Beside a running program the agent holds a *template*: the same interpreter, begun with the same command, directory, limits and environment,
which stops before the program's first line, imports what the program imports from its site-packages, and waits. The next attempt is a fork
of it. `inside` is the code that runs in the template; it uses the standard library alone. `programs` says which programs can have one,
`template` is the agent's side of one template, and `keeper` decides when there is one and when it is used.

Whatever does not fit starts cold, as a first attempt does. The agent's log says why.
"""
