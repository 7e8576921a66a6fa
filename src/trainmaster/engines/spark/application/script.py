"""Begin the driver of a job's own application: spark-submit runs this very file, on the driver's Python, with the job's id.

The runtime archive in the same directory has all that the driver needs beyond pyspark.
"""

import os
import shutil
import sys

OLDEST = (3, 11)


def main() -> None:
    if sys.version_info < OLDEST:
        version = "{}.{}".format(*sys.version_info)
        sys.exit(
            f"error: the driver's Python, {sys.executable}, is {version}, and 3.11 is the oldest that will do: set PYSPARK_DRIVER_PYTHON"
        )
    shutil.unpack_archive("runtime.tar.gz", "runtime")
    sys.path.insert(1, os.path.abspath("runtime/lib"))
    from trainmaster.engines.spark.application.driver import run

    sys.exit(run(*sys.argv[1:]))


if __name__ == "__main__":
    main()
