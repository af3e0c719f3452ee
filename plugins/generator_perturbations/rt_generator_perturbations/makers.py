"""Generators that are known by name: BigGAN, progressive GANs, diffusers' autoencoders, and any other decoder."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rt_core.weights import load_weights, state_dict_of
from rt_generator_perturbations.generators import Generator
from rt_generator_perturbations.latents import Normal, PickedLatents
from rt_generator_perturbations.layers import find_layers
from rt_generator_perturbations.progressive import read_progressive_gan

__all__ = ["autoencoder_kl", "autoencoder_tiny", "biggan", "decoder", "progressive_gan"]

_ZOO = "https://dl.fbaipublicfiles.com/gan_zoo/PGAN/"
_PROGRESSIVE = {  # the hash is in the name, and checked
    "celebAHQ-256": "celebaHQ_s6_i80000-6196db68.pth",
    "celebAHQ-512": "celebaHQ16_december_s7_i96000-9c72988c.pth",
    "DTD": "testDTD_s5_i96000-04efa39f.pth",
    "celeba": "celebaCropped_s5_i83000-2b0acc76.pth",
}


def biggan(
    weights: str | Path,
    *,
    truncation: float = 0.4,
    latent_reading: str = "all",
    layers: Sequence[str] | None = None,
    name: str | None = None,
    device: str | torch.device | None = None,
) -> Generator:
    """Make BigGAN-deep (Brock et al. 2019) a generator, through the package pytorch-pretrained-biggan.

    Layers are the first linear map (``generator.gen_z``: 4 × 4 features, flat, channels last) and the outputs of its residual blocks and its attention
    (``generator.layers.0`` …), as the paper decomposes it.

    Args:
        weights: a folder with ``config.json`` and the weights (``pytorch_model.bin`` or ``model.safetensors``), or ``"biggan-deep-128"``, ``-256`` or
            ``-512``, which the package downloads.
        truncation: of the latents, and given to the network, whose norms have statistics for 51 of them: best a multiple of 0.02; more than 0, at
            most 1. The same in every call.
        latent_reading: what the latent's perturbation p_0 reaches. ``"all"``: all that reads z, which is the first layer and every conditional norm, so
            it is the formula's z + p_0; ``"first"``: the first layer alone, so it is as coarse as a layer can be.
        layers: others.

    Raises:
        ImportError: the package is not installed.
        ValueError: weights that are missing, left over or do not fit, or another parameter that makes no sense.
    """
    _need("pytorch_pretrained_biggan", "boto3", maker="biggan", extra="biggan")
    from pytorch_pretrained_biggan import BigGAN, BigGANConfig
    from pytorch_pretrained_biggan.file_utils import cached_path
    from pytorch_pretrained_biggan.model import PRETRAINED_CONFIG_ARCHIVE_MAP, PRETRAINED_MODEL_ARCHIVE_MAP

    if not 0 < truncation <= 1:
        raise ValueError(f"truncation is {truncation}; expected more than 0 and at most 1")
    if latent_reading not in ("all", "first"):
        raise ValueError(
            f"latent_reading is {latent_reading!r}; expected 'all' (z + p_0, read by every conditional norm) or 'first' (the first layer alone)"
        )
    if str(weights) in PRETRAINED_MODEL_ARCHIVE_MAP:
        links = [archive[str(weights)] for archive in (PRETRAINED_CONFIG_ARCHIVE_MAP, PRETRAINED_MODEL_ARCHIVE_MAP)]
        settings, file = [Path(_downloaded(lambda link=link: cached_path(link), link)) for link in links]
    else:
        settings, file = _files(Path(weights), list(PRETRAINED_MODEL_ARCHIVE_MAP))
    network = BigGAN(BigGANConfig.from_dict(json.loads(settings.read_text(encoding="utf-8"))))
    try:
        # The package's own loading is not strict: a weight that the file lacks would stay as memory happened to be.
        network.load_state_dict(state_dict_of(load_weights(file)))
    except RuntimeError as error:
        raise ValueError(f"the weights {file} do not fit: {error}") from error
    return Generator(
        network,
        layers=["generator.gen_z", "generator.layers.*"] if layers is None else layers,
        latent=Normal((network.config.z_dim,), deviation=truncation, cut=2.0),
        classes=network.config.num_classes,
        arguments=(truncation,),
        latent_layer="generator.gen_z" if latent_reading == "first" else None,
        name=name or f"biggan-deep-{network.config.output_dim}",
        device=device,
    )


def progressive_gan(
    weights: str | Path,
    *,
    average: bool = True,
    layers: Sequence[str] | None = None,
    name: str = "progressive_gan",
    device: str | torch.device | None = None,
) -> Generator:
    """Make a progressive GAN (Karras et al. 2018) a generator, from a checkpoint as pytorch_GAN_zoo saves them.

    Layers are the 4 × 4 features (``format``) and each scale (``scales.0`` …), after activation and normalization. Without classes: y is what the victim
    says of the clean image. Images are about in [-1, 1] and are clipped.

    Args:
        weights: a checkpoint, or ``"celebAHQ-256"``, ``"celebAHQ-512"``, ``"DTD"`` or ``"celeba"``, which torch.hub downloads.
        average: take the moving average of the training's weights where the checkpoint has it.
        layers: others.

    Raises:
        ValueError: no such checkpoint.
    """
    path = Path(weights)
    if str(weights) in _PROGRESSIVE:
        file = _PROGRESSIVE[str(weights)]
        path = Path(torch.hub.get_dir()) / "checkpoints" / file
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            prefix = file.removesuffix(".pth").rpartition("-")[2]
            _downloaded(lambda: torch.hub.download_url_to_file(_ZOO + file, str(path), hash_prefix=prefix, progress=False), _ZOO + file)
    elif not path.is_file():
        raise ValueError(f"weights is {str(weights)!r}; expected the path of a checkpoint, or one of {', '.join(_PROGRESSIVE)}")
    network = read_progressive_gan(path, average=average)
    return Generator(
        network,
        layers=["format", "scales.*"] if layers is None else layers,
        latent=network.latent,
        name=name,
        device=device,
    )


def autoencoder_kl(
    weights: str | Path,
    *,
    images: Tensor | None = None,
    size: int | None = None,
    layers: Sequence[str] | None = None,
    name: str = "autoencoder_kl",
    device: str | torch.device | None = None,
    **options: Any,
) -> Generator:
    """Make the decoder of diffusers' AutoencoderKL a generator. Layers are its first convolution, its middle and its upward blocks.

    An autoencoder does not say what its latents are drawn from. With ``images`` a draw picks one of these, and its latent is that image's encoding
    (the mean), so a clean picture is a reconstruction of a real one. Without, latents are normal with the mean and the deviation that the autoencoder's
    diffusion model scales them by: these draw textures, not pictures.

    Args:
        weights: a folder as ``save_pretrained`` writes it, or a name on the hub.
        images: [n, channel, height, width], in [0, 1].
        size: the side of the images that are drawn without ``images``; None takes the configuration's.
        layers: others.
        options: of diffusers' ``from_pretrained``, such as ``subfolder="vae"`` or ``torch_dtype=torch.float16``.

    Raises:
        ImportError: diffusers is not installed.
        ValueError: weights that are missing, left over or do not fit.
    """
    network = _autoencoder("AutoencoderKL", "autoencoder_kl", weights, options)
    settings = network.config
    side = (size or settings.sample_size) // 2 ** (len(settings.block_out_channels) - 1)
    drawn = Normal((settings.latent_channels, side, side), mean=settings.shift_factor or 0.0, deviation=1 / settings.scaling_factor)
    return Generator(
        network,
        layers=["decoder.conv_in", "decoder.mid_block", "decoder.up_blocks.*"] if layers is None else layers,
        latent=drawn if images is None else _encoded(network, images, lambda batch: network.encode(batch).latent_dist.mean),
        method="decode",
        output="sample",
        name=name,
        device=device,
    )


def autoencoder_tiny(
    weights: str | Path,
    *,
    images: Tensor | None = None,
    size: int = 512,
    layers: Sequence[str] | None = None,
    name: str = "autoencoder_tiny",
    device: str | torch.device | None = None,
    **options: Any,
) -> Generator:
    """Make the decoder of diffusers' AutoencoderTiny a generator. Layers are its residual blocks. Everything else as ``autoencoder_kl`` has it.

    [n, channel, height, width], the images -> a generator of images of their size
    """
    network = _autoencoder("AutoencoderTiny", "autoencoder_tiny", weights, options)
    settings = network.config
    side = size // settings.upsampling_scaling_factor ** (len(settings.decoder_block_out_channels) - 1)
    blocks = [f"decoder.layers.{place}" for place, block in enumerate(network.decoder.layers) if list(block.children())]
    drawn = Normal((settings.latent_channels, side, side), mean=settings.shift_factor or 0.0, deviation=1 / settings.scaling_factor)
    return Generator(
        network,
        layers=blocks if layers is None else layers,
        latent=drawn if images is None else _encoded(network, images, lambda batch: network.encode(batch).latents),
        method="decode",
        output="sample",
        name=name,
        device=device,
    )


def decoder(
    module: nn.Module,
    *,
    latent: Any,
    within: str | None = None,
    layers: Sequence[str] | None = None,
    values: tuple[float, float] | None = (0.0, 1.0),
    name: str = "decoder",
    **options: Any,
) -> Generator:
    """Make any decoder a generator: the network of a variational autoencoder that turns a latent into an image.

    Args:
        module: the decoder, or an autoencoder whose ``method`` decodes, such as ``method="decode"``.
        latent: as of ``Generator``; a shape is right where the prior is a standard normal, which a well-trained variational autoencoder's is.
        within: the submodule in which layers are looked for, such as ``"decoder"``; None takes all of it, an encoder too.
        layers: dotted names; None finds blocks (see ``find_layers``).
        values: the range of its images; here [0, 1], as after a sigmoid.
        options: others of ``Generator``.
    """
    return Generator(
        module,
        layers=find_layers(module, within or "") if layers is None else layers,
        latent=latent,
        values=values,
        name=name,
        **options,
    )


def _autoencoder(kind: str, maker: str, weights: str | Path, options: dict[str, Any]) -> Any:
    _need("diffusers", maker=maker, extra="diffusers")
    import diffusers

    network, report = getattr(diffusers, kind).from_pretrained(weights, output_loading_info=True, **options)
    wrong = {what: names for what, names in report.items() if names}
    if wrong:
        said = "; ".join(f"{what.replace('_', ' ')}: {', '.join(map(str, list(names)[:5]))}" for what, names in wrong.items())
        raise ValueError(f"the weights {weights} do not fit {kind}: {said}")
    return network


def _encoded(network: Any, images: Tensor, encode: Any) -> PickedLatents:
    weight = next(network.parameters())
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            parts = [encode((part * 2 - 1).to(weight.device, weight.dtype)) for part in images.split(16)]
    finally:
        network.train(training)
    return PickedLatents(torch.cat(parts).float())


def _files(folder: Path, names: list[str]) -> tuple[Path, Path]:
    settings = folder / "config.json"
    found = [folder / file for file in ("model.safetensors", "pytorch_model.safetensors", "pytorch_model.bin") if (folder / file).is_file()]
    if not settings.is_file() or not found:
        raise ValueError(
            f"weights is {str(folder)!r}; expected a folder with config.json and pytorch_model.bin or model.safetensors, or one of {', '.join(names)}"
        )
    return settings, found[0]


def _downloaded(fetch: Any, link: str) -> Any:
    try:
        return fetch()
    except Exception as error:
        raise ValueError(
            f"{link} could not be downloaded ({type(error).__name__}: {error}); get it by other means, and give its path as weights"
        ) from error


def _need(*packages: str, maker: str, extra: str) -> None:
    for package in packages:
        if find_spec(package) is None:
            raise ImportError(
                f'{maker} needs the package {package}, which is not installed; to install it: pip install "rt-generator-perturbations[{extra}]"'
            )
