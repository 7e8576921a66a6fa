"""The logger that ElasticDL's programs print with: to standard error, from INFO on."""

import logging

default_logger = logging.getLogger("elasticdl")
default_logger.setLevel(logging.INFO)
if not default_logger.handlers:
    default_logger.addHandler(logging.StreamHandler())
