"""The optimizers of Keras and PyTorch as parameter servers have them."""

from __future__ import annotations

from typing import Any

from ..errors import BadModel

KNOWN = "SGD (with momentum, too), Adam, AdamW, Adagrad and, of Keras, Ftrl; of PyTorch SparseAdam"
_MEND = f"parameter servers have {KNOWN}"


def of_keras(optimizer: Any, rate: float) -> tuple[dict[str, Any], float | None]:
    """Return the optimizer as servers have it, and the largest norm of all gradients together. Raises BadModel."""
    kind, config = type(optimizer).__name__, optimizer.get_config()
    _refuse_all(
        kind,
        {name: config.get(name) for name in ("clipnorm", "clipvalue", "use_ema", "loss_scale_factor",
                                             "gradient_accumulation_steps", "amsgrad", "centered")},
        "clip by global_clipnorm" if config.get("clipnorm") or config.get("clipvalue") else "leave that out",
    )  # fmt: skip
    decay = config.get("weight_decay") or 0.0
    plain: dict[str, Any]
    if kind == "SGD":
        plain = {"name": "SGD", "momentum": config["momentum"], "nesterov": config["nesterov"]}
    elif kind in ("Adam", "AdamW"):
        plain = {"name": "Adam", "weight_decay": decay, **_same(config, "beta_1", "beta_2", "epsilon")}
        decay = 0.0
    elif kind == "Adagrad":
        plain = {
            "name": "Adagrad",
            "initial_accumulator": config["initial_accumulator_value"],
            "epsilon": config["epsilon"],
        }
    elif kind == "Ftrl":
        plain = {
            "name": "FTRL", "learning_rate_power": config["learning_rate_power"],
            "initial_accumulator": config["initial_accumulator_value"], "l1": config["l1_regularization_strength"],
            "l2": config["l2_regularization_strength"], "l2_shrinkage": config["l2_shrinkage_regularization_strength"],
            "beta": config["beta"],
        }  # fmt: skip
    else:
        raise BadModel(f"parameter servers have no optimizer {kind}", mend=_MEND)
    _refuse_all(kind, {"weight_decay": decay}, "use AdamW")
    return {**plain, "learning_rate": rate}, config.get("global_clipnorm")


def of_torch(optimizer: Any) -> dict[str, Any]:
    """Return the optimizer as servers have it. Raises BadModel."""
    kind, (group, *others) = type(optimizer).__name__, optimizer.param_groups
    settings = {name: value for name, value in group.items() if name != "params"}
    if any({name: value for name, value in other.items() if name != "params"} != settings for other in others):
        raise BadModel(f"the groups of {kind} have other settings", mend="give all parameters the same")
    _refuse_all(
        kind, {name: group.get(name) for name in ("amsgrad", "maximize", "dampening", "lr_decay")}, "leave that out"
    )
    decay = group.get("weight_decay") or 0.0
    plain: dict[str, Any] = {"learning_rate": float(group["lr"]), "convention": "torch"}
    if kind == "SGD":
        plain |= {"name": "SGD", "momentum": group["momentum"], "nesterov": group["nesterov"]}
    elif kind in ("Adam", "AdamW", "SparseAdam"):
        plain |= {"name": "Adam", "beta_1": group["betas"][0], "beta_2": group["betas"][1], "epsilon": group["eps"]}
        if kind == "AdamW":
            plain["weight_decay"], decay = decay, 0.0
        if kind == "SparseAdam":
            plain["convention"] = "keras"  # it adds epsilon as Keras does
    elif kind == "Adagrad":
        plain |= {"name": "Adagrad", "initial_accumulator": group["initial_accumulator_value"], "epsilon": group["eps"]}
    else:
        raise BadModel(f"parameter servers have no optimizer {kind}", mend=_MEND)
    _refuse_all(kind, {"weight_decay": decay}, "use AdamW")
    return plain


def _same(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: config[name] for name in names}


def _refuse_all(kind: str, settings: dict[str, Any], mend: str) -> None:
    for name, value in settings.items():
        if value:
            raise BadModel(f"parameter servers have no {name} for {kind}, and it is {value}", mend=mend)
