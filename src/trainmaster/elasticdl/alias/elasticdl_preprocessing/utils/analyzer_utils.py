"""The statistics of a feature, which variables of the environment may have; else the default that the caller gives."""

import os
from collections.abc import Callable
from typing import Any

from ..constants import AnalysisEnvTemplate


def _read(template: str, feature_name: str, default_value: Any, parse: Callable[[str], Any]) -> Any:
    text = os.environ.get(template.format(feature_name))
    return default_value if text is None else parse(text)


def get_min(feature_name: str, default_value: float) -> float:
    return float(_read(AnalysisEnvTemplate.MIN_ENV, feature_name, default_value, float))


def get_max(feature_name: str, default_value: float) -> float:
    return float(_read(AnalysisEnvTemplate.MAX_ENV, feature_name, default_value, float))


def get_avg(feature_name: str, default_value: float) -> float:
    return float(_read(AnalysisEnvTemplate.AVG_ENV, feature_name, default_value, float))


def get_stddev(feature_name: str, default_value: float) -> float:
    return float(_read(AnalysisEnvTemplate.STDDEV_ENV, feature_name, default_value, float))


def get_bucket_boundaries(feature_name: str, default_value: list[float]) -> list[float]:
    """Return the boundaries, ascending, each once."""

    def parse(text: str) -> list[float]:
        return sorted(set(map(float, text.split(","))))

    boundaries: list[float] = _read(AnalysisEnvTemplate.BUCKET_BOUNDARIES_ENV, feature_name, default_value, parse)
    return boundaries


def get_distinct_count(feature_name: str, default_value: int) -> int:
    return int(_read(AnalysisEnvTemplate.DISTINCT_COUNT_ENV, feature_name, default_value, int))


def get_vocabulary(feature_name: str, default_value: list[str] | str) -> list[str] | str:
    """Return a list of words, or the path of a file of words."""
    vocabulary: list[str] | str = _read(AnalysisEnvTemplate.VOCABULARY_ENV, feature_name, default_value, str)
    return vocabulary
