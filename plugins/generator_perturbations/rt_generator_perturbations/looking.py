"""A look at clean images and at what victims say of them, before a long search: what would make its results worthless."""

import copy
import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from rt_core.encoders import Encoder
from rt_core.errors import EncoderError, RobustnessWarning
from rt_core.randomness import SampleRandom
from rt_generator_perturbations.generators import Generator
from rt_generator_perturbations.goals import Goal
from rt_generator_perturbations.latents import Latents, parts_of
from rt_generator_perturbations.victims import check_classifier, check_finite, check_logits

__all__ = ["ask", "check_answers", "check_latents", "look"]

_LOOKED, _TWICE = 64, 2  # items
_FAR, _MANY = 0.1, 0.05  # of a range, of all numbers: decoders without a last activation overshoot a little, or seldom
_APART = 0.01  # of a range, root mean square: digits are 0.08 from the nearest other, what networks of random weights draw 0.005 and less
_BY_CHANCE = 20  # outputs; of fewer, all may lie in [0, 1] though they are logits
_ENOUGH, _NEARLY_ALL = 10, 0.95  # items, share of them


def look(generator: Generator, victims: Mapping[str, Encoder], latents: Latents, *, batch: int) -> Tensor:
    """Draw the first items; raise or warn where these cannot be the images that were meant, and return them on the CPU.

    Raises:
        ValueError: images outside a victim's bounds.
    """
    generator.shapes()
    first = latents.select(slice(0, _LOOKED))
    unclipped = copy.copy(generator)
    unclipped.values = None
    with torch.no_grad():
        drawn = torch.cat([unclipped(first.select(slice(start, start + batch))).cpu() for start in range(0, len(first), batch)])
        images = drawn
        if generator.values is not None:
            low, high = generator.values
            drawn = (drawn - low) / (high - low)
            images = drawn.clamp(0, 1)
        _check_range(generator, victims, drawn, _distinct(first))
    return images


def ask(
    generator: Generator, label: str, victim: Encoder, images: Tensor, goal: Goal, *, batch: int, classes: Tensor | None, told: bool = False
) -> Tensor:
    """Ask a victim about clean images, and some of them twice; raise or warn where no search can measure it. Return its outputs, on the CPU.

    As in a search, a victim that draws noise of its own has generators that are seeded, and put back afterwards.

    images: [items, channel, height, width], where the victim is; classes: of all items, which the goal will ask it about; told: these need no
    check, since the user says what the items' classes are

    Raises:
        ValueError: it cannot take the images, gives probabilities where logits are read, or has no output for a class of the items.
        EncoderError: it gives NaN or infinity for one.
    """
    with torch.no_grad(), SampleRandom.of(0, [label]).global_generators("look"):
        outputs = torch.cat([_asked(generator, label, victim, part) for part in images.split(batch)])
        first, second = (victim(images[:_TWICE]) for _ in range(2))
    check_finite(victim, outputs)
    if not torch.equal(first, second):
        _warn(
            f"victim {label!r} is not deterministic: two passes of the same images differ, so magnitudes mix its own noise with the perturbation's "
            "effect, and hang on the batch",
            stacklevel=4,
        )
    if goal.reads == "logits":
        if not told:
            check_classifier(victim, generator, outputs.shape[1], classes)
        check_logits(victim, outputs)
        if outputs.shape[1] > 1 and outputs.numel() >= _BY_CHANCE and bool(((outputs >= 0) & (outputs <= 1)).all()):
            _warn(
                f"all outputs of victim {label!r} on {len(outputs)} clean images lie in [0, 1], as those of a sigmoid do; a search follows the slope "
                "of what it is given, so magnitudes are not those of logits: leave out its last activation, or take it as it is if these are logits",
                stacklevel=4,
            )
    return outputs


def check_answers(label: str, outputs: Tensor, classes: Tensor | None) -> None:
    """Warn where a classifier says one class of nearly all images, and these were not drawn of one.

    outputs: [items, classes]; classes: [items], or None
    """
    said = outputs.argmax(1)
    items, (most, times) = len(said), _commonest(said)
    meant = classes is not None and _commonest(classes[:items])[1] >= _NEARLY_ALL * items
    if items >= _ENOUGH and times >= _NEARLY_ALL * items and not meant:
        _warn(
            f"victim {label!r} says class {most} of {times} of {items} clean images; look whether its trained weights are loaded, and whether it sees "
            "the range, normalization and size that it was trained on",
            stacklevel=4,
        )


def check_latents(latents: Latents) -> None:
    """Raise unless there are latents, of finite numbers.

    Raises:
        ValueError: see above.
    """
    if not len(latents):
        raise ValueError("latents hold no items; give at least one, such as generator.draw(range(10))")
    broken = torch.zeros(len(latents), dtype=torch.bool)
    for part in parts_of(latents.latents):
        broken |= (~part.isfinite()).reshape(len(part), -1).any(1).cpu()
    if broken.any():
        first = latents.ids[int(broken.nonzero()[0])]
        raise ValueError(
            f"latents of {int(broken.sum())} of {len(latents)} items hold NaN or infinity, such as of {first!r}; give finite ones, as generator.draw does"
        )


def _check_range(generator: Generator, victims: Mapping[str, Encoder], drawn: Tensor, distinct: list[int]) -> None:
    """drawn: [items, channel, height, width], in units of the generator's values, before they are clipped; distinct: see ``_distinct``"""
    least, largest = drawn.min().item(), drawn.max().item()
    unit, own, said = 1.0, "", ""
    if generator.values is None:
        for label, victim in victims.items():
            lower, upper = (torch.as_tensor(bound).to(drawn) for bound in victim.bounds)
            if (share := _outside((drawn - lower) / (upper - lower))) > _MANY:
                raise ValueError(
                    f"generator {generator.name!r} draws images in [{least:.3g}, {largest:.3g}], {share:.0%} of their numbers far outside the bounds "
                    f"of victim {label!r}, [{lower.min():g}, {upper.max():g}]; say what range they are in, Generator(…, values=(-1, 1)), so that they are "
                    "mapped to [0, 1], or give a victim of their bounds"
                )
            unit = (upper - lower).max().item()
    else:
        low, high = generator.values
        own = f"[{low + least * (high - low):.3g}, {low + largest * (high - low):.3g}]"
        said = f" and values={generator.values} the range of its images, which the network draws in {own}"
    if len(distinct) > 1 and (near := _nearest(drawn[distinct])) < _APART * unit:
        _warn(
            f"draws of generator {generator.name!r} hardly differ: half of {len(distinct)} are at most {near:.2g} from another (root mean square), so they "
            f"are hardly more than one item; look whether its trained weights are loaded{said}"
        )
    elif len(drawn) > len(distinct) and _nearest(drawn) < _APART * unit:
        _warn(
            f"rows of the latents repeat: {len(drawn)} items hold {len(distinct)} different ones, so they are hardly more than {len(distinct)} "
            f"item{'' if len(distinct) == 1 else 's'}; give each a latent of its own, as generator.draw does, or fewer items: PickedLatents picks a row for "
            "several where ids are many"
        )
    elif generator.values is not None and ((share := _outside(drawn)) > _MANY or least >= 0.5 or largest <= 0.5):
        clipped = (
            f"{share:.0%} of their numbers lie far outside and are clipped" if share > _MANY else "they fill no more than a half of it"
        )
        _warn(
            f"the network of generator {generator.name!r} draws images in {own}, and was said to draw in values={generator.values}: {clipped}; "
            "say the range that it was trained for, such as Generator(…, values=(0, 1)) after a sigmoid or (-1, 1) after a tanh"
        )


def _asked(generator: Generator, label: str, victim: Encoder, images: Tensor) -> Tensor:
    try:
        return victim(images).cpu()
    except EncoderError as error:
        raise ValueError(
            f"victim {label!r} cannot take the images of generator {generator.name!r}, [channel, height, width] = {list(images.shape[1:])} "
            f"({error.__cause__}); where it wants another size or number of channels, let it resize or repeat them by "
            f"itself: classifier(nn.Sequential(nn.Upsample(size=(224, 224), mode='bilinear'), network), name={label!r}) or "
            f"classifier(lambda images: network(images.expand(-1, 3, -1, -1)), name={label!r}), or Encoder(…) likewise"
        ) from error


def _outside(values: Tensor) -> float:
    """Return the share of numbers that lie far outside [0, 1]."""
    return ((values < -_FAR) | (values > 1 + _FAR)).double().mean().item()


def _distinct(latents: Latents) -> list[int]:
    """Return the first item of each that is given the same latent and class, in order."""
    parts = [*parts_of(latents.latents), *([] if latents.classes is None else [latents.classes])]
    rows = [
        tuple(part[row].detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes() for part in parts) for row in range(len(latents))
    ]
    return sorted({row: place for place, row in reversed([*enumerate(rows)])}.values())


def _nearest(images: Tensor) -> float:
    """Return the median, over images, of the root mean square difference to the nearest other one."""
    rows = images.flatten(1)
    apart = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist") / rows.shape[1] ** 0.5
    return apart.fill_diagonal_(torch.inf).min(1).values.median().item()


def _commonest(classes: Tensor) -> tuple[int, int]:
    values, counts = classes.unique(return_counts=True)
    place = int(counts.argmax())
    return int(values[place]), int(counts[place])


def _warn(message: str, *, stacklevel: int = 5) -> None:
    warnings.warn(message, RobustnessWarning, stacklevel=stacklevel)
