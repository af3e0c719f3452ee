"""An encoder with a probe as a classifier: a plain network, and an estimator of ART."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from rt_art.library import library
from rt_art.views import clip_values
from rt_core.encoders import Encoder, round_inward

__all__ = ["Classifier", "art_classifier"]


class Classifier(nn.Module):
    """An encoder with a head, as a network from inputs inside the encoder's bounds to logits, for any toolbox that attacks classifiers.

    Normalization is inside, as in the encoder. A gradient reaches the input and nothing else: the encoder is in eval mode with frozen weights
    whenever it runs, and left as it was; it is no submodule, so no toolbox finds its modes, weights and gradients. The head is a frozen copy.

    Args:
        encoder: an ``Encoder``.
        head: a network from representations to logits, or ``(weight, bias)`` of a linear probe, [classes, dim] and [classes].

    Raises:
        ValueError: the head is neither.
    """

    def __init__(self, encoder: Encoder, head: nn.Module | tuple[Any, Any]) -> None:
        super().__init__()
        self.training = False
        self.__dict__["encoder"] = encoder
        self.head = _head(head).eval().requires_grad_(False)
        home = encoder.where()
        if home is not None:
            self.head.to(home)
        # Toolboxes look at a network's first parameter for its device.
        self.device_marker = nn.Parameter(torch.empty(0, device=home), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """[batch, *input] -> [batch, classes], on the inputs' device"""
        # Decision attacks of ART send float64, whatever they were given; the encoder itself knows what its network takes.
        representations = self.encoder(inputs.contiguous())
        weight = next(self.head.parameters(), representations)
        return self.head(representations.to(weight)).to(inputs.device)

    def train(self, mode: bool = True) -> "Classifier":
        """Do nothing: a classifier that is attacked is always in eval mode."""
        return self


def art_classifier(encoder: Encoder, head: nn.Module | tuple[Any, Any], *, classes: int, input_shape: tuple[int, ...]) -> Any:
    """Return an encoder with a head as a ``PyTorchClassifier`` of ART, which its attacks, defences and metrics take.

    Its inputs are those of the encoder, its ``clip_values`` the encoder's bounds, its loss cross-entropy. One forward pass checks that all fit.

    Args:
        encoder, head: as for ``Classifier``.
        classes: how many logits the head gives.
        input_shape: of one input, such as (3, 224, 224).

    Raises:
        ImportError: ART is not installed.
        ValueError: the head gives something else, or does not fit the encoder.
    """
    model = Classifier(encoder, head)
    low, _ = round_inward(encoder.bounds, torch.zeros(1, device=encoder.where()))
    with torch.no_grad():
        try:
            logits = model(low.expand(1, *input_shape))
        except RuntimeError as error:
            raise ValueError(f"encoder {encoder.name!r} and the head do not fit inputs of shape {tuple(input_shape)}: {error}") from error
    if logits.shape != (1, classes):
        raise ValueError(f"the head gives {list(logits.shape)} for one input; expected [1, {classes}]: classes is {classes}")
    return library().PyTorchClassifier(
        model=model,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(input_shape),
        nb_classes=classes,
        clip_values=clip_values(encoder, low.expand(1, *input_shape)),
        device_type="gpu" if logits.device.type == "cuda" else "cpu",
    )


def _head(head: Any) -> nn.Module:
    if isinstance(head, nn.Module):
        return copy.deepcopy(head)
    try:
        weight, bias = (torch.as_tensor(part).detach() for part in head)
        rows, dim = weight.shape
        fits = bias.shape == (rows,)
    except (TypeError, ValueError) as error:
        raise ValueError(f"head is of type {type(head).__name__}; expected a network, or (weight, bias) of a linear probe") from error
    if not fits:
        raise ValueError(f"bias has shape {list(bias.shape)}; expected [{rows}], since weight has shape {list(weight.shape)}")
    linear = nn.utils.skip_init(nn.Linear, dim, rows, dtype=weight.dtype)
    linear.load_state_dict({"weight": weight, "bias": bias})
    return linear
