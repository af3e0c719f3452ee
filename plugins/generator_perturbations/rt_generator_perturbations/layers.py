"""Layers of a network: how they are named, found, watched, and added to."""

import contextlib
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from rt_core.errors import RtError

__all__ = [
    "IMAGE",
    "LATENT",
    "LayerError",
    "add",
    "check_kind",
    "expand",
    "find_layers",
    "matching",
    "missing",
    "names_of",
    "not_once",
    "watching",
]

LATENT, IMAGE = "latent", "image"  # the names of A_0 and A_n: what the network is given, and what it draws
_SHOWN = 40  # layers that a message lists
_OWN = "parametrizations"  # the child in which torch keeps how a weight is computed, which is no part of the network


class LayerError(RtError, KeyError):
    """A layer that the network does not have, does not reach, reaches twice, or whose output cannot be perturbed."""

    def __str__(self) -> str:  # a KeyError shows its message in quotes, line breaks escaped
        return str(self.args[0])


def find_layers(module: nn.Module, within: str = "") -> list[str]:
    """Return a network's blocks as dotted names: the children of the ModuleList or Sequential that holds the most weights.

    Where the children are single operations (convolution, norm, activation …), a layer is the last of them before the next one that has a weight
    matrix, so a layer is activated where the network activates; what comes after the last such is the image and no layer. Spectral and weight norm
    change nothing of this, however they are written.

    within: the submodule that is looked into, such as an autoencoder's decoder.

    Raises:
        LayerError: there is no such chain.
    """
    _check_hooks("the network", module, module, True)
    inner = module.get_submodule(within)
    parts = [(name, part) for name, part in inner.named_modules() if _OWN not in name.split(".")]
    found = [(name, part) for name, part in parts if isinstance(part, (nn.ModuleList, nn.Sequential)) and len(part) > 1]
    if not found:
        names = [name for name, _ in names_of(module)]
        raise LayerError(f"{type(module).__name__} has no chain of blocks; name its layers: layers=[…] of {_listing(names, None)}")
    path, blocks = max(found, key=lambda item: sum(weight.numel() for weight in item[1].parameters()))  # of equals the first, outermost
    prefix = ".".join(filter(None, [within, path]))
    children = list(blocks.named_children())
    single = all(name == _OWN for _, child in children for name, _ in child.named_children())
    draws = single or (blocks is inner and isinstance(blocks, nn.Sequential))  # then the last child draws the image
    weighted = [_has_matrix(child) for _, child in children]
    ends = [not single or (weighted[place] and any(weighted[:place])) for place in range(1, len(children))] + [not draws]
    return [".".join(filter(None, [prefix, name])) for (name, _), end in zip(children, ends, strict=True) if end]


def _has_matrix(module: nn.Module) -> bool:
    computed = getattr(module, _OWN, {}).values()  # each holds the weight that it computes another from
    return any(weight.ndim > 1 for part in (module, *computed) for weight in part.parameters(recurse=False))


def names_of(module: nn.Module, *, twice: bool = False) -> list[tuple[str, nn.Module]]:
    """Return the submodules that can be named, with their names; ``twice`` gives each as often as it has names."""
    named = module.named_modules(remove_duplicate=not twice)
    return [(name, part) for name, part in named if name and _OWN not in name.split(".")]


def expand(module: nn.Module, layers: Sequence[str]) -> tuple[str, ...]:
    """Return the submodules that names and patterns stand for, in the order given.

    Raises:
        LayerError: a name that stands for none, two that stand for one, or one inside of what takes no hooks: compiled, traced or scripted.
    """
    if isinstance(layers, str):
        raise ValueError(f"layers is {layers!r}; expected a list of names, such as [{layers!r}]")
    parts = dict(names_of(module, twice=True))
    names = list(parts)
    found = [layer for pattern in layers for layer in matching(pattern, names)]
    for pattern in layers:
        if not matching(pattern, names):
            raise LayerError(missing(pattern, names, None))
    if twice := sorted({layer for layer in found if found.count(layer) > 1}):
        raise LayerError(f"layers names {', '.join(map(repr, twice))} twice; each can be perturbed once")
    first: dict[nn.Module, str] = {}
    for layer in found:
        if first.setdefault(parts[layer], layer) != layer:
            raise LayerError(f"layers {first[parts[layer]]!r} and {layer!r} are one module of two names; name it once")
        inside = ["", *(layer[:place] for place, letter in enumerate(layer) if letter == ".")]
        for outer in inside:
            _check_hooks(f"layer {layer!r}", module, parts.get(outer, module), True)
        _check_hooks(f"layer {layer!r}", module, parts[layer], False)
    return tuple(found)


def _check_hooks(what: str, module: nn.Module, part: nn.Module, around: bool) -> None:
    """Raise where hooks at (``around``: inside) a part of a network would not be called."""
    where = "" if part is module else "that part of "
    if isinstance(part, torch.jit.ScriptModule):
        made, remedy = "traced or scripted", f"give {where}the network that it was made of"
    elif around and "_orig_mod" in dict(part.named_children()):
        made, remedy = "compiled", f"give {where}the eager network, which is its _orig_mod"
    elif around and getattr(part, "_compiled_call_impl", None) is not None:
        made, remedy = "compiled", f"give {where}the eager network, on which compile() was not called"
    else:
        return
    raise LayerError(f"{what} is {made}, so no hook is called in it: {remedy}, or perturb the latent and the image alone (layers=[])")


def check_kind(layer: str, dtype: torch.dtype) -> None:
    """Raise unless activations of this dtype can be perturbed."""
    if dtype.is_complex:
        raise LayerError(
            f"layer {layer!r} holds complex numbers, which cannot be perturbed: name a layer before or after it, of real numbers"
        )
    if not dtype.is_floating_point:
        raise LayerError(f"layer {layer!r} holds whole numbers, which cannot be perturbed: perturb another layer, such as what embeds them")


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the names that a pattern stands for; a * stands for one part of a dotted name."""
    if pattern in names:
        return [pattern]
    parts = pattern.split(".")
    return [name for name in names if name.count(".") == len(parts) - 1 and all(map(fnmatch.fnmatchcase, name.split("."), parts))]


def missing(layer: str, names: Sequence[str], shapes: Mapping[str, tuple[int, ...]] | None) -> str:
    """Return the message for a layer that is not there: near misses, and what is there, with shapes where they are known."""
    close = get_close_matches(layer, names, n=3, cutoff=0.5)
    meant = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    return f"no layer is named {layer!r}{meant}\n  layers: {_listing(names, shapes)}"


def _listing(names: Sequence[str], shapes: Mapping[str, tuple[int, ...]] | None) -> str:
    shown = [f"{name} {list(shapes[name])}" if shapes and name in shapes else name for name in names[:_SHOWN]]
    return ", ".join(shown) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def not_once(layer: str, times: int) -> str:
    """Return the message for a layer that does not run exactly once."""
    if times == 0:
        return (
            f"layer {layer!r} is never reached: the network does not call it; leave it out, or name a part of it that runs (see submodules()); "
            "if the network is compiled, give the eager one"
        )
    return f"layer {layer!r} runs {times} times in one pass; a layer must run once: name one inside or around it"


def add(layer: str, activation: Tensor, perturbation: Tensor) -> Tensor:
    """Return activation + perturbation, which must have its shape and is cast to it. The activation must be of real numbers."""
    check_kind(layer, activation.dtype)
    if perturbation.shape != activation.shape:
        shapes = f"{list(perturbation.shape)}; its activation has {list(activation.shape)}"
        raise LayerError(f"the perturbation of layer {layer!r} has shape {shapes}: give one value a neuron and image")
    return activation + perturbation.to(activation.device, activation.dtype)


@contextlib.contextmanager
def watching(module: nn.Module, layers: Sequence[str], see: Callable[[str, Any], None]) -> Iterator[None]:
    """Show every output of these layers to ``see(layer, output)`` while the context is open."""
    handles = []
    try:
        for layer in layers:

            def look(part: nn.Module, arguments: Any, output: Any, layer: str = layer) -> None:
                see(layer, output)  # at once: what runs next may overwrite it in place

            handles.append(module.get_submodule(layer).register_forward_hook(look))
        yield
    finally:
        for handle in handles:
            handle.remove()
