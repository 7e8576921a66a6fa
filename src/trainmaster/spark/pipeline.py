"""Spark ML's estimator and model of TensorFlow, with TensorFlowOnSpark's names. Importing this module imports pyspark.

    model = TFEstimator(main_fun, args).setInputMapping({"image": "image", "label": "label"}).setExportDir(place).fit(df)
    model.setInputMapping({"image": "input_1"}).setOutputMapping({"dense": "prediction"}).transform(df)

`fit` runs the function on a cluster (`TFCluster`), and the model is what the function has exported. `transform` loads that on the
executors, whose Python has TensorFlow. Estimator, model and pipelines of them can be saved and loaded: the function and its arguments are
pickled, so load nothing that you would not run.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable
from typing import Any

from pyspark import SparkContext, cloudpickle
from pyspark.ml import Estimator, Model
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StructField,
    StructType,
)

from trainmaster.core.errors import BadInput
from trainmaster.spark import TFCluster, dfutil, serving
from trainmaster.spark.serving import Namespace, Serving

cloudpickle.register_pickle_by_value(serving)

SIGNATURE = "serving_default"  # where no other one is named
_ERROR = "spark-pipeline"
_SCHEMA = {
    "bool": BooleanType(),
    "string": BinaryType(),
}  # by TensorFlow's types; else floats are double, whole numbers bigint


class TFTypeConverters:
    """Converters of params that Spark has not got."""

    @staticmethod
    def toDict(value: Any) -> dict[Any, Any]:
        """Return a dictionary as it is. Raises TypeError for anything else."""
        if type(value) is not dict:
            raise TypeError(f"Could not convert {value!r} to dict")
        return value


def _has(title: str, name: str, text: str, convert: Callable[[Any], Any]) -> Any:
    """Return the class of params `Has{title}`: the param `name`, `set{title}` and `get{title}`."""

    def set_value(self: Any, value: Any) -> Any:
        return self._set(**{name: value})

    def get_value(self: Any) -> Any:
        return self.getOrDefault(name)

    param = Param(Params._dummy(), name, text, typeConverter=convert)
    content = {
        name: param,
        f"set{title}": set_value,
        f"get{title}": get_value,
        "__module__": __name__,
        "__doc__": f"{text}.",
    }
    return type(f"Has{title}", (Params,), content)


_INT, _TEXT, _BOOL = TypeConverters.toInt, TypeConverters.toString, TypeConverters.toBoolean
HasBatchSize: Any = _has("BatchSize", "batch_size", "Number of records per batch", _INT)
HasClusterSize: Any = _has("ClusterSize", "cluster_size", "Number of nodes in the cluster", _INT)
HasDriverPSNodes: Any = _has("DriverPSNodes", "driver_ps_nodes", "Run PS nodes on driver locally", _BOOL)
HasEpochs: Any = _has("Epochs", "epochs", "Number of epochs to train", _INT)
HasExportDir: Any = _has("ExportDir", "export_dir", "Directory to export saved_model", _TEXT)
HasGraceSecs: Any = _has("GraceSecs", "grace_secs", "Number of seconds to wait after feeding data", _INT)
HasInputMapping: Any = _has(
    "InputMapping", "input_mapping", "Mapping of input DataFrame column to input tensor", TFTypeConverters.toDict
)
HasInputMode: Any = _has("InputMode", "input_mode", "Input data feeding mode (0=TENSORFLOW, 1=SPARK)", _INT)
HasMasterNode: Any = _has("MasterNode", "master_node", "Job name of master/chief worker node", _TEXT)
HasModelDir: Any = _has("ModelDir", "model_dir", "Path to save/load model checkpoints", _TEXT)
HasOutputMapping: Any = _has(
    "OutputMapping", "output_mapping", "Mapping of output tensor to output DataFrame column", TFTypeConverters.toDict
)
HasProtocol: Any = _has("Protocol", "protocol", "Network protocol for Tensorflow (grpc|rdma)", _TEXT)
HasReaders: Any = _has("Readers", "readers", "number of reader/enqueue threads", _INT)
HasSignatureDefKey: Any = _has(
    "SignatureDefKey", "signature_def_key", "Identifier for a specific saved_model signature", _TEXT
)
HasSteps: Any = _has("Steps", "steps", "Maximum number of steps to train", _INT)
HasTagSet: Any = _has("TagSet", "tag_set", "Comma-delimited list of tags identifying a saved_model metagraph", _TEXT)
HasTensorboard: Any = _has("Tensorboard", "tensorboard", "Launch tensorboard process", _BOOL)
HasTFRecordDir: Any = _has(
    "TFRecordDir",
    "tfrecord_dir",
    "Path to temporarily export a DataFrame as TFRecords (for InputMode.TENSORFLOW apps)",
    _TEXT,
)


_NumPS: Any = _has("NumPS", "num_ps", "Number of PS nodes in cluster", _INT)


class HasNumPS(_NumPS, HasDriverPSNodes):
    """Number of PS nodes in cluster, and where they run."""


class TFParams(Params):
    """Params beside a namespace of arguments, `args`."""

    args: Any = None

    def merge_args_params(self) -> Any:
        """Return a copy of the arguments, in which each param has its value."""
        merged = copy.copy(self.args)
        for param in self.params:
            setattr(merged, param.name, self.getOrDefault(param.name))
        return merged


class _Kept(MLWritable, MLReadable):
    """Saving and loading, by Spark's format of params; what the object was made of is pickled into it."""

    def _content(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def write(self) -> MLWriter:
        """Return a writer: `write().overwrite().save(path)`."""
        return _Writer(self)

    @classmethod
    def read(cls) -> MLReader:
        """Return a reader: `read().load(path)`."""
        return _Reader(cls)


class _Writer(MLWriter):
    def __init__(self, instance: Any) -> None:
        super().__init__()
        self._instance = instance

    def saveImpl(self, path: str) -> None:
        content = base64.b64encode(cloudpickle.dumps(self._instance._content())).decode()
        DefaultParamsWriter.saveMetadata(self._instance, path, self.sc, extraMetadata={"content": content})


class _Reader(MLReader):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self._kind = kind

    def load(self, path: str) -> Any:
        metadata = DefaultParamsReader.loadMetadata(path, self.sc)
        instance = self._kind(*cloudpickle.loads(base64.b64decode(metadata["content"])))
        instance._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(instance, metadata)
        return instance


class TFModel(
    Model, TFParams, HasInputMapping, HasOutputMapping, HasBatchSize, HasModelDir, HasExportDir, HasSignatureDefKey, HasTagSet, _Kept
):  # fmt: skip
    """A SavedModel in `export_dir`. `transform` gives a row of the output mapping's columns for each row, and those alone.

    Each executor's Python loads the model, and keeps it for later tasks.
    """

    def __init__(self, tf_args: Any) -> None:
        super().__init__()
        self.args = Namespace(tf_args)
        self._setDefault(
            input_mapping={}, output_mapping={}, batch_size=100, model_dir=None, export_dir=None, signature_def_key=None, tag_set=None
        )  # fmt: skip

    def _content(self) -> tuple[Any, ...]:
        return (self.args.argv or self.args,)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        """Raises BadInput where a param is missing, or names what the model has not got."""
        inputs, outputs = sorted(self.getInputMapping().items()), sorted(self.getOutputMapping().items())
        for name, value in (
            ("export_dir", self.getExportDir()),
            ("input_mapping", inputs),
            ("output_mapping", outputs),
        ):
            if not value:
                raise BadInput(f"transform needs {name}", place=name, mend=f"set it: {_setter(name)}", anchor=_ERROR)
        model = Serving(
            self.getExportDir(), self.getTagSet(), self.getSignatureDefKey() or SIGNATURE, [tensor for _, tensor in inputs],
            [tensor for tensor, _ in outputs], self.getBatchSize(), self.args.argv,
        )  # fmt: skip
        session = dataset.sparkSession
        [facts] = session.sparkContext.parallelize([0], 1).map(model.describe).collect()
        _check(model, facts)
        rows = dataset.select([column for column, _ in inputs]).rdd.mapPartitions(model)
        fields = [
            StructField(column, _data_type(tensor, *facts["outputs"][tensor]), nullable=False)
            for tensor, column in outputs
        ]
        return session.createDataFrame(rows, StructType(fields), verifySchema=False)


class TFEstimator(
    Estimator, TFParams, HasInputMapping, HasClusterSize, HasNumPS, HasInputMode, HasMasterNode, HasProtocol, HasGraceSecs,
    HasTensorboard, HasModelDir, HasExportDir, HasTFRecordDir, HasBatchSize, HasEpochs, HasReaders, HasSteps, _Kept,
):  # fmt: skip
    """Trains by `train_fn(args, ctx)` on a cluster. `args` are the arguments with all params, or a list that was given as arguments.

    `export_fn(args)` is called after that, on one executor. In InputMode.SPARK the columns of the input mapping are fed, in the order of
    their names. In InputMode.TENSORFLOW the function reads `args.tfrecord_dir`: the columns are saved there, or it is the directory that
    the DataFrame was loaded from.
    """

    def __init__(self, train_fn: Any, tf_args: Any, export_fn: Any = None) -> None:
        super().__init__()
        self.train_fn, self.export_fn, self.args = train_fn, export_fn, Namespace(tf_args)
        self._setDefault(
            input_mapping={}, cluster_size=1, num_ps=0, driver_ps_nodes=False, input_mode=TFCluster.InputMode.SPARK,
            master_node="chief", protocol="grpc", tensorboard=False, model_dir=None, export_dir=None, tfrecord_dir=None, batch_size=100,
            epochs=1, readers=1, steps=1000, grace_secs=30,
        )  # fmt: skip

    def _content(self) -> tuple[Any, ...]:
        return self.train_fn, self.args.argv or self.args, self.export_fn

    def _fit(self, dataset: DataFrame) -> TFModel:
        """Raises BadInput where a param is missing, and what `TFCluster` raises."""
        columns = sorted(self.getInputMapping())
        if not columns:
            raise BadInput(
                "fit needs input_mapping",
                place="input_mapping",
                mend=f"set it: {_setter('input_mapping')}",
                anchor=_ERROR,
            )
        context, mode = dataset.sparkSession.sparkContext, self.getInputMode()
        args = self.merge_args_params()
        if mode == TFCluster.InputMode.TENSORFLOW:
            args.tfrecord_dir = self._record_directory(dataset, columns)
        arguments = self.args.argv or args
        cluster = TFCluster.run(
            context, self.train_fn, arguments, args.cluster_size, args.num_ps, args.tensorboard, mode, master_node=args.master_node,
            driver_ps_nodes=args.driver_ps_nodes,
        )  # fmt: skip
        try:
            if mode == TFCluster.InputMode.SPARK:
                cluster.train(dataset.select(columns).rdd, args.epochs)
            cluster.shutdown(grace_secs=args.grace_secs)
        except BaseException:  # nobody else has the cluster
            cluster._job.kill()
            raise
        if self.export_fn is not None:
            _export(context, self.export_fn, arguments)
        model: TFModel = self._copyValues(TFModel(self.args))
        return model

    def _record_directory(self, dataset: DataFrame, columns: list[str]) -> str:
        if dfutil.isLoadedDF(dataset):
            return dfutil.loadedDF[dataset]
        if not (directory := self.getTFRecordDir()):
            raise BadInput(
                "fit needs tfrecord_dir in InputMode.TENSORFLOW", place="tfrecord_dir", mend=f"set it: {_setter('tfrecord_dir')}",
                anchor=_ERROR,
            )  # fmt: skip
        dfutil.saveAsTFRecords(dataset.select(columns), directory)
        return str(directory)


def _export(context: SparkContext, export_fn: Any, arguments: Any) -> None:
    def call(_: Any) -> None:
        export_fn(arguments)

    context.parallelize([0], 1).foreach(call)


def _setter(name: str) -> str:
    title = {"tfrecord_dir": "TFRecordDir"}.get(name) or name.title().replace("_", "")
    return f"set{title}(...)"


def _check(model: Serving, facts: dict[str, Any]) -> None:
    """Raise BadInput where the model lacks a name that the params have."""
    known: dict[str, tuple[list[str], Any]] = {"signature_def_key": ([model.signature], facts["signatures"])}
    if "inputs" in facts:
        known |= {
            "input_mapping": (list(model.inputs), facts["inputs"]),
            "output_mapping": (list(model.outputs), sorted(facts["outputs"])),
        }
    for param, (names, present) in known.items():
        for name in names:
            if name not in present:
                raise BadInput(
                    f"the model in {model.export_dir} has no {name!r}; it has {', '.join(present)}", place=f"{param}: {name}",
                    mend=f"name one of these: {_setter(param)}", anchor=_ERROR,
                )  # fmt: skip


def _data_type(tensor: str, dtype: str, rank: int | None) -> DataType:
    """Return the type of the column of an output whose tensor has `rank` axes, the first of which are the rows."""
    if not rank:
        raise BadInput(
            f"the output {tensor} has {'an unknown number of' if rank is None else 'no'} axes, and its first one must be the rows",
            place=f"output_mapping: {tensor}", mend="export a signature whose outputs have a shape", anchor=_ERROR,
        )  # fmt: skip
    kind: DataType = _SCHEMA.get(dtype) or (DoubleType() if "float" in dtype else LongType())
    for _ in range(rank - 1):
        kind = ArrayType(kind, containsNull=False)
    return kind
