"""The packages `elasticai_api`, `elasticdl_preprocessing` and `elasticdl` for programs that cannot change their imports.

A job with the variable TRAINMASTER_ALIAS=elasticdl appends this directory to the path of its programs. `python -m` this package
prints it. An ElasticDL that is installed comes after it: its client would look for ElasticDL's own master. `elasticdl` has the names that
programs and model files import.
"""
