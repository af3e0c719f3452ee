"""A hash of what makes a value what it is, the same in every process: by it stored blocks are known."""

import functools
import hashlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["content_of", "fingerprint"]

_PLAIN = (bool, int, float, complex, str, bytes, Path, type(None), type(...))
_DEPTH = 12
_OF_TORCH = {*vars(nn.Module()), "_compiled_call_impl"}  # modes, hooks, and what is walked through by name


def fingerprint(value: Any) -> str:
    """Return the hash of a value: numbers and tensors by content, functions by their code and what they close over, networks by their
    classes, plain attributes and weights, other objects by their class and attributes.

    What a function finds by a global name is not looked into.
    """
    digest = hashlib.sha256()
    for piece in _pieces(value, _DEPTH):
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.hexdigest()[:32]


def content_of(values: Tensor) -> bytes:
    """Return the bytes of a tensor's values, in their order."""
    # A copy: one number may keep a stride with which its bytes cannot be viewed.
    return values.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()


def _pieces(value: Any, depth: int) -> Iterator[bytes]:
    if depth == 0:
        return
    below = depth - 1
    if isinstance(value, np.generic):
        value = value.item()
    yield _name(type(value)).encode()
    if isinstance(value, _PLAIN):
        yield str(value).encode() if isinstance(value, Path) else repr(value).encode()
    elif isinstance(value, Tensor):
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield content_of(value)
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, nn.Module):
        yield from _network(value, below)
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _all((key, value[key]), below)
    elif isinstance(value, (tuple, list, range)):
        yield from _all(value, below)
    elif isinstance(value, (set, frozenset)):
        yield from _all(sorted(value, key=repr), below)
    elif isinstance(value, functools.partial):
        yield from _all((value.func, value.args, value.keywords), below)
    elif inspect.ismethod(value):
        yield from _all((value.__func__, value.__self__), below)
    elif inspect.isfunction(value):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        yield _name(value).encode()
        yield from _all((value.__code__, value.__defaults__, value.__kwdefaults__, cells), below)
    elif isinstance(value, CodeType):
        yield value.co_code
        yield from _all((value.co_names, value.co_consts), below)
    elif isinstance(value, type) or inspect.isbuiltin(value):
        yield _name(value).encode()
    elif is_dataclass(value):
        yield from _all({field.name: getattr(value, field.name) for field in fields(value)}.items(), below)
    else:
        yield from _pieces(getattr(value, "__dict__", {}), below)


def _all(values: Any, depth: int) -> Iterator[bytes]:
    for value in values:
        yield from _pieces(value, depth)


def _network(network: nn.Module, depth: int) -> Iterator[bytes]:
    """Yield the classes, attributes that are data, and weights; what else hangs on a module (a trainer, a logger) says nothing of what it computes.

    A network that keeps what it last saw in an attribute is another one after each pass: better than one that was mended and is not.
    """
    for name, module in network.named_modules():
        yield f"{name} {_name(type(module))} {module.extra_repr()}".encode()
        for attribute, value in sorted(vars(module).items()):
            public = not attribute.startswith("_") and (isinstance(value, (tuple, list, functools.partial)) or inspect.isroutine(value))
            if attribute not in _OF_TORCH and (public or _is_data(value)):
                yield attribute.encode()
                yield from _pieces(value, depth)
    for name, weight in [*network.named_parameters(), *network.named_buffers()]:
        yield name.encode()
        yield from _pieces(weight.detach(), depth)


def _is_data(value: Any) -> bool:
    """Say whether a value is plain, numbers, or made of these: a gain in a dict, a mean that is no buffer."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else None
    return isinstance(value, (*_PLAIN, Tensor, np.ndarray)) if parts is None else all(map(_is_data, parts))


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', getattr(thing, '__name__', ''))}"
