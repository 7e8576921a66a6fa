"""The optimizers of Keras and PyTorch as parameter servers have them."""

from __future__ import annotations

from typing import Any

from ..errors import BadModel

KNOWN = "SGD (with momentum, too), Adam, AdamW, Adagrad and, of Keras, Ftrl; of PyTorch SparseAdam"
_MEND = f"parameter servers have {KNOWN}"
_ADAM = {name: name for name in ("beta_1", "beta_2", "epsilon", "weight_decay")}
# Class of Keras -> the servers' optimizer, and its settings by those of Keras.
_OF_KERAS: dict[str, tuple[str, dict[str, str]]] = {
    "SGD": ("SGD", {"momentum": "momentum", "nesterov": "nesterov"}),
    "Adam": ("Adam", _ADAM), "AdamW": ("Adam", _ADAM),
    "Adagrad": ("Adagrad", {"initial_accumulator": "initial_accumulator_value", "epsilon": "epsilon"}),
    "Ftrl": ("FTRL", {
        "learning_rate_power": "learning_rate_power", "initial_accumulator": "initial_accumulator_value", "beta": "beta",
        "l1": "l1_regularization_strength", "l2": "l2_regularization_strength", "l2_shrinkage": "l2_shrinkage_regularization_strength",
    }),
}  # fmt: skip


def of_keras(optimizer: Any, rate: float) -> tuple[dict[str, Any], float | None]:
    """Return the optimizer as servers have it, and the largest norm of all gradients together. Raises BadModel."""
    kind, config = type(optimizer).__name__, optimizer.get_config()
    unknown = ["clipnorm", "clipvalue", "use_ema", "loss_scale_factor", "gradient_accumulation_steps"]
    mend = "clip by global_clipnorm" if config.get("clipnorm") or config.get("clipvalue") else "leave that out"
    _refuse_all(kind, {name: config.get(name) for name in (*unknown, "amsgrad", "centered")}, mend)
    if kind not in _OF_KERAS:
        raise BadModel(f"parameter servers have no optimizer {kind}", mend=_MEND)
    name, names = _OF_KERAS[kind]
    _refuse_all(kind, {"weight_decay": "weight_decay" not in names and config.get("weight_decay")}, "use AdamW")
    plain = {own: 0.0 if (value := config.get(of_keras)) is None else value for own, of_keras in names.items()}
    return {"name": name, **plain, "learning_rate": rate}, config.get("global_clipnorm")


def of_torch(optimizer: Any) -> dict[str, Any]:
    """Return the optimizer as servers have it. Raises BadModel."""
    kind, (group, *others) = type(optimizer).__name__, optimizer.param_groups
    settings = {name: value for name, value in group.items() if name != "params"}
    if any({name: value for name, value in other.items() if name != "params"} != settings for other in others):
        raise BadModel(f"the groups of {kind} have other settings", mend="give all parameters the same")
    unknown = ("amsgrad", "maximize", "dampening", "lr_decay")
    _refuse_all(kind, {name: group.get(name) for name in unknown}, "leave that out")
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


def _refuse_all(kind: str, settings: dict[str, Any], mend: str) -> None:
    for name, value in settings.items():
        if value:
            raise BadModel(f"parameter servers have no {name} for {kind}, and it is {value}", mend=mend)
