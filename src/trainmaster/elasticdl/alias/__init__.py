"""The packages `elasticai_api`, `elasticdl_preprocessing` and `elasticdl` for programs that cannot change their imports.

A job with the variable TRAINMASTER_ALIAS=elasticdl appends this directory to the path of its programs. `python -m` this package
prints it. The three packages have no module `__init__` (PEP 420), so an ElasticDL that is installed has priority. `elasticdl` has
the names that programs and model files import.
"""
