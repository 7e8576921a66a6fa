"""ElasticDL's names, as `trainmaster.elasticdl` has them."""
