"""The REST interface under /api/v1: JSON, newline-delimited JSON and server-sent events, for the commands, pages and programs.

`routes` is the table of its endpoints. Each request is authorized, its path, parameters and body are checked by the row of its route
(`app`), and one function answers it (`reads`, `logs`, `actions`, `prometheus`). The description (`openapi`) is made from the same
table and the same classes (`requests`, `answers`). A request that changes something is a POST. A stream goes on until the job has ended or
the reader leaves.
"""

from trainmaster.web.rest.app import application, rest

__all__ = ["application", "rest"]
