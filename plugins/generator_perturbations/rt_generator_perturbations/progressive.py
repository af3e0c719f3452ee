"""The generator of a progressive GAN (Karras et al. 2018) as a plain network, and the files that pytorch_GAN_zoo saves it in."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rt_core.weights import load_weights, state_dict_of

__all__ = ["ProgressiveGAN", "read_progressive_gan"]

# Whether images end in a tanh, by the loss that pytorch_GAN_zoo trained with.
_TANH = {"WGANGP": False, "Logistic": False, "MSE": True, "DCGAN": True}


class ProgressiveGAN(nn.Module):
    """A progressive GAN's generator after its training: every scale is in use and none is blended with the one below.

    [batch, latent] -> [batch, channels, height, width], height = width = 4 · 2^(len(depths) - 1), about in [-1, 1]

    The latent is first put on the unit sphere (times √latent), so its length says nothing. ``format`` gives 4 × 4 features, ``scales.0`` works on
    these, and every further scale doubles the side.

    Args:
        latent: how many numbers a latent has.
        depths: channels of each scale, from 4 × 4 on.
        channels: of the images.
        leak: of the leaky ReLU.
        equalized: whether layers are multiplied by He's constant where they run (their biases too, as in pytorch_GAN_zoo), weights of size 1.
        tanh: whether images end in a tanh; those trained by a Wasserstein or a logistic loss do not.
    """

    def __init__(
        self, *, latent: int, depths: Sequence[int], channels: int = 3, leak: float = 0.2, equalized: bool = True, tanh: bool = False
    ) -> None:
        super().__init__()
        self.latent, first = latent, depths[0]
        self.format = _Layers([nn.Linear(latent, 16 * first)], leak, equalized, shape=(first, 4, 4))
        self.scales = nn.ModuleList(
            _Layers(
                [nn.Conv2d(source, depth, 3, padding=1) for source in ([depth] if place == 0 else [depths[place - 1], depth])],
                leak,
                equalized,
                grow=place > 0,
            )
            for place, depth in enumerate(depths)
        )
        self.to_rgb = _Equalized(nn.Conv2d(depths[-1], channels, 1), equalized)
        self.tanh = nn.Tanh() if tanh else nn.Identity()

    def forward(self, latents: Tensor) -> Tensor:
        features = self.format(_normalized(latents))
        for scale in self.scales:
            features = scale(features)
        return self.tanh(self.to_rgb(features))


class _Layers(nn.Module):
    """Twice the side, if it is to grow; then each layer with its activation, every position's channels brought to unit mean square."""

    def __init__(
        self, layers: Sequence[nn.Module], leak: float, equalized: bool, *, shape: tuple[int, ...] | None = None, grow: bool = False
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Equalized(layer, equalized) for layer in layers)
        self.activation = nn.LeakyReLU(leak)
        self.shape, self.grow = shape, grow

    def forward(self, features: Tensor) -> Tensor:
        if self.grow:
            features = nn.functional.interpolate(features, scale_factor=2, mode="nearest")
        for layer in self.layers:
            features = self.activation(layer(features))
            if self.shape is not None:
                features = features.reshape(-1, *self.shape)
            features = _normalized(features)
        return features


class _Equalized(nn.Module):
    def __init__(self, layer: Any, equalized: bool) -> None:
        super().__init__()
        self.layer = layer
        self.factor = math.sqrt(2 / layer.weight[0].numel()) if equalized else 1.0
        nn.init.normal_(layer.weight)
        nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor) -> Tensor:
        return self.layer(features) * self.factor

    def extra_repr(self) -> str:
        return f"factor={self.factor:g}"


def _normalized(features: Tensor) -> Tensor:
    return features * (features.square().mean(1, keepdim=True) + 1e-8).rsqrt()


def read_progressive_gan(path: str | Path, *, average: bool = True) -> ProgressiveGAN:
    """Read a generator from a checkpoint of pytorch_GAN_zoo, no code in it run, or from a state dict of its generator.

    The scales are read off the weights, the rest off the checkpoint's configuration where it has one. Strict: a weight that is missing, left over or of
    another shape is an error; only the image layers of lower scales, of no use once the training is over, are left out.

    average: take the moving average of the training's weights where the checkpoint has it, as its authors advise.

    Raises:
        ValueError: this is no such checkpoint, or of a network that this one is not: with attributes as classes, still being blended, without the
            normalization of channels, or trained by a loss that pytorch_GAN_zoo does not have.
    """
    with torch.serialization.safe_globals([_Config]):
        loaded = load_weights(path)
    config: dict[str, Any] = {}
    if isinstance(loaded, Mapping) and "netG" in loaded:
        config = _settings(loaded.get("config"))
        loaded = loaded["avgG"] if average and "avgG" in loaded else loaded["netG"]
    weights = {_renamed(name): weight for name, weight in state_dict_of(loaded).items()}
    scales = {int(found[1]) for name in weights if (found := re.match(r"scales\.(\d+)\.", name))}
    first = weights.get("format.layers.0.layer.weight")
    if first is None or not scales or f"toRGB.{max(scales)}.layer.weight" not in weights:
        raise ValueError(
            f"{path} holds {', '.join(list(weights)[:5]) or 'nothing'} …; expected a progressive GAN of pytorch_GAN_zoo (formatLayer, groupScale0, …)"
        )
    if config.get("categoryVectorDim"):
        raise ValueError(
            f"{path} is conditioned on {config['categoryVectorDim']} attributes; only unconditional networks are read: wrap this one in a Generator"
        )
    if config.get("alpha"):
        raise ValueError(f"{path} blends two scales (alpha is {config['alpha']:g}); take a checkpoint from the end of a scale's training")
    if not config.get("perChannelNormalization", True):
        raise ValueError(f"{path} has perChannelNormalization off; only networks that normalize are read: wrap this one in a Generator")
    if (criterion := config.get("lossCriterion", "WGANGP")) not in _TANH:
        raise ValueError(
            f"{path} was trained by the loss {criterion!r}, so whether its images end in a tanh is unknown; expected {', '.join(_TANH)}: "
            "make a ProgressiveGAN(…, tanh=…), load the weights, and wrap it in a Generator"
        )
    top = max(scales)
    images = {name: weights.pop(name) for name in list(weights) if name.startswith("toRGB.")}
    weights |= {name.replace(f"toRGB.{top}", "to_rgb"): weight for name, weight in images.items() if name.startswith(f"toRGB.{top}.")}
    network = ProgressiveGAN(
        latent=first.shape[1],
        depths=[weights[f"scales.{scale}.layers.0.layer.weight"].shape[0] for scale in range(top + 1)],
        channels=weights["to_rgb.layer.weight"].shape[0],
        leak=config.get("leakyReluLeak", 0.2),
        equalized=config.get("equalizedlR", True),
        tanh=_TANH[criterion],
    )
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"the weights of {path} do not fit a progressive GAN: {error}") from error
    return network.eval()


def _renamed(name: str) -> str:
    """A weight's name in this network. Older files leave out the ``module`` that newer ones have before weight and bias."""
    name = re.sub(r"(\.module)?\.(weight|bias)$", r".layer.\2", name)
    name = re.sub(r"^formatLayer\.", "format.layers.0.", name)
    name = re.sub(r"^groupScale0\.(\d+)\.", r"scales.0.layers.\1.", name)
    name = re.sub(r"^scaleLayers\.(\d+)\.(\d+)\.", lambda found: f"scales.{int(found[1]) + 1}.layers.{found[2]}.", name)
    return re.sub(r"^toRGBLayers\.(\d+)\.", r"toRGB.\1.", name)


class _Config:
    """What pytorch_GAN_zoo's checkpoints keep their settings in: an object without code of its own, so nothing is imported for it."""


_Config.__module__, _Config.__qualname__, _Config.__name__ = "models.utils.config", "BaseConfig", "BaseConfig"


def _settings(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    return dict(config) if isinstance(config, Mapping) else dict(vars(config))
