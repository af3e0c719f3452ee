"""The smallest perturbation of chosen layers that reaches a goal: the constraint on its magnitude is gradually relaxed."""

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from rt_core.encoders import Encoder
from rt_core.naming import did_you_mean
from rt_core.perturbing import check_batch
from rt_core.randomness import SampleRandom, check_seed
from rt_core.traces import check_number, check_whole, lengths, per_sample
from rt_generator_perturbations.generators import Generator
from rt_generator_perturbations.goals import Goal, Objective, check_inputs_of, check_target_classes, check_targets, find_goal, with_bank
from rt_generator_perturbations.latents import Latents
from rt_generator_perturbations.looking import ask, check_latents
from rt_generator_perturbations.victims import check_bounds, check_finite, check_generator, victim_of

__all__ = ["NORMS", "Coordinates", "Found", "PerturbationModel", "Relaxation", "perturbation_model", "search"]

NORMS = ("rms", "l2", "layer_max")
_START, _LIMIT = 0.01, 5.0  # standard deviations
_MOST = 10_000  # radii
_INSIDE = 1 - 1e-6  # of a radius: lengths are measured in float32 there, and what is found in float64


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """How the constraint on a perturbation's magnitude is relaxed until the goal is reached.

    A perturbation is p_i = s_i · q_i at layer i, s_i the standard deviation of the layer's unperturbed activations; its magnitude is a
    norm of q over all chosen layers. From ``start`` on, the radius grows by the factor ``growth`` up to ``limit``; at each radius
    ``steps_per_radius`` steps are taken, each along the normalized gradient and back into the ball, from where the last radius left off.
    What is first reached is then shortened along its own direction by bisection. That the constraint is relaxed gradually is the paper's
    (Dunn et al., arXiv 2001.11055); norm, scale, schedule and step are choices of ours, since its section on the search is not known to us.

    Args:
        norm: ``"rms"``, the root mean square of q, which does not depend on how many numbers the layers have; ``"l2"``, its length;
            ``"layer_max"``, the largest root mean square of a layer.
        start, limit: the first and the last radius, in the norm's own units; None stands for 0.01 (a tenth of the limit, if that is less) and 5
            standard deviations root mean square (for l2 times the root of how many numbers there are).
        growth: the factor from a radius to the next; on the digits, 1.06 finds 2 to 5 % less than 1.1 and takes 1.6 times as long.
        steps_per_radius: gradient steps at each radius.
        step: size of a step, as a share of the radius.
        refine: halvings of the bisection, one forward pass each: the result is within 2^-refine of the smallest multiple that reaches.

    Raises:
        ValueError: a parameter out of its range.
    """

    norm: str = "rms"
    start: float | None = None
    limit: float | None = None
    growth: float = 1.1
    steps_per_radius: int = 3
    step: float = 0.25
    refine: int = 6

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise ValueError(f"norm is {self.norm!r}; expected one of {', '.join(map(repr, NORMS))}")
        for name in ("start", "limit", "growth", "step"):
            value = getattr(self, name)
            if value is None and name in ("start", "limit"):
                continue
            check_number(name, value)
            if not value > 0:
                raise ValueError(f"{name} is {value:g}; it must be positive")
        if not self.growth > 1:
            raise ValueError(f"growth is {self.growth:g}; a radius grows by a factor above 1, such as 1.1")
        check_whole("steps_per_radius", self.steps_per_radius)
        if not isinstance(self.refine, int) or isinstance(self.refine, bool) or self.refine < 0:
            raise ValueError(f"refine is {self.refine!r}; expected a whole number of halvings, 0 for none")
        if self.start is not None and self.limit is not None and self.start > self.limit:
            raise ValueError(f"start is {self.start:g} and limit {self.limit:g}; the radius grows from start to limit")

    @classmethod
    def of(cls, options: Mapping[str, Any], function: Callable[..., Any]) -> "Relaxation":
        """Return the relaxation with these options, which a function was called with beside its own.

        Raises:
            ValueError: there is no such option, or a parameter is out of its range.
        """
        known = [option.name for option in fields(cls)]
        for name in [option for option in options if option not in known]:
            meant = did_you_mean(name, [*known, *inspect.signature(function).parameters])
            raise ValueError(f"there is no option {name!r}{meant}; how the search goes is said by {', '.join(known)} (Relaxation)")
        return cls(**options)

    def radii(self, size: int) -> list[float]:
        """Return every radius in ascending order, the last of them ``limit`` itself.

        size: how many numbers the chosen layers have for one image

        Raises:
            ValueError: they are more than 10,000.
        """
        unit = math.sqrt(size) if self.norm == "l2" else 1.0
        start, limit = self.start, self.limit
        if start is None:
            start = _START * unit if limit is None else min(_START * unit, limit / 10)
        limit = max(_LIMIT * unit, start) if limit is None else limit
        if (count := math.log(limit / start) / math.log(self.growth) + 1) > _MOST:
            raise ValueError(
                f"growth is {self.growth!r}; from {start:g} to {limit:g} these are {count:,.0f} radii, and at most {_MOST:,} are expected: say a larger "
                "growth, such as 1.1, or a start nearer to the limit"
            )
        return [*itertools.takewhile(lambda radius: radius < limit, (start * self.growth**power for power in itertools.count())), limit]


class Coordinates:
    """Perturbations of some layers, their norm, and how a search moves them.

    A perturbation p_i = s_i · q_i is held as one tensor a layer, in what the network adds: p_i itself where a layer has one scale, q_i where
    each neuron has its own. So a step touches each number a few times and no more.

    shapes: {layer: shape of one image's activation}, in order; scales: {layer: a positive number, or a tensor of the layer's shape}

    Raises:
        ValueError: no layer, another norm, or a scale that is missing, of another shape, negative, not finite or all 0.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], scales: Mapping[str, Any], norm: str = "rms") -> None:
        if not shapes:
            raise ValueError("no layer is chosen; give at least one")
        if missing := [layer for layer in shapes if layer not in scales]:
            raise ValueError(f"scales lack {', '.join(map(repr, missing))}; give one for each layer, such as generator.scales() does")
        if norm not in NORMS:
            raise ValueError(f"norm is {norm!r}; expected one of {', '.join(map(repr, NORMS))}")
        self.shapes = {layer: tuple(shape) for layer, shape in shapes.items()}
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.size, self.norm = sum(self.sizes), norm
        self._units: list[float] = []
        self._neurons: dict[str, Tensor] = {}
        for layer in shapes:
            scale = torch.as_tensor(scales[layer], dtype=torch.float32)
            if scale.ndim and tuple(scale.shape) != self.shapes[layer]:
                raise ValueError(
                    f"the scale of layer {layer!r} has shape {list(scale.shape)}; expected one number, or one for each neuron, {list(self.shapes[layer])}"
                )
            if not bool(((scale >= 0) & scale.isfinite()).all()) or not bool((scale > 0).any()):
                raise ValueError(
                    f"the scale of layer {layer!r} is in {scale.min():g} to {scale.max():g}; expected finite numbers of at least 0, not all 0"
                )
            self._units.append(scale.item() if scale.ndim == 0 else 1.0)
            if scale.ndim:
                self._neurons[layer] = scale

    def parts(self, rows: Tensor) -> list[Tensor]:
        """Return q of all layers, side by side, as a search holds it.

        rows: [batch, size] -> [batch, *shape] for each layer
        """
        split = zip(rows.split(self.sizes, dim=1), self.shapes.values(), self._units, strict=True)
        return [part.reshape(len(rows), *shape) * unit for part, shape, unit in split]

    def rows(self, parts: Sequence[Tensor]) -> Tensor:
        """Return q of all layers, side by side: the inverse of ``parts``.

        [batch, *shape] for each layer -> [batch, size]
        """
        return torch.cat([(part / unit).flatten(1) for part, unit in zip(parts, self._units, strict=True)], dim=1)

    def moved(self, rows: Tensor) -> Tensor:
        """Return q with 0 for neurons whose scale is 0: they move nothing, and must not count. [batch, size] -> same shape"""
        alive = [
            (self._neurons[layer] > 0).float() if layer in self._neurons else torch.ones(shape) for layer, shape in self.shapes.items()
        ]
        return rows * torch.cat([one.flatten() for one in alive]).to(rows)

    def perturbations(self, parts: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return p as the generator takes it: {layer: [batch, *shape]}."""
        return {
            layer: part * self._scale(layer, part) if layer in self._neurons else part
            for layer, part in zip(self.shapes, parts, strict=True)
        }

    def magnitude(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the norm of q, summed in float64: [batch]."""
        return self._blocks(self._exact_lengths(parts)).amax(1)

    def project(self, parts: Sequence[Tensor], radius: float, *, exact: bool = False) -> Tensor:
        """Move the parts back into the ball, in place: what is too long is shortened, all layers together or, for layer_max, each for itself.

        They come to lie a millionth of the radius inside. exact: measure in float64, where float32 is off by more (from some 100,000 numbers on).
        Return the magnitude that each had, [batch].
        """
        block, radius = self._blocks(self._exact_lengths(parts) if exact else self._lengths(parts, inverse=True)), radius * _INSIDE
        shorter = torch.where(block > radius, radius / block, 1)
        for part, factor in zip(parts, shorter.T, strict=True):
            part.mul_(per_sample(factor.to(part), part))
        return block.amax(1)

    def step(self, parts: Sequence[Tensor], slopes: Sequence[Tensor], size: float, *, still: Tensor) -> Tensor:
        """Move the parts down a slope by a magnitude, in place: the steepest descent in the norm. Return which rows have no slope.

        Rows that are to stay still, and what has no slope, stay as they are, bit for bit; a slope that is not finite makes NaNs.

        slopes: like the parts, of a loss; still: [batch] -> [batch], bool
        """
        block = self._blocks(self._lengths(slopes))
        sloped = block.isfinite() & (block > 0)
        factors = torch.where(sloped & ~still[:, None], size / block, 0)
        for part, slope, factor, unit in zip(parts, slopes, factors.T, self._units, strict=True):
            part.addcmul_(per_sample((factor * unit**2).to(part), part), slope, value=-1)
        return ~sloped.any(1)

    def _exact_lengths(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.stack([lengths(_exact(part)) / unit for part, unit in zip(parts, self._units, strict=True)], dim=1)

    def _lengths(self, parts: Sequence[Tensor], *, inverse: bool = False) -> Tensor:
        """Return the length of each layer's q, or of the slope in it: [batch, layers]. One pass each; off by some last bits of float32."""
        units = [1 / unit if inverse else unit for unit in self._units]
        found = [torch.linalg.vector_norm(part.flatten(1), dim=1) * unit for part, unit in zip(parts, units, strict=True)]
        return _exact(torch.stack(found, dim=1))

    def _blocks(self, lengths: Tensor) -> Tensor:
        """Return for each layer the norm of the block that it belongs to. lengths: [batch, layers] -> same shape"""
        if self.norm == "layer_max":
            return lengths / lengths.new_tensor(self.sizes).sqrt()
        whole = lengths.square().sum(1, keepdim=True).sqrt() / (1 if self.norm == "l2" else math.sqrt(self.size))
        return whole.expand_as(lengths)

    def _scale(self, layer: str, like: Tensor) -> Tensor:
        if self._neurons[layer].device != like.device:
            self._neurons[layer] = self._neurons[layer].to(like.device)
        return self._neurons[layer]


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What a search found; all on the CPU, and measured again on the images that are returned.

    reached: [batch], bool; magnitude: [batch] float64, infinity where the goal was not reached up to the limit, NaN where the item was lost; first:
    [batch], the magnitude at which it was first reached, before it was shortened; steps: [batch], gradient steps until then; stuck: [batch], items
    whose slope was zero (or not finite) at every step; lost: [batch], items that did not reach the goal and of which the victim's output, or its
    slope, was not finite on the way, so that nothing is known of them; perturbations: {layer: [batch, *shape]}, float32, the last ones where
    nothing was reached; clean_images, images: [batch, channel, height, width]; clean, outputs: [batch, dim], the victim's; labels, targets: what
    the goal was given, or None.
    """

    ids: tuple[str, ...]
    reached: Tensor
    magnitude: Tensor
    first: Tensor
    steps: Tensor
    stuck: Tensor
    lost: Tensor
    perturbations: Mapping[str, Tensor]
    clean_images: Tensor
    images: Tensor
    clean: Tensor
    outputs: Tensor
    labels: Tensor | None = None
    targets: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Found({int(self.reached.sum())} of {len(self)} reached, median magnitude {self.magnitude.nanmedian():.3g})"

    @property
    def status(self) -> tuple[str, ...]:
        """Return ``"reached"``, ``"not reached"`` or ``"not finite"`` (lost) for each item."""
        words = {(True, False): "reached", (False, False): "not reached", (False, True): "not finite"}
        return tuple(words[both] for both in zip(self.reached.tolist(), self.lost.tolist(), strict=True))


def search(
    generator: Generator,
    victim: Any,
    latents: Latents,
    goal: str | Goal | type[Goal] = "target",
    *,
    layers: Sequence[str],
    scales: Mapping[str, Any] | None = None,
    labels: Tensor | None = None,
    targets: Tensor | None = None,
    seed: int = 0,
    batch: int | None = None,
    device: str | torch.device | None = None,
    **relaxation: Any,
) -> Found:
    """Find the smallest perturbation of some layers with which the generator's image makes a victim do what the goal says.

    A step costs one forward pass and one gradient of generator and victim, and nothing else; besides, there are the clean pass, one
    forward pass for each halving of the bisection, and a last one in which everything is measured again; and before all a look at two images,
    which the victim is asked about three times. Items leave a batch after the
    radius at which they reach the goal. Apart from the last bits of networks whose rows are not independent of the rows beside them, what is
    found for an item depends on its id and the seed, not on the batch or the order. A victim that draws noise of its own is warned of; its noise
    follows from seed and batch, and the global generators are left as they were.

    Args:
        generator, victim: a ``Generator``, and an ``Encoder`` whose outputs are logits or representations, or what else ``granularity_curve`` takes
            as a victim.
        latents: of the items, such as ``generator.draw(range(100), seed=0)`` gives.
        goal: a name (``GOALS``), a ``Goal``, or a kind of it, with its default options.
        layers: the names of the layers that are perturbed together, ``"latent"`` and ``"image"`` among them if wanted.
        scales: {layer: scale}; ``generator.scales()`` unless given.
        labels: [batch], the items' classes; unless given, those that they were drawn of, or else what the victim says of the clean images.
        targets: [batch] classes or [batch, dim] representations to reach; classes are drawn at random unless given. Goals that lead away have none.
        batch: how many at a time, 64 unless given.
        device: where both run; None leaves them where they are.
        relaxation: the fields of ``Relaxation``.

    Raises:
        ValueError: a parameter out of its range, no items, latents that are not finite, a goal that lacks what it needs or is given what it has not,
            a target that is the item's own class, a victim of other bounds than the generator's images, or one that gives probabilities to a goal
            of classes.
        EncoderError: the victim gives NaN or infinity for a clean image.
        InvalidInputs: a bank of inputs that are none of the victim's.
        LayerError: no such layer.
    """
    check_generator(generator)
    victim = victim_of(victim)
    check_bounds(victim, generator)
    seed = check_seed(seed)
    check_latents(latents)
    schedule, wanted, whole, size = Relaxation.of(relaxation, search), find_goal(goal), len(latents), check_batch(batch)
    chosen = generator.groups({"layers": layers})["layers"]
    labels, targets = (None if given is None else torch.as_tensor(given) for given in (labels, targets))
    check_targets(wanted, targets)
    check_inputs_of(wanted, victim)
    for what, given in (("labels", labels), ("targets", targets)):
        if given is not None and given.shape[:1] != (whole,):
            raise ValueError(f"{what} has shape {list(given.shape)} for {whole} items; give one an item")
    with torch.inference_mode(False), generator.in_use(device), victim.in_use(device):
        with torch.no_grad():
            images = generator(latents.select(slice(0, 2)))
        said = ask(generator, victim.name, victim, images, wanted, batch=size, classes=latents.classes, told=labels is not None)
        if targets is not None and wanted.reads == "logits":
            check_target_classes(targets, said.shape[1], latents.classes if labels is None else labels, latents.ids)
        coordinates = coordinates_of(generator, chosen, generator.scales(layers=chosen) if scales is None else scales, schedule.norm)
        schedule.radii(coordinates.size)  # raises where they are too many
        wanted = with_bank(wanted, victim, lambda count: further_draws(generator, count, seed, size), batch=size, seed=seed)
        return searched(generator, victim, latents, wanted, coordinates, schedule, labels=labels, targets=targets, seed=seed, batch=size)


def searched(
    generator: Generator,
    victim: Encoder,
    latents: Latents,
    goal: Goal,
    coordinates: Coordinates,
    schedule: Relaxation,
    *,
    labels: Tensor | None,
    targets: Tensor | None,
    seed: int,
    batch: int,
) -> Found:
    """Do what ``search`` does once everything was looked at; the goal has its bank, and generator and victim are held in use."""
    found = []
    for start in range(0, len(latents), batch):
        rows = slice(start, start + batch)
        own_labels, own_targets = (None if given is None else given[rows] for given in (labels, targets))
        part = latents.select(rows)
        with SampleRandom.of(seed, part.ids).global_generators("search"):
            found.append(_searched(generator, victim, part, goal, coordinates, schedule, own_labels, own_targets, seed))
    return _together(found)


def coordinates_of(generator: Generator, layers: Sequence[str], scales: Mapping[str, Any], norm: str) -> Coordinates:
    """Return the coordinates of some of a generator's layers."""
    shapes = generator.shapes()
    return Coordinates({layer: shapes[layer] for layer in layers}, scales, norm)


def further_draws(generator: Generator, count: int, seed: int, batch: int) -> Tensor:
    """Return images of draws that are none of the items: what stands in a bank unless one is given.

    -> [count, channel, height, width], on the CPU
    """
    ids = [f"bank {place}" for place in range(count)]
    with torch.no_grad():
        return torch.cat([generator(generator.draw(ids[start : start + batch], seed=seed)).cpu() for start in range(0, count, batch)])


class PerturbationModel(nn.Module):
    """A generator and a victim as one network whose input is a perturbation: what any toolbox that attacks classifiers can search.

    Holds them without being their parent, so no toolbox finds their modes, weights and gradients; both are in eval mode and frozen whenever
    they run. See ``perturbation_model``.
    """

    generator: Generator
    victim: Encoder

    def __init__(self, generator: Generator, victim: Encoder, latents: Latents, coordinates: Coordinates, limit: float | None) -> None:
        super().__init__()
        self.training = False
        self.__dict__.update(generator=generator, victim=victim)
        self.latents, self.coordinates, self.limit = latents, coordinates, limit
        # Toolboxes look at a network's first parameter for its device.
        self.device_marker = nn.Parameter(torch.empty(0, device=generator.where()), requires_grad=False)

    @property
    def size(self) -> int:
        """Return how many numbers an input has."""
        return self.coordinates.size

    def start(self) -> Tensor:
        """Return the inputs that perturb nothing: what a toolbox is given as the clean ones.

        -> [items, 1, 1, size], since toolboxes know pictures; any other shape with ``size`` numbers a row is taken as well
        """
        return torch.full((len(self.latents), 1, 1, self.size), 0.0 if self.limit is None else 0.5, device=self.device_marker.device)

    def perturbations(self, inputs: Tensor) -> dict[str, Tensor]:
        """Return what the generator is given for some inputs.

        inputs: [batch, 1, 1, size] -> {layer: [batch, *shape]}
        """
        return self.coordinates.perturbations(self._parts(inputs))

    def magnitude(self, inputs: Tensor) -> Tensor:
        """inputs: [batch, 1, 1, size] -> [batch], in the norm that the model was made with"""
        return self.coordinates.magnitude(self._parts(inputs))

    def images(self, inputs: Tensor) -> Tensor:
        """inputs: [batch, 1, 1, size] -> [batch, channel, height, width]

        Raises:
            ValueError: there is neither one item nor one for each row.
        """
        items = len(self.latents)
        if items not in (1, len(inputs)):
            raise ValueError(
                f"{len(inputs)} rows for {items} items; a toolbox that drops or repeats rows needs a model of one item: latents.select([row])"
            )
        latents = self.latents.select([0] * len(inputs)) if items == 1 else self.latents
        return self.generator(latents, self.perturbations(inputs.float()))

    def forward(self, inputs: Tensor) -> Tensor:
        """[batch, 1, 1, size] -> [batch, dim], the victim's outputs"""
        return self.victim(self.images(inputs))

    def train(self, mode: bool = True) -> "PerturbationModel":
        """Do nothing: what is searched is always in eval mode."""
        return self

    def _parts(self, inputs: Tensor) -> list[Tensor]:
        rows = inputs.flatten(1)
        if rows.shape[1] != self.size:
            raise ValueError(f"inputs have shape {list(inputs.shape)}; expected {self.size} numbers a row, as start() has")
        return self.coordinates.parts(rows if self.limit is None else (rows - 0.5) * (2 * self.limit))


def perturbation_model(
    generator: Generator,
    victim: Any,
    latents: Latents,
    *,
    layers: Sequence[str],
    scales: Mapping[str, Any] | None = None,
    norm: str = "rms",
    limit: float | None = None,
) -> PerturbationModel:
    """Return a network from a perturbation of some layers to the victim's outputs, for the attacks of ART, torchattacks and the like.

    Args:
        latents: of one item, which every row then is; or of as many as there are rows, for toolboxes that keep rows as they are.
        layers, scales: as for ``search``.
        norm: that ``magnitude`` measures in.
        limit: None takes inputs in units of the layers' scales, 0 for no perturbation. With a number, inputs lie in [0, 1], as toolboxes want
            them: 0.5 is no perturbation, 0 and 1 are this many standard deviations, so an epsilon of theirs stands for 2 · limit · epsilon.

    Raises:
        ValueError: a parameter out of its range, or a victim of other bounds than the generator's images.
        LayerError: no such layer.
    """
    check_generator(generator)
    victim = victim_of(victim)
    check_bounds(victim, generator)
    if limit is not None:
        check_number("limit", limit)
        if not limit > 0:
            raise ValueError(
                f"limit is {limit:g}; it must be positive, since inputs in [0, 1] span that many standard deviations to each side"
            )
    check_latents(latents)
    chosen = generator.groups({"layers": layers})["layers"]
    coordinates = coordinates_of(generator, chosen, generator.scales(layers=chosen) if scales is None else scales, norm)
    return PerturbationModel(generator, victim, latents, coordinates, limit)


@torch.no_grad()
def _searched(
    generator: Generator,
    victim: Encoder,
    latents: Latents,
    goal: Goal,
    coordinates: Coordinates,
    schedule: Relaxation,
    labels: Tensor | None,
    targets: Tensor | None,
    seed: int,
) -> Found:
    random = SampleRandom.of(seed, latents.ids)
    clean_images = generator(latents)
    clean = victim(clean_images)
    check_finite(victim, clean)
    if labels is None and goal.reads == "logits":
        labels = latents.classes if latents.classes is not None else clean.argmax(1)
        if targets is not None:  # here at the latest, where labels are what the victim says
            check_target_classes(targets, clean.shape[1], labels, latents.ids)
    objective = goal.objective(clean, labels=labels, targets=targets, random=random)
    view = _View(generator, victim, latents, coordinates, objective)
    radii = schedule.radii(coordinates.size)
    start = torch.zeros(len(latents), coordinates.size, device=clean.device)
    if goal.start == "random":
        start = coordinates.moved(random.normal("start", (coordinates.size,)).to(start))
        start = start * (radii[0] / coordinates.magnitude(coordinates.parts(start)).to(start))[:, None]
    whole, steps, stuck, lost = _relaxed(view, coordinates.parts(start), radii, schedule)
    coordinates.project(whole, radii[-1], exact=True)
    factor, ended = _shortened(view, whole, schedule.refine)

    def measured() -> tuple[Tensor, Tensor, Tensor]:
        made = generator(latents, coordinates.perturbations(_times(whole, factor)))
        said = victim(made)
        return made, said, (objective(said) < 0) & said.isfinite().all(1)

    images, outputs, reached = measured()
    if bool((missed := ended & ~reached).any()):  # passes that differ in last bits: what was shortened to the very edge falls back
        factor = torch.where(missed, 1, factor)
        again = measured()
        images, outputs, reached = (
            torch.where(per_sample(missed, new), new, old) for new, old in zip(again, (images, outputs, reached), strict=True)
        )
    parts = _times(whole, factor)
    perturbations = coordinates.perturbations(parts)
    lost = (lost | ~outputs.isfinite().all(1)) & ~reached
    instead = torch.where(lost, math.nan, math.inf)
    first, magnitude = (torch.where(reached, coordinates.magnitude(one), instead) for one in (whole, parts))
    return Found(
        ids=latents.ids,
        reached=reached.cpu(),
        magnitude=magnitude.cpu().double(),
        first=first.cpu().double(),
        steps=steps.cpu(),
        stuck=stuck.cpu(),
        lost=lost.cpu(),
        perturbations={layer: values.cpu() for layer, values in perturbations.items()},
        clean_images=clean_images.cpu(),
        images=images.cpu(),
        clean=clean.cpu(),
        outputs=outputs.cpu(),
        labels=None if labels is None else labels.cpu(),
        targets=objective.rows["targets"].cpu() if "targets" in objective.rows else None,
    )


@dataclass(frozen=True)
class _View:
    """A generator and a victim as a function of perturbations, with what is to be lowered; of some items."""

    generator: Generator
    victim: Encoder
    latents: Latents
    coordinates: Coordinates
    objective: Objective

    def loss(self, parts: Sequence[Tensor]) -> Tensor:
        """Return what is to fall below zero, [batch]."""
        return self.objective(self.victim(self.generator(self.latents, self.coordinates.perturbations(parts))))

    def slopes(self, parts: Sequence[Tensor], gain: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the loss, [batch], and the gradient of ``gain`` times it, like the parts."""
        leaves = [part.detach().requires_grad_() for part in parts]
        with torch.enable_grad():
            loss = self.loss(leaves)
            # A constant output has no graph at all, which means the same as a gradient of zero.
            found = torch.autograd.grad((loss * gain).sum(), leaves, allow_unused=True) if loss.requires_grad else [None] * len(leaves)
        return loss.detach(), [torch.zeros_like(leaf) if slope is None else slope for leaf, slope in zip(leaves, found, strict=True)]

    def select(self, rows: Tensor) -> "_View":
        return replace(self, latents=self.latents.select(rows), objective=self.objective.select(rows))


def _relaxed(view: _View, parts: list[Tensor], radii: Sequence[float], schedule: Relaxation) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """Return the first perturbations that reach the goal, or the last of all; how many steps that took, which never had a slope, and of which
    loss or slope was not finite.

    Within a radius, rows that have reached it stay where they are: looking who they are, to drop them, waits for the device. Rows that became
    NaN, since their slope was, are dropped as well, and come back as they began.
    """
    found = [part.clone() for part in parts]
    left = torch.arange(len(parts[0]), device=parts[0].device)
    steps, stuck = torch.zeros_like(left), torch.ones_like(left, dtype=torch.bool)
    lost = torch.zeros_like(stuck)
    gain = torch.ones_like(left, dtype=torch.float32)
    for radius in radii:
        still = stuck[left]
        for _ in range(schedule.steps_per_radius):
            loss, slopes = view.slopes(parts, gain)
            done = loss < 0
            flat = view.coordinates.step(parts, slopes, schedule.step * radius, still=done)
            length = view.coordinates.project(parts, radius)
            still = still & (flat | done)
            # A slope may be so small that its squares are 0, or it is in half precision; the largest gain is near the largest float32.
            gain = torch.where(flat, (gain * 2**12).clamp(max=2.0**120), gain)
            steps[left] += ~done
        finite = length.isfinite()
        stuck[left], lost[left] = still, lost[left] | ~(finite & loss.isfinite())
        ended, on = (rows.nonzero().flatten() for rows in ((done | (radius == radii[-1])) & finite, ~done & finite))
        for whole, part in zip(found, parts, strict=True):
            whole[left[ended]] = part[ended]
        if not len(on):
            break
        if len(on) < len(left):
            left, gain, parts, view = left[on], gain[on], [part[on] for part in parts], view.select(on)
    return found, steps, stuck & (steps > 0), lost


def _shortened(view: _View, parts: Sequence[Tensor], halvings: int) -> tuple[Tensor, Tensor]:
    """Return by which factor each row can be shortened so that it still reaches the goal, and which do reach it as they are."""
    reached = view.loss(parts) < 0
    low, high = torch.zeros_like(reached, dtype=torch.float32), torch.ones_like(reached, dtype=torch.float32)
    for _ in range(halvings):
        middle = (low + high) / 2
        still = view.loss(_times(parts, middle)) < 0
        low, high = torch.where(still, low, middle), torch.where(still, middle, high)
    return torch.where(reached, high, 1), reached


def _times(parts: Sequence[Tensor], factor: Tensor) -> list[Tensor]:
    return [part * per_sample(factor, part) for part in parts]


def _exact(values: Tensor) -> Tensor:
    return values if values.device.type == "mps" else values.double()


def _together(parts: Sequence[Found]) -> Found:
    """Return what was found for several parts of the items as one."""

    def joined(values: Sequence[Any]) -> Any:
        if isinstance(values[0], Mapping):
            return {name: torch.cat([value[name] for value in values]) for name in values[0]}
        if isinstance(values[0], tuple):
            return tuple(itertools.chain.from_iterable(values))
        return None if values[0] is None else torch.cat(list(values))

    return Found(**{field.name: joined([getattr(part, field.name) for part in parts]) for field in fields(Found)})
