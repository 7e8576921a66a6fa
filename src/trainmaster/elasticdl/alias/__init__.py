"""The packages `elasticai_api`, `elasticdl_preprocessing` and `elasticdl` for programs that cannot change their imports.

A job with the variable TRAINMASTER_ALIAS=elasticdl appends this directory to the path of its programs. `python -m` this package
prints it. An ElasticDL that is installed comes after it: its client would look for ElasticDL's own master. `elasticdl` has the names that
programs and model files import.
"""

from ...runtime.aliases import serve

# Name -> the module below `trainmaster`.
_PLACES = {
    "elasticai_api.common.constants": "elasticdl.model_files",
    "elasticai_api.common.data_shard_service": "elasticdl.data_shards",
    "elasticai_api.common.master_client": "elasticdl.data_shards",
    "elasticai_api.common.synchronization": "elasticdl.synchronization",
    "elasticai_api.io.recordio_reader": "elasticdl.recordio_reader",
    "elasticai_api.proto.elasticai_api_pb2": "elasticdl.data_shards",
    "elasticai_api.pytorch.DDP_controller": "elasticdl.torch_controller",
    "elasticai_api.pytorch.controller": "elasticdl.torch_controller",
    "elasticai_api.pytorch.dataset": "elasticdl.torch_dataset",
    "elasticai_api.pytorch.optimizer": "elasticdl.torch_optimizer",
    "elasticai_api.tensorflow.controller": "elasticdl.keras_controller",
    "elasticai_api.tensorflow.hooks": "elasticdl.estimator_hooks",
    "elasticai_api.tensorflow.optimizer": "elasticdl.keras_controller",
    "elasticai_api.util.log_utils": "elasticdl.logger",
    "elasticdl.python.common.constants": "elasticdl.model_files",
    "elasticdl.python.common.log_utils": "elasticdl.logger",
    "elasticdl.python.data.odps_io": "elasticdl.readers",
    "elasticdl.python.data.reader.data_reader": "elasticdl.readers",
    "elasticdl.python.data.reader.data_reader_factory": "elasticdl.readers",
    "elasticdl.python.data.reader.odps_reader": "elasticdl.readers",
    "elasticdl.python.data.reader.recordio_reader": "elasticdl.readers",
    "elasticdl.python.data.reader.text_reader": "elasticdl.readers",
    "elasticdl.python.elasticdl.callbacks": "zoo.callbacks",
    "elasticdl.python.elasticdl.feature_column.feature_column": "elasticdl.feature_columns",
    "elasticdl.python.elasticdl.layers.embedding": "zoo.embeddings.keras_layer",
    "elasticdl.python.worker.prediction_outputs_processor": "elasticdl.model_files",
    "elasticdl_preprocessing.constants": "elasticdl.model_files",
    "elasticdl_preprocessing.feature_column.feature_column": "elasticdl.feature_columns",
    "elasticdl_preprocessing.layers": "elasticdl.preprocessing",
    "elasticdl_preprocessing.utils.analyzer_utils": "elasticdl.model_files",
    "elasticdl_preprocessing.utils.decorators": "elasticdl.model_files",
}
# Layers that had modules of their own.
_LAYERS = (
    "concatenate_with_offset", "discretization", "hashing", "index_lookup", "log_round", "normalizer", "round_identity", "sparse_embedding",
    "to_number", "to_ragged", "to_sparse",
)  # fmt: skip
_PLACES |= {f"elasticdl_preprocessing.layers.{name}": "elasticdl.preprocessing" for name in _LAYERS}
serve({name: f"trainmaster.{place}" for name, place in _PLACES.items()})
