"""`trainmaster.elasticdl.preprocessing` itself, also by the names of the modules that its layers had of their own."""

import sys

from trainmaster.elasticdl import preprocessing

_MODULES = """
    concatenate_with_offset discretization hashing index_lookup log_round normalizer round_identity sparse_embedding to_number to_ragged
    to_sparse
"""
for _name in _MODULES.split():
    sys.modules[f"{__name__}.{_name}"] = preprocessing
sys.modules[__name__] = preprocessing
