"""Small things with known answers: encoders, inputs, and the trace, bank and context that a metric reads."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rt_core.divergences import Divergence, l2
from rt_core.encoders import Encoder
from rt_core.neighbors import Bank
from rt_core.perturbing import perturb, represent
from rt_core.randomness import SampleRandom, stream
from rt_core.traces import Batch, Context, Trace, per_sample

__all__ = ["Reading", "linear_encoder", "read_example", "tiny_encoder", "tiny_inputs"]

_SHAPE = (3, 8, 8)
_CLASSES = 3


def tiny_encoder(*, channel: int = 3, dim: int = 16, seed: int = 0, bounds: tuple[float, float] = (0.0, 1.0)) -> Encoder:
    """Make a small convolutional encoder of images [channel, 8, 8], the same for the same seed; global generators are left as they were.

    A sample's representation and its gradient have the same bits whatever stands beside it (on the CPU), so that a difference between
    two batches is the attack's own.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _Tiny(channel, dim)
    return Encoder(network, name="tiny", bounds=bounds)


def linear_encoder(
    channel: int, height: int, width: int, dim: int = 1, *, dtype: torch.dtype = torch.float32, bounds: tuple[float, float] = (0.0, 1.0)
) -> tuple[Encoder, Tensor]:
    """Make a linear encoder and its weight [dim, channel, height, width], in which every value of an input feeds one number alone.

    Away from the bounds, the most that an l-infinity ball of radius ε allows is ε·Σ|w_k| in each number k, in all at once: so l1 reaches
    ε·Σ|w|, and with dim 1 every norm does. An l2 ball allows ε·‖w‖₂ with dim 1.
    """
    places = torch.arange(channel * height * width, dtype=torch.float64)
    # No weight is zero, and neither signs nor sizes repeat soon.
    values = (1.7 * places + 0.4).cos() + 0.05 * (1.7 * places + 0.4).cos().sign()
    weight = torch.where(places % dim == torch.arange(dim)[:, None], values, 0.0).to(dtype)
    network = nn.Sequential(nn.Flatten(), nn.Linear(len(places), dim, bias=False, dtype=dtype, device="meta"))
    network[1].weight = nn.Parameter(weight)
    return Encoder(network, name="linear", bounds=bounds), weight.reshape(dim, channel, height, width).clone()


def tiny_inputs(
    batch: int = 8, shape: Sequence[int] = _SHAPE, *, bounds: tuple[float, float] = (0.0, 1.0), purpose: str = "inputs"
) -> Tensor:
    """Draw inputs inside the bounds, always the same: [batch, *shape], float32; the first two values of each lie on the bounds."""
    drawn = torch.from_numpy(stream(0, purpose).random((batch, *shape), dtype="float32"))
    drawn.flatten(1)[:, :2] = torch.tensor([0.0, 1.0])
    return (bounds[0] + (bounds[1] - bounds[0]) * drawn).clamp_(*bounds)


class Reading(NamedTuple):
    """What a metric is called with."""

    trace: Trace
    bank: Bank
    context: Context

    def sample(self, row: int) -> "Reading":
        """Return what a metric that sees samples alone is called with for one of them (of aim clean)."""
        one, trace, context = slice(row, row + 1), self.trace, self.context
        tensors = {name: getattr(trace, name)[one] for name in ("clean", "adversarial", "divergence")}
        labels = None if context.known_labels is None else context.known_labels[one]
        alone = replace(context, random=context.random.select(one), known_labels=labels, read=lambda: context.inputs[one], shared={})
        return Reading(replace(trace, ids=trace.ids[one], **tensors), self.bank, alone)


def read_example(aim: str, *, attacked: int = 12, bank: int = 40, order: Sequence[int] | None = None) -> Reading:
    """Make a trace of ``attacked`` samples of a ``bank``, each moved some way to its target or its mirror image; or of rows in an ``order``.

    Under aim target, rows 0 and 1, 2 and 3, … are each other's targets and have to stay neighbours in an ``order``. Samples have labels.
    """
    encoder, inputs = tiny_encoder(), tiny_inputs(bank)
    rows = torch.arange(attacked) if order is None else torch.as_tensor(order)
    ids, labels = tuple(str(row) for row in rows.tolist()), [row % _CLASSES for row in range(bank)]
    clean = represent(encoder, inputs)
    partner = torch.arange(len(rows)) ^ 1 if aim == "target" else None
    if aim == "clean":
        trace = Trace(ids=ids, aim=aim, step=0, clean=clean[rows], adversarial=clean[rows], divergence=torch.zeros(len(rows)).double())
    else:
        targets = None if partner is None else inputs[rows][partner]
        trace = replace(perturb(_blend, encoder, inputs[rows], targets=targets, ids=ids), partner=partner)
    context = Context(
        encoder=encoder,
        divergence=l2,
        random=SampleRandom.of(0, ids),
        known_labels=[labels[row] for row in rows.tolist()],
        read=lambda: inputs[rows],
    )
    return Reading(trace, Bank(clean, labels=labels), context)


def _blend(encoder: Encoder, batch: Batch, divergence: Divergence, *, random: SampleRandom) -> Tensor:
    """Move each sample by a share of its own: [batch, *input] -> same shape"""
    other = batch.inputs.flip(-1) if batch.target_inputs is None else batch.target_inputs
    return batch.inputs.lerp(other, per_sample(random.uniform("share", ()), other)).clamp(0, 1)


class _Tiny(nn.Module):
    """Convolutions of stride 1 with group normalization, pooling between, and a last one as large as its map, instead of a Linear layer:
    sums of a Linear layer, and gradients of a strided convolution, depend on the number of rows.
    """

    def __init__(self, channel: int, dim: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channel, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.Tanh()
        )
        self.last = nn.Conv2d(8, dim, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        # A single sample goes beside a copy of itself: torch has another convolution for batches of one.
        beside = inputs.expand(2, -1, -1, -1) if len(inputs) == 1 else inputs
        return self.last(self.body(beside)).flatten(1)[: len(inputs)]
