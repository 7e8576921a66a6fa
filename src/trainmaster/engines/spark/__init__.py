"""Jobs inside a Spark application: the client side, the master side, and the bridge in the driver, which alone reaches the application."""

from __future__ import annotations

from trainmaster.engines.contract import Capabilities, Engine

ENGINE = Engine(
    "spark", client_side="trainmaster.engines.spark.client:SparkClient",
    container_side="trainmaster.engines.spark.container.entry", checks="trainmaster.engines.spark.doctor:findings",
    capabilities=Capabilities(
        application_id=r"(app|local|application)[-_][\w@-]+/.+",
        without_storage="there is no storage: of a failed attempt's log the last 256 KiB are kept after the job's end; for full logs set "
        "storage to a URL that the executors reach (hdfs://, s3://)",
    ),
)  # fmt: skip
