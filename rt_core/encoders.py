"""An encoder: any network as a frozen function from inputs inside bounds to representations, with everything put back afterwards."""

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rt_core.errors import EncoderError, IntegerInputs, InvalidInputs, OutputError, RobustnessWarning, RtError, ShapeError
from rt_core.fingerprints import fingerprint
from rt_core.randomness import SampleRandom, whole_of
from rt_core.shapes import check_shape
from rt_core.weights import load_weights, state_dict_of

__all__ = ["Encoder", "as_encoder", "check_inputs", "from_import", "round_inward"]

Bound = float | Tensor
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_AUTOCAST = [kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind)]
# One for all encoders: a network may be in several, and an encoder that held a lock could not be copied.
_LOCK = threading.RLock()
_HELD: dict[tuple[int, str], list[Any]] = {}  # of a module's mode, or a weight's flag: how many encoders hold it, and what it was


class Encoder(nn.Module):
    """A network as an encoder: ``encoder(inputs)`` takes ``[batch, *input]`` inside ``bounds`` and gives ``[batch, dim]``.

    The network is in eval mode with frozen weights while the encoder is in use, and its modes, flags, hooks and device are
    put back afterwards, on error too, when the last one that uses it ends (threads may share it). It is a live reference: later changes of
    its weights change the encoder. It is given a copy of the inputs, so it may work in place on them. A ``torch.autocast`` around the call is
    off inside, so that numbers do not depend on it; one that the network enters itself holds. A backward pass of your own amid autocast needs
    ``in_use`` around it.

    Args:
        module: a network, or any function of a batch.
        name: how results call it.
        bounds: the least and the largest value of an input; numbers, or tensors that broadcast over one input. Epsilons are in these units.
        normalize: None, ``"imagenet"`` or ``(mean, std)`` per channel (axis 1), applied here, so attacks work on unnormalized inputs.
        output: which part of what the network returns is the representation: None (all of it), a key of a dict or attribute of an
            output object, an index into a tuple, the dotted name of a submodule (its output is taken), or a function.
        device: where it runs; None leaves it where the network is, or where ``run`` puts it.
        channels_last: give images to the network in channels-last memory order, which convolutions often prefer.

    Attributes:
        passes: forward and backward passes so far, counted in samples.

    Raises:
        ValueError: bounds or normalization that make no sense.
    """

    def __init__(
        self,
        module: nn.Module | Callable[[Tensor], Any],
        *,
        name: str,
        bounds: tuple[Any, Any] = (0.0, 1.0),
        normalize: str | tuple[Sequence[float], Sequence[float]] | None = None,
        output: str | int | Callable[[Any], Tensor] | None = None,
        device: str | torch.device | None = None,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        if not callable(module):
            raise ValueError(f"module is {module!r}; an encoder wraps a torch module or a function of a batch")
        self.module = module if isinstance(module, nn.Module) else _Function(module)
        self.name = name
        self.bounds = _checked_bounds(bounds)
        self.normalize = _checked_normalization(normalize)
        self.output = output
        self.device = None if device is None else torch.device(device)
        self.channels_last = channels_last
        self.passes = SimpleNamespace(forwards=0, backwards=0)
        self.training = False
        self._users, self._holding = 0, list[tuple[Any, str]]()
        self._home: torch.device | None = None
        self._fingerprint: str | None = None
        self._taps_submodule = isinstance(output, str) and output in dict(self.module.named_modules())
        _warn_about(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Represent a batch.

        inputs: [batch, *input] -> [batch, dim], float32 (float64 where both the network and the inputs are)

        Raises:
            EncoderError: the network failed on inputs of this shape.
            OutputError: it returned something that ``output`` does not select a tensor from.
            ShapeError: what it gave is not [batch, dim].
        """
        with self.in_use():
            representations = self._represent(inputs)
        self.passes.forwards += len(inputs)
        if representations.requires_grad:
            representations.register_hook(self._count_backward)
        return representations

    @contextlib.contextmanager
    def in_use(self, device: str | torch.device | None = None) -> Iterator["Encoder"]:
        """Hold the network in eval mode, its weights frozen, on ``device``; put everything back at the end, on error too.

        Every call does this for itself; holding it around many calls saves the bookkeeping.

        Raises:
            EncoderError: its weights were made inside ``torch.inference_mode()``.
        """
        autocast = [kind for kind in _AUTOCAST if torch.is_autocast_enabled(kind)]
        try:
            for kind in autocast:
                torch.set_autocast_enabled(kind, False)
            self._hold(device)
            yield self
        finally:
            for kind in autocast:
                torch.set_autocast_enabled(kind, True)
            self._release()

    def clip(self, inputs: Tensor) -> Tensor:
        """Clip inputs to the bounds, which are rounded inward to the inputs' dtype.

        inputs: [batch, *input] -> same shape
        """
        low, high = round_inward(self.bounds, inputs)
        return inputs.clamp(low, high)

    def where(self) -> torch.device | None:
        """Return the device of the network's weights; None if it has none."""
        return next((tensor.device for tensor in _weights(self.module)), None)

    @property
    def fingerprint(self) -> str:
        """A hash of the weights, the structure and the settings, by which two results can be told apart.

        Taken anew each time, but while the encoder is held in use: its weights are frozen then.
        """
        if self._fingerprint is None or not self._users:
            self._fingerprint = fingerprint([self.module, self.bounds, self.normalize, self.output, self.channels_last, str(self.device)])
        return self._fingerprint

    def train(self, mode: bool = True) -> "Encoder":
        """Do nothing: an encoder measures, so it is always in eval mode; train the network itself."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_users": 0, "_holding": [], "_home": None}  # nobody uses a copy yet

    def _hold(self, device: str | torch.device | None) -> None:
        with _LOCK:
            self._users += 1
            if self._users > 1:
                return
            weights = [*self.module.parameters()]
            if not torch.is_inference_mode_enabled() and any(not is_lazy(weight) and weight.is_inference() for weight in weights):
                remedy = "make or load the network outside of it, or take a copy made outside (copy.deepcopy)"
                raise EncoderError(
                    f"encoder {self.name!r} has weights made inside torch.inference_mode(), which no gradient can pass; {remedy}"
                )
            self._fingerprint, home, away = None, self.where(), self.device or device
            for thing, what in (*((one, "training") for one in self.module.modules()), *((one, "requires_grad") for one in weights)):
                _HELD.setdefault((id(thing), what), [0, getattr(thing, what)])[0] += 1
                self._holding.append((thing, what))
                setattr(thing, what, False)
            if away is not None and home is not None:
                self._home = home
                self.module.to(away)

    def _release(self) -> None:
        with _LOCK:
            self._users -= 1
            if self._users:
                return
            if self._home is not None:
                self.module.to(self._home)
                self._home = None
            while self._holding:
                thing, what = self._holding.pop()
                held = _HELD[id(thing), what]
                held[0] -= 1
                if not held[0]:
                    setattr(thing, what, _HELD.pop((id(thing), what))[1])

    def _represent(self, inputs: Tensor) -> Tensor:
        dtype = next((tensor.dtype for tensor in _weights(self.module) if tensor.is_floating_point()), inputs.dtype)
        prepared = inputs.to(self.where() or inputs.device)
        if self.normalize is not None:
            mean, std = _per_channel(self.normalize, prepared)
            prepared = (prepared - mean) / std
        prepared = prepared.to(dtype)
        if self.channels_last and prepared.ndim == 4:
            prepared = prepared.contiguous(memory_format=torch.channels_last)
        # A network may work in place, and must not on the caller's tensor, nor on a leaf.
        representations = self._select(inputs.clone() if prepared is inputs else prepared)
        if representations.ndim == 4 and representations.shape[2:] == (1, 1):  # a pooled map, such as torchvision's "avgpool" gives
            representations = representations.flatten(1)
        try:
            check_shape(representations, "batch dim", what=f"encoder {self.name!r} output", batch=len(inputs))
        except ShapeError as error:
            hint = "output=lambda tokens: tokens[:, 0]" if representations.ndim == 3 else "output=lambda maps: maps.mean((2, 3))"
            raise ShapeError(f"{error}; select one vector a sample, such as {hint}" if representations.ndim > 2 else str(error)) from None
        wanted = torch.float64 if representations.dtype == inputs.dtype == torch.float64 else torch.float32
        return representations.to(wanted)

    def _select(self, prepared: Tensor) -> Tensor:
        captured: list[Any] = []
        handle, caller = None, threading.get_ident()
        if self._taps_submodule:
            handle = self.module.get_submodule(str(self.output)).register_forward_hook(
                lambda module, arguments, output: captured.append(output) if threading.get_ident() == caller else None
            )
        try:
            returned = self.module(prepared)
        except (RtError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            shape = f"inputs of shape {list(prepared.shape)} ({str(prepared.dtype).removeprefix('torch.')}, {prepared.device})"
            raise EncoderError(f"encoder {self.name!r} failed on {shape}: {type(error).__name__}: {error}") from error
        finally:
            if handle is not None:
                handle.remove()
        if not self._taps_submodule:
            return _selected(returned, self.output, self.name, [name for name, _ in self.module.named_modules() if name])
        if len(captured) != 1:
            raise OutputError(f"output is {self.output!r}, a submodule that ran {len(captured)} times; it must run once in a pass")
        return _selected(captured[0], None, self.name, [])

    def _count_backward(self, slope: Tensor) -> None:
        self.passes.backwards += len(slope)


def as_encoder(encoder: Encoder | nn.Module | Callable[[Tensor], Any]) -> Encoder:
    """Return the encoder itself, or a network or function wrapped with the default settings."""
    if isinstance(encoder, Encoder):
        return encoder
    return Encoder(encoder, name=getattr(encoder, "__name__", type(encoder).__name__))


def check_inputs(inputs: Tensor, encoder: Encoder, *, what: str = "inputs", ids: Sequence[str] | None = None) -> None:
    """Raise unless these are inputs that this encoder can be asked about: floating, finite, inside its bounds, at least one.

    ids: what the message calls the rows by, instead of their positions.

    Raises:
        InvalidInputs: with how many, which and what to do.
        IntegerInputs: token ids and the like carry no gradient.
    """
    if not isinstance(inputs, Tensor):
        raise InvalidInputs(f"{what} is of type {type(inputs).__name__}; give a tensor [batch, *input]")
    if inputs.ndim < 2 or len(inputs) == 0:
        raise InvalidInputs(f"{what} has shape {list(inputs.shape)}; expected [batch, *input] with at least one sample")
    if inputs.dtype == torch.uint8:
        raise InvalidInputs(f"{what} is uint8, 0..255; inputs lie in [{_show(encoder.bounds)}]: write inputs.float() / 255")
    if inputs.is_complex():
        raise InvalidInputs(f"{what} is {str(inputs.dtype).removeprefix('torch.')}; expected real numbers: give torch.view_as_real(…)")
    if not inputs.is_floating_point():
        name = str(inputs.dtype).removeprefix("torch.")
        raise IntegerInputs(f"{what} is {name}, and integers carry no gradient; attack the output of the embedding layer instead")
    if inputs.dtype in (torch.float16, torch.bfloat16):
        name = str(inputs.dtype).removeprefix("torch.")
        raise InvalidInputs(f"{what} is {name}, too coarse for the steps of an attack; give float32 (the encoder casts to its own dtype)")
    rows = inputs.flatten(1)
    broken = (~rows.isfinite()).any(1).nonzero().flatten().tolist()
    if broken:
        raise InvalidInputs(
            f"{what} holds NaN or infinity in {len(broken)} of {len(rows)} samples ({_few(broken, ids)}); inputs must be finite"
        )
    low, high = _moved(encoder.bounds, inputs)
    outside = ((inputs < low) | (inputs > high)).flatten(1).any(1).nonzero().flatten().tolist()
    if outside:
        least, largest = inputs.min().item(), inputs.max().item()
        remedy = (
            "divide by 255"
            if least >= 0 and largest > 2
            else "give unnormalized inputs and let the encoder normalize, or say bounds=(low, high)"
        )
        raise InvalidInputs(
            f"{what} lies in [{least:g}, {largest:g}], outside the bounds [{_show(encoder.bounds)}] in {len(outside)} of {len(rows)} samples "
            f"({_few(outside, ids)}): {remedy}"
        )


def round_inward(bounds: tuple[Bound, Bound], like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bounds as tensors of ``like``'s dtype and device, moved one step inward where the cast went outward."""
    exact = [torch.as_tensor(bound, dtype=torch.float64, device="cpu") for bound in bounds]
    low, high = (bound.to(like.dtype) for bound in exact)
    low = torch.where(low.double() < exact[0], torch.nextafter(low, torch.full_like(low, torch.inf)), low)
    high = torch.where(high.double() > exact[1], torch.nextafter(high, torch.full_like(high, -torch.inf)), high)
    return low.to(like.device), high.to(like.device)


def from_import(
    path: str,
    *,
    weights: str | None = None,
    seed: int = 0,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Encoder:
    """Make an encoder from an importable network: the encoder ``module`` of plans and shells.

    path: ``"package.module:name"``, a class or function that returns a network (called with ``options``), or a network.
    weights: a state dict (safetensors or torch's format; also as training scripts save it, see ``state_dict_of``) to load, strictly; without
    them the network keeps those that it is made with, drawn from ``seed``, so that making it again gives the same. settings: of ``Encoder``.

    Raises:
        ValueError: the path cannot be followed, or the weights do not fit.
    """
    module_name, _, attribute = path.partition(":")
    try:
        found = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"path is {path!r}; write 'package.module:name' of something importable ({error})") from error
    if isinstance(found, nn.Module):
        network = found
    else:
        with SampleRandom.of(seed, [path]).global_generators("weights"):
            network = found(**(options or {}))
    if weights is not None:
        try:
            network.load_state_dict(state_dict_of(load_weights(weights)))
        except RuntimeError as error:
            raise ValueError(f"weights {weights!r} do not fit {path!r}: {error}") from error
    return Encoder(network, name=name or attribute, **settings)


class _Function(nn.Module):
    """A plain function as a module."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Any:
        return self.function(inputs)

    def extra_repr(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)


def _weights(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _checked_bounds(bounds: tuple[Any, Any]) -> tuple[Bound, Bound]:
    try:
        exact = [torch.as_tensor(bound, dtype=torch.float64, device="cpu") for bound in bounds]
        low, high = exact
        fits = bool((low < high).all())
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"bounds is {bounds!r}; expected (low, high), numbers or tensors that broadcast over one input") from error
    if not fits or not all(bool(bound.isfinite().all()) for bound in exact):
        raise ValueError(f"bounds is {bounds!r}; low must be below high, and both finite")
    values = [bound.item() if bound.ndim == 0 else bound for bound in exact]
    return values[0], values[1]


def _checked_normalization(normalize: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    if normalize is None:
        return None
    if isinstance(normalize, str):
        if normalize != "imagenet":
            raise ValueError(f"normalize is {normalize!r}; expected None, 'imagenet' or (mean, std)")
        return _IMAGENET
    mean, std = (tuple(torch.as_tensor(part, dtype=torch.float64).reshape(-1).tolist()) for part in normalize)
    if len(mean) != len(std) or not all(value > 0 for value in std):
        raise ValueError(f"normalize is {normalize!r}; mean and std need one value a channel each, and std must be positive")
    return mean, std


def _per_channel(normalize: tuple[tuple[float, ...], tuple[float, ...]], inputs: Tensor) -> list[Tensor]:
    channels = inputs.shape[1]
    for what, values in zip(("mean", "std"), normalize, strict=True):
        if len(values) not in (1, channels):
            raise InvalidInputs(f"{what} has {len(values)} values, input has {channels} channel{'s' * (channels != 1)} (axis 1)")
    axes = [-1, *[1] * (inputs.ndim - 2)]
    return [torch.tensor(values, dtype=inputs.dtype, device=inputs.device).reshape(axes) for values in normalize]


def _selected(returned: Any, output: Any, name: str, submodules: Sequence[str]) -> Tensor:
    if callable(output):
        part = output(returned)
    elif isinstance(output, str):
        part = returned.get(output) if isinstance(returned, Mapping) else getattr(returned, output, None)
    elif (index := whole_of(output)) is not None:
        part = returned[index] if isinstance(returned, (tuple, list)) and -len(returned) <= index < len(returned) else None
    else:
        part = returned
    if isinstance(part, Tensor):
        if part.is_complex():
            remedy = "say output=lambda returned: torch.view_as_real(returned).flatten(1), or returned.abs()"
            raise OutputError(f"encoder {name!r} returned {str(part.dtype).removeprefix('torch.')}; expected real numbers: {remedy}")
        return part
    if isinstance(returned, Mapping):
        shape, example = f"a dict with keys {', '.join(map(repr, returned))}", repr(next(iter(returned), "key"))
    elif isinstance(returned, (tuple, list)):
        shape, example = f"a {type(returned).__name__} of {len(returned)}", "0"
    else:
        shape, example = f"a {type(returned).__name__}", "lambda returned: …"
    close = get_close_matches(output, submodules, n=1) if isinstance(output, str) else []
    remedy = f"did you mean the submodule {close[0]!r}?" if close else f"say which part, such as output={example}"
    raise OutputError(f"encoder {name!r} returned {shape}, and output={output!r} selects no tensor from it; {remedy}")


def _warn_about(encoder: Encoder) -> None:
    children = list(encoder.module.named_children())
    if encoder.output is None and children and children[-1][0] in ("fc", "classifier", "head", "heads"):
        name, last = children[-1]
        if any(isinstance(part, nn.Linear) for part in last.modules()):
            warnings.warn(
                f"encoder {encoder.name!r} seems to end in a classifier ({name!r}): its logits would be taken for representations; "
                f"replace it ({name} = torch.nn.Identity()) or take an earlier layer (output='…')",
                RobustnessWarning,
                stacklevel=3,
            )
    if encoder.normalize is not None and any(
        type(part).__name__.lower() in ("normalize", "normalization") for part in encoder.module.modules()
    ):
        warnings.warn(
            f"encoder {encoder.name!r} is given normalize= and holds a normalization layer of its own: inputs would be normalized twice; drop one",
            RobustnessWarning,
            stacklevel=3,
        )


def _moved(bounds: tuple[Bound, Bound], like: Tensor) -> list[Any]:
    # Inputs are compared in their own dtype: a float32 1/3 is allowed to be the bound 1/3.
    return [torch.as_tensor(bound, dtype=torch.float64, device="cpu").to(like.dtype).to(like.device) for bound in bounds]


def _show(bounds: tuple[Bound, Bound]) -> str:
    return ", ".join(f"{bound:g}" if isinstance(bound, float) else "tensor" for bound in bounds)


def _few(rows: list[int], ids: Sequence[str] | None) -> str:
    names = map(str, rows[:5]) if ids is None else (repr(ids[row]) for row in rows[:5])
    return f"{'rows' if ids is None else 'samples'} {', '.join(names)}" + (", …" if len(rows) > 5 else "")
