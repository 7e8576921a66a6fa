"""ElasticDL's own import paths, which a program finds in the directory that `python -m trainmaster.elasticdl.alias` prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainmaster.elasticdl import alias

PROGRAM = """
from elasticai_api.common.constants import WorkerEnv
from elasticai_api.common.data_shard_service import DataShardService, RecordIndexService, build_data_shard_service
from elasticai_api.common.master_client import build_master_client
from elasticai_api.common.synchronization import worker_sync
from elasticai_api.io.recordio_reader import RecordIOReader
from elasticai_api.proto import elasticai_api_pb2
from elasticai_api.util.log_utils import default_logger
from elasticdl.python.common.constants import Mode
from elasticdl.python.common.log_utils import default_logger as logger
from trainmaster.elasticdl import data_shards, recordio_reader, synchronization

assert (DataShardService, build_data_shard_service) == (data_shards.DataShardService, data_shards.build_data_shard_service)
assert (RecordIOReader, worker_sync) == (recordio_reader.RecordIOReader, synchronization.worker_sync)
assert default_logger is logger
service = RecordIndexService(
    master_client=build_master_client(), batch_size=4, num_epochs=1, dataset_size=8, task_type=elasticai_api_pb2.EVALUATION
)
logger.info("%s %s %s", [service.fetch_record_index() for _ in range(8)], Mode.TRAINING, WorkerEnv.WORKER_NUM)
"""


def test_programs_find_the_names_that_they_import() -> None:
    place = subprocess.run(
        [sys.executable, "-m", alias.__name__], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert place == str(Path(alias.__file__).parent)
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": place},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == "[0, 1, 2, 3, 4, 5, 6, 7] training WORKER_NUM\n"


FOLDER = """
import sys, types

class ImageFolder:  # the part of torchvision's that the folder of ElasticDL calls
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return index, f"image {index}"

sys.modules["torchvision"] = types.ModuleType("torchvision")
sys.modules["torchvision.datasets"] = types.ModuleType("torchvision.datasets")
sys.modules["torchvision.datasets"].ImageFolder = ImageFolder
from elasticai_api.common.data_shard_service import RecordIndexService
from elasticai_api.pytorch.dataset import ElasticImageFolder

folder = ElasticImageFolder()
assert (len(folder), folder[1]) == (3, (1, "image 1"))
folder.set_data_shard_service(RecordIndexService(batch_size=1, num_epochs=1, dataset_size=3))
assert [folder[0][0] for _ in range(3)] == [0, 1, 2]
assert len(folder) == sys.maxsize
"""


def test_a_folder_of_images_takes_its_records_from_a_service() -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(alias.__file__).parent)}
    subprocess.run([sys.executable, "-c", FOLDER], env=environ, check=True)


@pytest.mark.parametrize("package", ["elasticai_api", "elasticdl", "elasticdl_preprocessing"])
def test_an_installed_package_comes_after_it(tmp_path: Path, package: str) -> None:
    """Images of ElasticDL's users have it installed, and its client would wait for its own master."""
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("is_theirs = True\n")
    environ = {**os.environ, "PYTHONPATH": f"{Path(alias.__file__).parent}:{tmp_path}"}
    program = f"import {package}; assert not hasattr({package}, 'is_theirs')"
    subprocess.run([sys.executable, "-c", program], env=environ, check=True)


SPAWNED = """
import multiprocessing, pickle, sys
from elasticai_api.common import data_shard_service as own
from elasticai_api.common.data_shard_service import Shard
from elasticdl.python.data.reader import data_reader_factory, text_reader

def described(pickled):
    shard = pickle.loads(pickled)
    return f"{shard} {type(shard) is Shard} {type(shard).__module__}"

if __name__ == "__main__":
    assert text_reader.TextDataReader is data_reader_factory.TextDataReader
    assert own.__name__ == own.__spec__.name == "trainmaster.elasticdl.data_shards"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(described, [pickle.dumps(Shard("training", 0, 4, []))]))
"""


def test_a_spawned_process_has_the_same_classes(tmp_path: Path) -> None:
    program = tmp_path / "spawned.py"
    program.write_text(SPAWNED)
    environ = {**os.environ, "PYTHONPATH": str(Path(alias.__file__).parent)}
    result = subprocess.run([sys.executable, program], env=environ, capture_output=True, text=True, check=False)
    assert result.stdout == "<Shard training 0-4> True trainmaster.elasticdl.data_shards\n", result.stderr


def test_nothing_of_it_is_on_the_path_by_default() -> None:
    result = subprocess.run([sys.executable, "-c", "import elasticai_api"], capture_output=True, text=True, check=False)
    assert "No module named 'elasticai_api'" in result.stderr
