"""The constants that model files and programs read. Those of ElasticDL's own master are not here."""

from trainmaster.zoo.modes import Mode as Mode


class MaxComputeConfig:
    PROJECT_NAME = "MAXCOMPUTE_PROJECT"
    ACCESS_ID = "MAXCOMPUTE_AK"
    ACCESS_KEY = "MAXCOMPUTE_SK"
    ENDPOINT = "MAXCOMPUTE_ENDPOINT"
    TUNNEL_ENDPOINT = "MAXCOMPUTE_TUNNEL_ENDPOINT"


class JobType:
    TRAINING_ONLY = "training_only"
    EVALUATION_ONLY = "evaluation_only"
    PREDICTION_ONLY = "prediction_only"
    TRAINING_WITH_EVALUATION = "training_with_evaluation"


class MetricsDictKey:
    MODEL_OUTPUT = "output"
    LABEL = "label"


class SaveModelConfig:
    SAVED_MODEL_PATH = "saved_model_path"


class ReaderType:
    CSV_READER = "CSV"
    ODPS_READER = "ODPS"
    RECORDIO_READER = "RecordIO"


class Initializer:
    UNIFORM = "uniform"
