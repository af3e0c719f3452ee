"""A generator: any network that draws images, as a chain of named layers whose activations can be perturbed."""

import contextlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, count
from math import inf
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from rt_core.encoders import Encoder
from rt_core.errors import RobustnessWarning, RtError
from rt_core.fingerprints import fingerprint
from rt_core.randomness import SampleRandom
from rt_core.traces import check_whole
from rt_generator_perturbations.latents import (
    Latents,
    beside,
    cast,
    check_is_latents,
    checked_latent,
    copied,
    draw_latents,
    joined,
    moved,
    parts_of,
)
from rt_generator_perturbations.layers import (
    IMAGE,
    LATENT,
    LayerError,
    add,
    check_kind,
    expand,
    find_layers,
    matching,
    missing,
    names_of,
    not_once,
    watching,
)

__all__ = ["Generator", "GeneratorError"]


class GeneratorError(RtError, ValueError):
    """The wrapped network failed, is not deterministic, or gave something that is no batch of images."""


class Generator:
    """A network as a generator: ``generator(latents)`` takes what ``draw`` gives and returns images in [0, 1].

    It is read as a chain g = g_n ∘ … ∘ g_1 of ``layers``; a perturbation of the full shape of a layer's activation is added to that activation
    (Dunn et al. 2020). Hooks do it, and are gone when the call returns, on error too; they come back for the length of a backward pass through its
    images, since a checkpointed network runs again there, and add to what belongs to that call alone. The network is in eval mode with frozen weights
    while in use, for the length of such a backward pass too, and is put back afterwards: where a checkpointed network's own calls are differentiated
    in the same pass, they too must be made within ``in_use``. It is given copies of the latents, so it may work in place.

    Args:
        module: the network. It is called with the latents, then the classes, then ``arguments`` and ``keywords``, unchanged in every call.
        layers: dotted names of submodules in the order in which they run, or patterns (``"blocks.*"``; a * stands for one part of a name); None finds
            them (see ``find_layers``; ``generator.layers`` says what was found). ``"latent"`` and ``"image"`` are always there, as first and last.
        latent: the shape of one latent, drawn from a standard normal; or a function ``(random, ids) -> [batch, *latent]``; or a tuple of these,
            which are then several arguments; or a dict, which are then keywords.
        classes: how many classes the network is conditioned on; None for no classes.
        label: how the network wants classes: ``"one_hot"`` (its dtype), ``"index"`` (int64), or a function of the indices [batch].
        label_keyword: the keyword that they are passed as; None passes them after the latents.
        values: the lowest and the highest value of the network's images, mapped linearly to [0, 1]; what lies outside is clipped. None leaves the images
            as they are, unclipped.
        arguments, keywords: what else the network is called with, such as a truncation or a noise mode.
        latent_layer: None adds the latent's perturbation before the network, where all that reads the latent sees it: z + p_0. The name of
            a submodule adds it to the first columns of that submodule's first argument alone.
        method: the network's method that draws, such as an autoencoder's ``"decode"``; None calls the network itself.
        output: which part of what it returns are the images: a key, an attribute, an index or a function; None takes all of it.
        seeded: for a network that draws noise of its own, or whose images depend on the others of a batch: every image is drawn alone, under global
            generators that are seeded by its id and the seed of the draw (``Latents.seed``), so that it is the same in every call and whatever the batch.
            Costs a pass an image.
        name: how results call it.
        device: where it runs; None leaves it where the network is.

    Attributes:
        passes: forward and backward passes of calls so far, counted in images.

    Raises:
        LayerError: a name that no submodule has, two names of one, a submodule called ``latent`` or ``image``, or one inside of what is compiled, traced
            or scripted, where no hook is called.
        ValueError: another parameter that makes no sense.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        latent: Any,
        layers: Sequence[str] | None = None,
        classes: int | None = None,
        label: str | Callable[[Tensor], Any] = "one_hot",
        label_keyword: str | None = None,
        values: tuple[float, float] | None = (-1.0, 1.0),
        arguments: Sequence[Any] = (),
        keywords: Mapping[str, Any] | None = None,
        latent_layer: str | None = None,
        method: str | None = None,
        output: str | int | Callable[[Any], Tensor] | None = None,
        seeded: bool = False,
        name: str = "generator",
        device: str | torch.device | None = None,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise ValueError(f"module is {module!r}; a generator wraps a torch module")
        if classes is not None:
            check_whole("classes", classes)
        if not callable(label) and label not in ("one_hot", "index"):
            raise ValueError(f"label is {label!r}; expected 'one_hot', 'index' or a function of the class indices")
        if values is not None and not values[0] < values[1]:
            raise ValueError(f"values is {values!r}; the lowest must be below the highest, or None for images that are left as they are")
        self.module, self.name = module, name
        self.latent = checked_latent(latent)
        self.layers = (LATENT, *_inner(module, find_layers(module) if layers is None else layers), IMAGE)
        self.classes, self.label, self.label_keyword = classes, label, label_keyword
        self.values = values
        self.arguments, self.keywords = tuple(arguments), dict(keywords or {})
        self.latent_layer, self.method, self.output, self.seeded = latent_layer, method, output, seeded
        if isinstance(self.latent, dict) and (
            both := sorted(set(self.latent) & {*self.keywords, *([label_keyword] if label_keyword else [])})
        ):
            raise ValueError(
                f"keywords or label_keyword name {', '.join(map(repr, both))}, which latent draws; the network takes each once: leave one out"
            )
        if method is not None and not callable(getattr(module, method, None)):
            raise ValueError(f"method is {method!r}; {type(module).__name__} has no such method")
        if latent_layer is not None:
            expand(module, [latent_layer])
            if isinstance(self.latent, (tuple, dict)):
                raise ValueError(f"latent_layer is {latent_layer!r} and the latents are several; it can move a single one")
        self.passes = SimpleNamespace(forwards=0, backwards=0)
        # An encoder holds networks in eval mode, frozen and on a device, and puts them back: that is all that is asked of this one.
        self._held = Encoder(module, name=name, output=_nothing, device=device)
        self._shapes: dict[str, tuple[int, ...]] | None = None

    def __repr__(self) -> str:
        return f"Generator({type(self.module).__name__}, name={self.name!r}, layers={list(self.layers)})"

    @property
    def fingerprint(self) -> str:
        """A hash of the weights, the structure and the settings, taken anew each time."""
        return fingerprint([self.module, *self._settings().values()])

    def describe(self) -> dict[str, Any]:
        """Return the settings in plain words and numbers, as results record them: latents, layers, classes and every extra argument."""
        return {
            "name": self.name,
            "module": type(self.module).__qualname__,
            **{name: _plain(value) for name, value in self._settings().items()},
        }

    def draw(self, ids: int | Sequence[object], *, seed: int = 0, classes: int | Sequence[int] | Tensor | None = None) -> Latents:
        """Draw latents and classes, one of each an id: the same id and seed give the same, whatever the batch.

        ids: one an image; a number n stands for range(n), the ids 0 to n - 1.
        classes: given ones, one an id, or the same one for all; None draws them uniformly.

        Raises:
            ValueError: classes that the generator does not have, that are no whole numbers, or more or fewer than ids; a number of ids below 1; a seed
                that is no whole number.
        """
        random = SampleRandom.of(seed, ids if isinstance(ids, Iterable) else range(check_whole("ids", ids)))
        drawn = draw_latents(self.latent, random, random.ids)
        if self.classes is None:
            if classes is not None:
                raise ValueError(f"classes is {classes!r}; generator {self.name!r} has none: leave them out, or make it with classes=")
            return Latents(ids=random.ids, latents=drawn, seed=random.seed)
        if classes is None:
            chosen = (random.uniform("class", ()) * self.classes).long().clamp(max=self.classes - 1)
        else:
            given = torch.as_tensor(classes)
            if given.dtype == torch.bool or given.is_floating_point() or given.is_complex():
                raise ValueError(f"classes is {classes!r}; expected whole numbers, the indices of classes 0 to {self.classes - 1}")
            if given.ndim and given.shape != (len(random.ids),):
                raise ValueError(
                    f"classes has shape {list(given.shape)} for {len(random.ids)} ids; give one class an id, or one number for all"
                )
            chosen = given.to(torch.int64).expand(len(random.ids)).clone()
            self._check_classes(chosen)
        return Latents(ids=random.ids, latents=drawn, classes=chosen, seed=random.seed)

    def _check_classes(self, classes: Tensor) -> None:
        if self.classes is not None and not torch.equal(classes.clamp(0, self.classes - 1), classes):
            outside = next(value for value in classes.tolist() if not 0 <= value < (self.classes or 0))
            raise ValueError(f"classes holds {outside}; generator {self.name!r} has classes 0 to {self.classes - 1}")

    def __call__(self, latents: Latents, perturbations: Mapping[str, Tensor] | None = None) -> Tensor:
        """Draw the images, with perturbations added to the activations that they are given for.

        perturbations: {layer: [batch, *shape of that layer's activation for one image]}, see ``shapes``; the image's is in units of [0, 1]. None
        or zeros give the network's own images bit for bit. They are cast to the activation's dtype and device where they are added.

        -> [batch, channel, height, width], in [0, 1], float32 (float64 of a float64 network), with a graph if the perturbations have one

        Raises:
            LayerError: a layer that is not there, is not reached or reached twice, or has another shape; at the first use, layers that run in
                another order than they were named in.
            GeneratorError: the network failed, draws other images each time or beside others, or gave no images.
            ValueError: what is no ``Latents``, latents without classes where the generator has some, or classes that it does not have.
        """
        check_is_latents(latents)
        perturbations = dict(perturbations or {})
        with self.in_use():
            if self._shapes is None:
                self._shapes = self._probe(latents.select([0]))
            for layer in perturbations:
                if layer not in self.layers:
                    raise LayerError(missing(layer, self.layers, self._shapes))
            images = self._images(latents, perturbations)
        self.passes.forwards += len(latents)
        return images

    @contextlib.contextmanager
    def in_use(self, device: str | torch.device | None = None) -> Iterator["Generator"]:
        """Hold the network in eval mode, its weights frozen, on ``device``; put everything back at the end, on error too.

        Every call does this for itself; holding it around many calls saves the bookkeeping. A backward pass that fails leaves its hooks and its
        hold on the network behind: they go when this begins or ends, at the latest.
        """
        _close(self.module)  # what a backward pass that failed has left
        with self._held.in_use(device):
            try:
                yield self
            finally:
                _close(self.module)

    def where(self) -> torch.device | None:
        """Return the device of the network's weights; None if it has none."""
        return self._held.where()

    def shapes(self, latents: Latents | None = None) -> dict[str, tuple[int, ...]]:
        """Return the shape of one image's activation for every layer, found in one pass (and one more that must draw the same image).

        The first time, two passes of two images see whether an image depends on the one beside it, and one a layer whether it moves the image.

        latents: any, of which the first is used; None draws one.
        """
        if self._shapes is None or latents is not None:
            with self.in_use():
                self._shapes = self._probe((self.draw(["0"]) if latents is None else latents).select([0]))
        return dict(self._shapes)

    def submodules(self, latents: Latents | None = None) -> dict[str, tuple[int, ...] | None]:
        """Return every submodule that runs, with the shape of one image's activation: what ``layers`` can name. None: it cannot be a layer,
        since it runs more than once or returns no tensor."""
        names = [name for name, _ in names_of(self.module)]
        seen: dict[str, list[tuple[int, ...] | None]] = {}

        def see(layer: str, output: Any) -> None:
            seen.setdefault(layer, []).append(tuple(output.shape[1:]) if isinstance(output, Tensor) else None)

        with self.in_use(), torch.no_grad(), watching(self.module, names, see):
            self._run((self.draw(["0"]) if latents is None else latents).select([0]), None)
        return {name: shapes[0] if len(shapes) == 1 else None for name, shapes in seen.items()}

    def scales(
        self, *, draws: int = 64, seed: int = 0, per: str = "layer", batch: int = 16, layers: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return how far each layer's unperturbed activations stray over draws of latents and classes: their standard deviation.

        layers: of which (patterns too); None takes all.
        per: ``"neuron"`` gives each neuron its own, a float32 tensor of the activation's shape; ``"layer"`` one number a layer, the root mean square of
        them. A neuron that never varies has 0, so it is not moved; a layer that never varies at all gets 1 (ones), its activation's own unit. Both are
        warned of.

        Raises:
            ValueError: fewer than two draws, or another ``per``.
            LayerError: a layer that is not there.
        """
        check_whole("draws", draws)
        check_whole("batch", batch)
        if draws < 2:
            raise ValueError(f"draws is {draws}; a standard deviation needs at least two")
        if per not in ("layer", "neuron"):
            raise ValueError(f"per is {per!r}; expected 'layer' or 'neuron'")
        chosen = self.layers if layers is None else self.groups({"layers": layers})["layers"]
        moments = {layer: _Moments() for layer in chosen}
        ids = [f"scale {place}" for place in range(draws)]
        with self.in_use(), torch.no_grad():
            self.shapes()
            for start in range(0, draws, batch):
                latents = self.draw(ids[start : start + batch], seed=seed)
                if LATENT in moments:
                    moments[LATENT].add(joined(latents.latents))
                if chosen == (LATENT,):
                    continue
                inner = [layer for layer in chosen if layer not in (LATENT, IMAGE)]
                with watching(self.module, inner, lambda layer, output: moments[layer].add(output)):
                    images = self._images(latents, {})
                if IMAGE in moments:
                    moments[IMAGE].add(images)
        scales = {}
        for layer, moment in moments.items():  # a comprehension would be where warnings point
            scales[layer] = _scale(layer, moment.deviation(), per)
        return scales

    def groups(self, groups: Mapping[str, Sequence[str]] | None = None) -> dict[str, tuple[str, ...]]:
        """Return layers by granularity: the user's own groups, checked (patterns too), or latent, early, middle, late and pixels.

        Early, middle and late are thirds of the inner layers, from coarse to fine; with fewer than three of these some are missing. The latent is left
        out where it is of whole numbers alone, which cannot be perturbed.

        Raises:
            LayerError: a layer that is not there.
            ValueError: no mapping, no group, or one without layers.
        """
        if groups is None:
            inner = self.layers[1:-1]
            ends = [round(len(inner) * third / 3) for third in range(4)]
            thirds = {name: inner[ends[place] : ends[place + 1]] for place, name in enumerate(("early", "middle", "late"))}
            coarsest = {"latent": (LATENT,)} if self._moves_latents() else {}
            return {**coarsest, **{name: layers for name, layers in thirds.items() if layers}, "pixels": (IMAGE,)}
        if not isinstance(groups, Mapping):
            raise ValueError(f"groups is {groups!r:.80}; expected a mapping {{name: layers}}, such as {{'coarse': […]}}")
        if not groups:
            raise ValueError(
                f"groups is {groups!r}; expected at least one group of layers, or None for latent, early, middle, late and pixels"
            )
        checked = {}
        for name, wanted in groups.items():
            if isinstance(wanted, str) or not wanted:
                raise ValueError(f"group {name!r} is {wanted!r}; expected a list of layers, at least one")
            found = [layer for pattern in wanted for layer in matching(pattern, self.layers) or [pattern]]
            for layer in found:
                if layer not in self.layers:
                    raise LayerError(missing(layer, self.layers, self._shapes))
            checked[str(name)] = tuple(sorted(set(found), key=self.layers.index))
        return checked

    def _moves_latents(self) -> bool:
        try:
            parts = parts_of(self.draw(["0"]).latents)
        except Exception:  # a function may know its own ids only; what it draws is seen when it is used
            return True
        return any(part.is_floating_point() for part in parts)

    # ── one pass ──

    def _images(self, latents: Latents, perturbations: dict[str, Tensor]) -> Tensor:
        return self._finished(self._drawn(latents, perturbations), perturbations.get(IMAGE))

    def _drawn(self, latents: Latents, perturbations: dict[str, Tensor]) -> Tensor:
        """Return what the network draws, perturbed inside, in its own values."""
        if not self.seeded:
            return self._run(latents, perturbations)
        rows = []
        for row, identity in enumerate(latents.ids):
            alone = {layer: perturbation[row : row + 1] for layer, perturbation in perturbations.items()}
            with SampleRandom.of(latents.seed, [identity]).global_generators("generator"):
                rows.append(self._run(latents.select([row]), alone))
        return torch.cat(rows)

    def _run(self, latents: Latents, perturbations: dict[str, Tensor] | None) -> Tensor:
        """Call the network, perturbed inside, and return what it draws, in its own values."""
        inside = {layer: perturbation for layer, perturbation in (perturbations or {}).items() if layer != IMAGE}
        first = inside.pop(LATENT, None) if self.latent_layer is None else None
        positional, keywords = self._arguments(latents, first)
        reached: list[str] = []

        def reach(layer: str) -> bool:
            reached.append(layer)
            return True

        since = torch.autograd._get_sequence_nr()
        try:
            with self._perturbing(inside, reach):
                draw = self.module if self.method is None else getattr(self.module, self.method)
                returned = draw(*positional, **keywords)
        except (RtError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise GeneratorError(
                f"generator {self.name!r} failed on {_said(positional, keywords)}: {type(error).__name__}: {error}{self._remedy(error)}"
            ) from error
        for layer in inside:
            if reached.count(layer) != 1:
                raise LayerError(not_once(layer, reached.count(layer)))
        images = _selected(returned, self.output, self.name)
        if images.ndim != 4 or len(images) != len(latents):
            shape = f"[{len(latents)}, channel, height, width]"
            raise GeneratorError(f"generator {self.name!r} gave shape {list(images.shape)}; expected {shape}, or say output=")
        if images.requires_grad:
            images.register_hook(_Backward(self, inside, range(since, torch.autograd._get_sequence_nr())))
        return images

    def _remedy(self, error: Exception) -> str:
        """Return what to say of classes where what the network raised may come from these."""
        if self.classes is None:
            lacks = isinstance(error, TypeError) and "missing" in str(error)
            return "; if it is conditional, say how many classes it has, classes=" if lacks else ""
        # What torch says where whole numbers are embedded, select rows, or are made one-hot by the network itself.
        if self.label == "one_hot" and re.search(r"ind(ex|ices)\b.*\blong|index tensor", str(error), re.DOTALL | re.IGNORECASE):
            return "; if it takes the indices of classes, say label='index'"
        return ""

    def _arguments(self, latents: Latents, first: Tensor | None) -> tuple[list[Any], dict[str, Any]]:
        weights = chain(self.module.parameters(), self.module.buffers())
        weight = next((tensor for tensor in weights if tensor.is_floating_point()), None)
        device, dtype = (None, None) if weight is None else (weight.device, weight.dtype)
        if latents.classes is not None and latents.classes.device.type == "cpu":  # elsewhere, looking at them would wait for the device
            self._check_classes(latents.classes)
        latents = latents.to(device)
        given = (
            cast(latents.latents, dtype) if dtype == torch.float64 else latents.latents
        )  # for half precision the sum is rounded, not its parts
        # A copy: a network may overwrite what it is given.
        prepared = copied(cast(given if first is None else moved(given, first), dtype))
        positional = [] if isinstance(prepared, dict) else parts_of(prepared)
        keywords = {**(prepared if isinstance(prepared, dict) else {}), **self.keywords}
        if self.classes is not None:
            if latents.classes is None:
                raise ValueError(f"the latents have no classes; generator {self.name!r} needs them: draw them with it")
            label = self._labelled(latents.classes.clone(), dtype or torch.float32)
            if self.label_keyword is None:
                positional.append(label)
            else:
                keywords[self.label_keyword] = label
        return [*positional, *self.arguments], keywords

    def _labelled(self, classes: Tensor, dtype: torch.dtype) -> Any:
        if callable(self.label):
            return self.label(classes)
        if self.label == "index":
            return classes
        return torch.zeros(len(classes), self.classes or 0, dtype=dtype, device=classes.device).scatter_(1, classes[:, None], 1)

    @contextlib.contextmanager
    def _perturbing(self, inside: Mapping[str, Tensor], ours: Callable[[str], bool], again: bool = False) -> Iterator[None]:
        """Add where ``ours(layer)`` says so. again: in a backward pass."""
        handles = []
        try:
            for layer, perturbation in inside.items():
                if layer == LATENT:
                    before = partial(_add_before, perturbation, ours)
                    handles.append(self.module.get_submodule(str(self.latent_layer)).register_forward_pre_hook(before))
                else:
                    graded = again or (perturbation.requires_grad and torch.is_grad_enabled())
                    after = partial(_add_after, layer, perturbation, ours, graded)
                    handles.append(self.module.get_submodule(layer).register_forward_hook(after))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _finished(self, images: Tensor, perturbation: Tensor | None) -> Tensor:
        images = images if images.dtype == torch.float64 else images.float()
        if self.values is not None:
            low, high = self.values
            images = (images - low) / (high - low)
        if perturbation is not None:
            images = add(IMAGE, images, perturbation)
        return images if self.values is None else images.clamp(0, 1)

    def _probe(self, latents: Latents) -> dict[str, tuple[int, ...]]:
        """Return the layers' shapes; raise where one cannot be perturbed, the order is another, or the network draws another image each time."""
        inner = self.layers[1:-1]
        outputs: dict[str, list[Any]] = {layer: [] for layer in inner}
        sizes: dict[str, Tensor] = {}
        order: list[str] = []

        def see(layer: str, output: Any) -> None:
            order.append(layer)
            outputs[layer].append(tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__)
            if isinstance(output, Tensor):
                check_kind(layer, output.dtype)
                sizes[layer] = output.float().square().mean().sqrt()

        with torch.no_grad():
            with watching(self.module, inner, see):
                drawn = self._drawn(latents, {})
            images, again = self._finished(drawn, None), self._images(latents, {})
        for layer, found in outputs.items():
            if len(found) != 1:
                raise LayerError(not_once(layer, len(found)))
            if isinstance(found[0], str):
                inside = [name for name, _ in self.module.get_submodule(layer).named_children()]
                raise LayerError(
                    f"layer {layer!r} returns a {found[0]}; a layer must return a tensor: name one of its parts ({', '.join(inside) or 'it has none'})"
                )
            if not found[0] or found[0][0] != 1:
                raise LayerError(
                    f"layer {layer!r} gives shape {list(found[0])} for one image; a layer needs one row an image: name another"
                )
        if order != list(inner):
            raise LayerError(f"the layers run in the order {order}; name them in this order, not {list(inner)}")
        if not bool(images.isfinite().all()):
            raise GeneratorError(
                f"generator {self.name!r} draws NaN or infinity; are its weights loaded, and was it trained in this precision?"
            )
        apart, step = (images - again).abs().max().item(), torch.finfo(_coarsest(self.module)).eps
        # In half precision 64 steps are more than much noise; in single, a few are what parallel sums differ by.
        room = max(4 * step, 64 * min(step, torch.finfo(torch.float32).eps))
        if not apart <= room * max(1.0, images.abs().max().item()):
            raise GeneratorError(
                f"generator {self.name!r} draws another image each time from the same latents (apart by {apart:.2g}): fix its noise, such as "
                "keywords={'noise_mode': 'const'}, or say seeded=True, which fixes the noise by item and costs a pass an image"
            )
        if self._shapes is None:
            with torch.no_grad():
                if not self.seeded:  # where every image is drawn alone
                    self._check_beside(latents, room)
                for layer in inner:
                    self._check_moves(latents, drawn, layer, outputs[layer][0], sizes[layer].item())
        return {
            LATENT: tuple(joined(latents.latents).shape[1:]),
            **{layer: tuple(found[0][1:]) for layer, found in outputs.items()},
            IMAGE: tuple(images.shape[1:]),
        }

    def _check_beside(self, latents: Latents, room: float) -> None:
        """Raise where an image depends on what is drawn beside it: a copy of itself, or another one."""
        try:  # of two images each, so that both take the same way through the device's kernels
            images, others = (self._images(pair, {})[0] for pair in (latents.select([0, 0]), beside(latents, self.classes)))
        except GeneratorError:  # it draws one image at a time, or nothing from such a latent: if it must, that is said then
            return
        apart = (images - others).abs().max().item()
        if not apart <= room * max(1.0, images.abs().max().item()):
            raise GeneratorError(
                f"generator {self.name!r} draws another image from the same latents when others are drawn beside it (apart by {apart:.2g}), as norms do "
                "that use a batch's statistics: let them use running statistics (track_running_stats=True), or say seeded=True, which draws each "
                "image alone"
            )

    def _check_moves(self, latents: Latents, drawn: Tensor, layer: str, shape: tuple[int, ...], size: float) -> None:
        """Raise where a perturbation of a layer, of its activation's size or a hundred times that, leaves every bit of what is drawn."""
        moved = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * (size if 0 < size < inf else 1.0)
        if all(
            torch.equal(self._drawn(latents, {layer: factor * moved}), drawn) for factor in (1, 100, -100)
        ):  # a ReLU that follows may hide one sign
            raise LayerError(
                f"layer {layer!r} cannot be perturbed: adding to what it returns moves no bit of the image. It may work in place while its return is "
                "dropped, or lead nowhere: name the layer around it or the next one, or leave it out"
            )

    def _settings(self) -> dict[str, Any]:
        names = "latent layers classes label label_keyword values arguments keywords latent_layer method output seeded"
        return {name: getattr(self, name) for name in names.split()}


class _Backward:
    """Perturbs again for the length of a backward pass, in which torch.utils.checkpoint runs parts of the network a second time.

    Called with the images' gradient, before any of that; closes at the end of the pass, or where that failed, when its graph goes or the generator
    is next taken into use or let go. So nothing that stays may hold it: not the hooks either. What runs again belongs to this call if the step of the
    backward pass that asks for it does, and steps are numbered in the order in which their calls made them. So several calls can be in one pass.

    steps: the numbers of the call's own steps
    """

    def __init__(self, generator: Generator, inside: Mapping[str, Tensor], steps: range) -> None:
        self.generator, self.inside, self.steps, self.stack = generator, inside, steps, contextlib.ExitStack()

    def __call__(self, slope: Tensor) -> None:
        self.close()  # where an earlier pass through this graph failed
        self.generator.passes.backwards += len(slope)
        _OPEN[next(_NUMBERS)] = self
        self.stack.enter_context(self.generator._held.in_use())
        self.stack.enter_context(self.generator._perturbing(self.inside, partial(_within, self.steps), again=True))
        torch.autograd.Variable._execution_engine.queue_callback(partial(_close, self.generator.module))

    def close(self) -> None:
        self.stack.close()

    def __del__(self) -> None:
        self.stack.close()


_OPEN: WeakValueDictionary[int, _Backward] = WeakValueDictionary()  # by when they began
_NUMBERS = count()


def _close(module: nn.Module) -> None:
    """End what backward passes have opened on a network, the latest first: each puts back what it found."""
    for number, one in sorted(_OPEN.items(), reverse=True):
        if one.generator.module is module:
            one.close()
            _OPEN.pop(number, None)


def _within(steps: range, layer: str) -> bool:
    step = torch._C._current_autograd_node()
    return step is not None and step._sequence_nr() in steps


def _add_after(
    layer: str, perturbation: Tensor, ours: Callable[[str], bool], graded: bool, module: nn.Module, arguments: Any, output: Any
) -> Any:
    if not ours(layer):
        return output
    if not isinstance(output, Tensor):
        raise LayerError(f"layer {layer!r} returns a {type(output).__name__}; a layer must return a tensor: name one of its parts")
    if graded and not torch.is_grad_enabled():
        raise LayerError(
            f"layer {layer!r} runs without gradients, as inside a reentrant checkpoint: its perturbation would get none; "
            "switch checkpointing off, say use_reentrant=False there, or name a layer around it"
        )
    return add(layer, output, perturbation)


def _add_before(perturbation: Tensor, ours: Callable[[str], bool], module: nn.Module, arguments: Any) -> Any:
    if not ours(LATENT):
        return None
    if not arguments:
        raise LayerError("the latent_layer is called with keywords only; its first argument must be what begins with the latent")
    first, width = arguments[0], perturbation.shape[1]
    moved = add(LATENT, first[:, :width], perturbation)
    return (torch.cat([moved, first[:, width:]], 1), *arguments[1:])


class _Moments:
    """Mean and squared distance from it of what was added so far, per neuron, in float64 (Chan et al.'s merging of two sets)."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, torch.zeros(()), torch.zeros(())

    def add(self, activations: Tensor) -> None:
        values = activations.detach().to(torch.float32 if activations.device.type == "mps" else torch.float64)
        mean, count = values.mean(0), len(values)
        squares = (values - mean).square().sum(0)
        if self.count:
            apart, total = mean - self.mean, self.count + count
            squares = self.squares + squares + apart.square() * (self.count * count / total)
            mean = self.mean + apart * (count / total)
        self.count, self.mean, self.squares = self.count + count, mean, squares

    def deviation(self) -> Tensor:
        return (self.squares / (self.count - 1)).sqrt()


def _scale(layer: str, deviation: Tensor, per: str) -> Any:
    still, neurons = int((deviation == 0).sum()), deviation.numel()
    if still == neurons:
        if neurons:  # latents of whole numbers have none that could vary
            warnings.warn(
                f"layer {layer!r} never varies: its scale is set to 1, its activation's own unit", RobustnessWarning, stacklevel=3
            )
        deviation = torch.ones_like(deviation)
    elif still and per == "neuron":
        message = f"{still} of {neurons} neurons of layer {layer!r} never vary: their scale is 0, so they are not moved"
        warnings.warn(message, RobustnessWarning, stacklevel=3)
    if per == "neuron":
        return deviation.float()
    return deviation.square().mean().sqrt().item() if neurons else 1.0


def _nothing(returned: Any) -> Any:
    raise TypeError("a generator is not called as an encoder")


def _selected(returned: Any, output: Any, name: str) -> Tensor:
    part = returned
    if callable(output):
        part = output(returned)
    elif isinstance(output, str):
        part = returned.get(output) if isinstance(returned, Mapping) else getattr(returned, output, None)
    elif isinstance(output, int):
        part = returned[output]
    if not isinstance(part, Tensor):
        raise GeneratorError(
            f"generator {name!r} returned a {type(returned).__name__}, and output={output!r} selects no tensor; say which part, such as output=0"
        )
    return part


def _coarsest(module: nn.Module) -> torch.dtype:
    kinds = {weight.dtype for weight in module.parameters() if weight.is_floating_point()}
    return max(kinds or {torch.float32}, key=lambda kind: torch.finfo(kind).eps)


def _inner(module: nn.Module, layers: Sequence[str]) -> tuple[str, ...]:
    found = expand(module, layers)
    for layer in found:
        if layer in (LATENT, IMAGE):
            parts = [f"{layer}.{name}" for name, _ in module.get_submodule(layer).named_children()]
            raise LayerError(
                f"a submodule is named {layer!r}, which stands for {'what the network is given' if layer == LATENT else 'what the network draws'}: "
                f"rename the submodule, or name a part of it instead ({', '.join(parts) or 'it has none'}), with layers=[…]"
            )
    return found


def _said(positional: Sequence[Any], keywords: Mapping[str, Any]) -> str:
    def one(value: Any) -> str:
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}" if isinstance(value, Tensor) else repr(value)

    return ", ".join([*map(one, positional), *(f"{name}={one(value)}" for name, value in keywords.items())])


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    if isinstance(value, Tensor):
        return f"tensor {list(value.shape)}"
    return getattr(value, "__qualname__", repr(value))
