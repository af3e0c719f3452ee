"""Files of tensors, read without running any code in them."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

__all__ = ["load_weights", "state_dict_of"]


def load_weights(path: str | Path, *, allow: Sequence[str] = ()) -> Any:
    """Load a file of tensors without running any code in it.

    allow: importable names of further types that the file may hold, such as ``"argparse.Namespace"``; each is only constructed.

    Raises:
        ValueError: the file holds another type; the message names it.
        FileNotFoundError: there is no such file.
    """
    if Path(path).suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    types = [getattr(import_module(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in allow]
    try:
        with torch.serialization.safe_globals(types):
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(
            f"{path} holds more than tensors, so weights_only loading refuses it; if you trust a type that it names, "
            f"allow it by name, such as allow=['argparse.Namespace'] ({str(error).splitlines()[0]})"
        ) from error


def state_dict_of(loaded: Any) -> Any:
    """Return the state dict in what a training script saved: under ``state_dict`` or ``model``, and without the ``module.`` of a parallel network.

    Nothing else is guessed: other prefixes are for whoever knows the file.
    """
    for key in ("state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if isinstance(loaded, Mapping) and loaded and all(str(name).startswith("module.") for name in loaded):
        loaded = {name.removeprefix("module."): weight for name, weight in loaded.items()}
    return loaded
