"""What ART is shown of an encoder beside the views that all bridges share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rt_core.adapting import Passage
from rt_core.divergences import Divergence
from rt_core.encoders import Encoder, round_inward
from rt_core.traces import Batch, per_sample

__all__ = ["AnchorLoss", "FromClean", "Probabilities", "Representations", "clip_values", "square_hooks"]

_NEVER = -1e4  # a logit that never wins


class Representations(nn.Module):
    """An encoder as the network of an ART estimator: representations where logits would be.

    It has no training mode, and neither shows the encoder's modules and weights to the library nor changes them.

    Args:
        eta: [batch, *input], what is added where a gradient is asked for at exactly a clean input, aiming away.
    """

    def __init__(self, encoder: Encoder, batch: Batch, *, eta: Tensor) -> None:
        super().__init__()
        self.training = False
        self.__dict__["encoder"] = encoder  # not as a submodule: ART clears gradients and sets modes of what it finds
        self.layer = nn.Identity()  # for attacks that ask for a layer by its place
        self.home, self.dtype = batch.inputs.device, batch.inputs.dtype
        self.clean = batch.inputs.float()
        self.beside = encoder.clip(batch.inputs + eta.to(batch.inputs)) if batch.aim == "away" else None
        self.passage = Passage(len(batch.inputs))

    def forward(self, inputs: Tensor) -> Tensor:
        """Represent a batch, where the batch is and on the device that it came from.

        inputs: [rows, *input] -> [rows, dim]
        """
        seen = sent = self.passage.enter(inputs.to(self.home, self.dtype))
        if self.beside is not None and inputs.requires_grad:
            fresh, own = _fresh(inputs.detach().to(self.clean), self.clean)
            seen = torch.where(per_sample(fresh, seen), self.beside[own] + (seen - seen.detach()), seen)
        return self.layer(self.passage.leave(self.encoder(seen), sent).to(inputs.device))

    def train(self, mode: bool = True) -> "Representations":
        """Do nothing: a view measures, so it is always in eval mode."""
        return self


class AnchorLoss(nn.Module):
    """The divergence from each row's anchor, summed; toward targets, minus that: climbing it is what the aim asks for.

    The labels are one-hot over the batch's anchors. The anchors themselves would not do as labels: FastGradientMethod divides labels by
    their sum, every attack casts them to float32, and where a representation has one dimension it is taken for a class index.
    """

    def __init__(self, anchor: Tensor, divergence: Divergence, *, way: int) -> None:
        super().__init__()
        self.anchor, self.divergence, self.way = anchor, divergence, way

    def forward(self, representations: Tensor, labels: Tensor) -> Tensor:
        """representations: [rows, dim]; labels: [rows, batch] -> scalar"""
        return self.rows(representations, labels).sum()

    def rows(self, representations: Tensor, labels: Tensor) -> Tensor:
        """representations: [rows, dim]; labels: [rows, batch] -> [rows]"""
        own = labels.argmax(dim=1).to(self.anchor.device)
        return self.way * self.divergence(self.anchor[own], representations.to(self.anchor.device))


class Probabilities(nn.Module):
    """Logits as the probabilities that some attacks read."""

    def __init__(self, view: nn.Module) -> None:
        super().__init__()
        self.view = view
        self.training = False

    def forward(self, inputs: Tensor) -> Tensor:
        """[rows, *input] -> [rows, columns]"""
        return self.view(inputs).softmax(dim=1)

    def train(self, mode: bool = True) -> "Probabilities":
        """Do nothing, as the view."""
        return self


class FromClean(nn.Module):
    """``UnitLogits`` of one sample, from where it begins: logits [0, d - d(clean)] (toward targets the other way round) and two that never win.

    So the class of the clean input is that of its label, and any progress at all is another class: attacks that hand back only what changed
    the class hand back whatever they have come to.
    """

    def __init__(self, view: nn.Module) -> None:
        super().__init__()
        self.view = view
        self.training = False
        with torch.no_grad():
            self.begin = view(view.clean)[:, 1]

    def forward(self, inputs: Tensor) -> Tensor:
        """[rows, *input] -> [rows, 4]"""
        logits = self.view(inputs) - torch.stack([torch.zeros_like(self.begin), self.begin], dim=1).to(inputs.device)
        return nn.functional.pad(logits, (0, 2), value=_NEVER)

    def train(self, mode: bool = True) -> "FromClean":
        """Do nothing, as the view."""
        return self


def clip_values(encoder: Encoder, inputs: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the encoder's bounds as ART wants them."""
    low, high = (bound.cpu().numpy() for bound in round_inward(encoder.bounds, inputs.float()))
    return (low, high) if low.shape == high.shape else tuple(np.broadcast_arrays(low, high))


def square_hooks(estimator: Any, loss: AnchorLoss) -> dict[str, Callable]:
    """Return what makes ART's SquareAttack read a loss, whatever classes it finds: its options ``loss`` and ``adv_criterion``."""

    def descend(inputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        seen = estimator.predict(inputs, batch_size=len(inputs))
        return -loss.rows(torch.as_tensor(seen), torch.as_tensor(labels)).cpu().numpy()

    def never(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return np.zeros(len(labels), dtype=bool)

    return {"loss": descend, "adv_criterion": never}


def _fresh(inputs: Tensor, clean: Tensor) -> tuple[Tensor, Tensor]:
    """Say which rows are still exactly clean inputs, and of which sample; an attack may send fewer or more of them, in any order.

    inputs: [rows, *input]; clean: [batch, *input] -> two of [rows]
    """
    if len(inputs) == len(clean):
        return (inputs == clean).flatten(1).all(1), torch.arange(len(clean), device=clean.device)
    equal = torch.stack([(row == clean).flatten(1).all(1) for row in inputs])
    return equal.any(1), equal.float().argmax(1)
