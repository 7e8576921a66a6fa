"""The logger that ElasticDL's programs print with: to standard error, from INFO on."""

import logging


def get_logger(
    name: str, level: int | str = "INFO", handlers: list[logging.Handler] | None = None, update: bool = False
) -> logging.Logger:
    """Return the logger of a name. `handlers`: those that it begins with, or with `update` has from now on; None: standard error."""
    logger = logging.getLogger(name)
    if update or not logger.handlers:
        logger.setLevel(level)
        logger.handlers = handlers or [logging.StreamHandler()]
        logger.propagate = False
    return logger


default_logger = get_logger("elasticdl")
