"""ElasticDL's package of this name: see `trainmaster.elasticdl.alias`, which has its modules."""

import trainmaster.elasticdl.alias  # noqa: F401
