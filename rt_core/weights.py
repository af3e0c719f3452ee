"""Files of tensors, read without running any code in them."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

__all__ = ["load_weights"]


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
