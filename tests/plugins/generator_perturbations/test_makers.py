"""Makers: small networks of random weights in the real file formats, read back, and what is said of files that do not fit."""

import json
import math
import subprocess
import sys
import types

import pytest
import torch
from torch import nn

from rt_generator_perturbations import autoencoder_kl, autoencoder_tiny, biggan, decoder, makers, progressive_gan
from rt_generator_perturbations.progressive import ProgressiveGAN, read_progressive_gan


def perturbed(made, count=2, size=0.5):
    """The images, clean and with every layer perturbed, and the largest change by each layer alone."""
    latents, random = made.draw(range(count)), torch.Generator().manual_seed(0)
    clean = made(latents)
    moved = {layer: size * torch.randn(count, *shape, generator=random) for layer, shape in made.shapes().items()}
    alone = {layer: (made(latents, {layer: part}) - clean).abs().max().item() for layer, part in moved.items()}
    return clean, made(latents, moved), alone


# ── BigGAN ──

BIGGAN = {
    "output_dim": 16,
    "z_dim": 8,
    "class_embed_dim": 8,
    "channel_width": 8,
    "num_classes": 5,
    "layers": [[False, 16, 16], [True, 16, 8], [False, 8, 8], [True, 8, 4], [False, 4, 2], [False, 2, 1]],
    "attention_layer_position": 3,
    "eps": 1e-4,
    "n_stats": 51,
}


@pytest.fixture(scope="module")
def biggan_network():
    model = pytest.importorskip("pytorch_pretrained_biggan")
    torch.manual_seed(0)
    network = model.BigGAN(model.BigGANConfig.from_dict(BIGGAN))
    nn.init.ones_(network.generator.bn.weight)  # the package leaves these two as memory happens to be
    nn.init.zeros_(network.generator.bn.bias)
    for part in network.modules():
        if hasattr(part, "running_means"):  # 51 statistics that differ, as those of real files do
            part.running_means.copy_(0.1 * torch.randn_like(part.running_means))
            part.running_vars.copy_(0.5 + torch.rand_like(part.running_vars))
        if hasattr(part, "gamma"):
            nn.init.ones_(part.gamma)
    with torch.no_grad():
        for _ in range(15):  # the old spectral norm gives NaN in eval mode until its vectors have settled
            network(torch.randn(4, 8), torch.eye(5)[:4], 0.4)
    return network.eval()


@pytest.fixture
def biggan_folder(biggan_network, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(BIGGAN))
    torch.save(biggan_network.state_dict(), tmp_path / "pytorch_model.bin")
    return tmp_path


@pytest.mark.parametrize("truncation", [0.4, 0.43, 1.0])
def test_biggan_reads_its_folder_and_draws_the_packages_own_images(biggan_network, biggan_folder, truncation):
    made = biggan(biggan_folder, truncation=truncation)
    latents = made.draw(range(4), seed=2)
    with torch.no_grad():
        own = biggan_network(latents.latents, torch.eye(5)[latents.classes], truncation)
    assert torch.equal(made(latents), (own + 1) / 2)
    assert made.shapes() == {
        "latent": (8,),
        "generator.gen_z": (4 * 4 * 16 * 8,),
        "generator.layers.0": (128, 4, 4),
        "generator.layers.1": (64, 8, 8),
        "generator.layers.2": (64, 8, 8),
        "generator.layers.3": (64, 8, 8),  # the attention
        "generator.layers.4": (32, 16, 16),
        "generator.layers.5": (16, 16, 16),
        "generator.layers.6": (8, 16, 16),
        "image": (3, 16, 16),
    }
    assert latents.latents.abs().max() <= 2 * truncation
    assert made.describe()["arguments"] == [truncation]
    assert made.classes == 5
    assert made.name == "biggan-deep-16"


def test_biggan_reads_both_file_formats_alike(biggan_network, biggan_folder):
    from safetensors.torch import save_file

    first = biggan(biggan_folder)
    save_file({name: weight.contiguous() for name, weight in biggan_network.state_dict().items()}, biggan_folder / "model.safetensors")
    (biggan_folder / "pytorch_model.bin").unlink()
    again = biggan(biggan_folder)
    assert torch.equal(first(first.draw(range(2))), again(again.draw(range(2))))


@pytest.mark.parametrize("reading", ["all", "first"])
def test_biggan_has_both_readings_of_the_latents_perturbation(biggan_network, biggan_folder, reading):
    made = biggan(biggan_folder, latent_reading=reading)
    latents, moved = made.draw(range(3)), 0.3 * torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    inner = biggan_network.generator
    with torch.no_grad():
        label = biggan_network.embeddings(torch.eye(5)[latents.classes])
        plain, further = (torch.cat([latent, label], 1) for latent in (latents.latents, latents.latents + moved))
        features = inner.gen_z(further).view(-1, 4, 4, 128).permute(0, 3, 1, 2)
        condition = further if reading == "all" else plain
        for block in inner.layers:
            features = block(features, condition, 0.4) if hasattr(block, "bn_0") else block(features)
        right = (inner.conv_to_rgb(inner.bn(features, 0.4).relu())[:, :3].tanh() + 1) / 2
    images = made(latents, {"latent": moved})
    torch.testing.assert_close(images, right, rtol=0, atol=1e-6)
    other = biggan(biggan_folder, latent_reading="first" if reading == "all" else "all")
    assert (other(latents, {"latent": moved}) - images).abs().max() > 1e-4
    assert torch.equal(other(latents), made(latents))


def test_every_layer_of_biggan_moves_the_image(biggan_folder):
    clean, moved, alone = perturbed(biggan(biggan_folder))
    assert clean.isfinite().all()
    assert ((moved >= 0) & (moved <= 1)).all()
    assert min(alone.values()) > 1e-3


def test_biggan_says_what_does_not_fit(biggan_network, biggan_folder):
    state = biggan_network.state_dict()
    torch.save({name: weight for name, weight in state.items() if name != "generator.bn.weight"}, biggan_folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r'(?s)do not fit: .*Missing key.*"generator\.bn\.weight"'):
        biggan(biggan_folder)
    torch.save({**state, "more": torch.zeros(1)}, biggan_folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r'(?s)do not fit: .*Unexpected key.*"more"'):
        biggan(biggan_folder)
    with pytest.raises(ValueError, match=r"expected a folder with config\.json .*biggan-deep-128, biggan-deep-256, biggan-deep-512"):
        biggan("biggan-deep-1024")
    with pytest.raises(ValueError, match="truncation is 0"):
        biggan(biggan_folder, truncation=0)
    with pytest.raises(ValueError, match=r"latent_reading is 'both'; .*z \+ p_0"):
        biggan(biggan_folder, latent_reading="both")


def test_untrained_spectral_norms_are_found_out(biggan_folder, biggan_network):
    """The trap at random weights: vectors that never settled divide by what is nearly zero."""
    state = {
        name: torch.zeros_like(weight) if name.endswith("weight_u") else weight for name, weight in biggan_network.state_dict().items()
    }
    torch.save(state, biggan_folder / "pytorch_model.bin")
    made = biggan(biggan_folder)
    with pytest.raises(ValueError, match="draws NaN or infinity; are its weights loaded"):
        made(made.draw([0]))


def test_a_name_on_the_hub_goes_through_the_packages_download(biggan_folder, monkeypatch):
    utilities = pytest.importorskip("pytorch_pretrained_biggan.file_utils")
    asked = []

    def cached_path(link):
        asked.append(link)
        return str(biggan_folder / ("config.json" if link.endswith("config.json") else "pytorch_model.bin"))

    monkeypatch.setattr(utilities, "cached_path", cached_path)
    made = biggan("biggan-deep-256")
    assert torch.equal(made(made.draw([0])), biggan(biggan_folder)(made.draw([0])))
    assert [link.rpartition("/")[2] for link in asked] == ["biggan-deep-256-config.json", "biggan-deep-256-pytorch_model.bin"]

    def fails(link):
        raise OSError("no network")

    monkeypatch.setattr(utilities, "cached_path", fails)
    with pytest.raises(ValueError, match=r"biggan-deep-512-config\.json could not be downloaded \(OSError: no network\).*give its path"):
        biggan("biggan-deep-512")


# ── progressive GAN ──

DEPTHS = (8, 8, 4)


@pytest.fixture(scope="module")
def progressive_weights():
    """Weights under the names of pytorch_GAN_zoo's generator, with the image layers of lower scales that its files hold too."""
    random = torch.Generator().manual_seed(0)

    def layer(name, *shape):
        return {f"{name}.weight": torch.randn(*shape, generator=random), f"{name}.bias": 0.1 * torch.randn(shape[0], generator=random)}

    return {
        **layer("formatLayer", 16 * 8, 6),
        **layer("groupScale0.0", 8, 8, 3, 3),
        **layer("scaleLayers.0.0", 8, 8, 3, 3),
        **layer("scaleLayers.0.1", 8, 8, 3, 3),
        **layer("scaleLayers.1.0", 4, 8, 3, 3),
        **layer("scaleLayers.1.1", 4, 4, 3, 3),
        **layer("toRGBLayers.0", 3, 8, 1, 1),
        **layer("toRGBLayers.1", 3, 8, 1, 1),
        **layer("toRGBLayers.2", 3, 4, 1, 1),
    }


def newer(weights):
    """The names of newer files: ``formatLayer.module.weight``."""
    return {f"{name.rpartition('.')[0]}.module.{name.rpartition('.')[2]}": weight for name, weight in weights.items()}


def progressive_by_hand(weights, latents, *, leak=0.2, tanh=False, equalized=True):
    """Karras et al. 2018 in float64: pixel norm, He's constant at run time (bias too), nearest upsampling, leaky ReLU."""
    double = {name: weight.double() for name, weight in weights.items()}

    def norm(x):
        return x / (x.pow(2).mean(1, keepdim=True) + 1e-8).sqrt()

    def apply(name, x, padding=1):
        weight, bias = double[f"{name}.weight"], double[f"{name}.bias"]
        factor = math.sqrt(2 / math.prod(weight.shape[1:])) if equalized else 1
        if weight.ndim == 2:
            return factor * (x @ weight.T + bias)
        return factor * nn.functional.conv2d(x, weight, bias, padding=padding)

    def act(x):
        return norm(torch.maximum(x, leak * x))

    x = apply("formatLayer", norm(latents.double()))
    x = norm(torch.maximum(x, leak * x).reshape(len(latents), -1, 4, 4))
    x = act(apply("groupScale0.0", x))
    for scale in range(2):
        x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
        x = act(apply(f"scaleLayers.{scale}.1", act(apply(f"scaleLayers.{scale}.0", x))))
    x = apply("toRGBLayers.2", x, padding=0)
    return ((x.tanh() if tanh else x) + 1).div(2).clamp(0, 1)


def save_as_the_zoo(path, monkeypatch, generator, average=None, **settings):
    """A checkpoint as pytorch_GAN_zoo saves one: settings in an object of its class ``models.utils.config.BaseConfig``, which is gone afterwards."""
    module = types.ModuleType("models.utils.config")
    module.BaseConfig = type("BaseConfig", (), {"__module__": "models.utils.config"})
    config = module.BaseConfig()
    vars(config).update(
        {"noiseVectorDim": 6, "categoryVectorDim": 0, "alpha": 0, "lossCriterion": "WGANGP", "depthOtherScales": [8, 4], **settings}
    )
    with monkeypatch.context() as patched:
        for name in ("models", "models.utils"):
            patched.setitem(sys.modules, name, types.ModuleType(name))
        patched.setitem(sys.modules, "models.utils.config", module)
        torch.save({"config": config, "netG": generator, "netD": {}, **({} if average is None else {"avgG": average})}, path)
    return path


@pytest.mark.parametrize("names", ["older", "newer"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"leakyReluLeak": 0.1},
        {"lossCriterion": "DCGAN"},
        {"lossCriterion": "MSE"},
        {"lossCriterion": "Logistic", "perChannelNormalization": True},
        {"equalizedlR": False},
    ],
)
def test_a_progressive_gan_is_read_from_the_zoos_checkpoint(progressive_weights, tmp_path, monkeypatch, names, settings):
    saved = newer(progressive_weights) if names == "newer" else progressive_weights
    made = progressive_gan(save_as_the_zoo(tmp_path / "s2_i100.pth", monkeypatch, saved, **settings))
    latents = made.draw(range(4))
    right = progressive_by_hand(
        progressive_weights,
        latents.latents,
        leak=settings.get("leakyReluLeak", 0.2),
        tanh=settings.get("lossCriterion") in ("DCGAN", "MSE"),
        equalized=settings.get("equalizedlR", True),
    )
    torch.testing.assert_close(made(latents).double(), right, rtol=0, atol=1e-5)
    assert made.shapes() == {
        "latent": (6,),
        "format": (8, 4, 4),
        "scales.0": (8, 4, 4),
        "scales.1": (8, 8, 8),
        "scales.2": (4, 16, 16),
        "image": (3, 16, 16),
    }
    assert made.classes is None


def test_the_moving_average_is_taken_unless_refused(progressive_weights, tmp_path, monkeypatch):
    average = {name: weight + 1 for name, weight in progressive_weights.items()}
    path = save_as_the_zoo(tmp_path / "both.pth", monkeypatch, progressive_weights, average)
    averaged, last = progressive_gan(path), progressive_gan(path, average=False)
    latents = averaged.draw(range(2))
    torch.testing.assert_close(averaged(latents).double(), progressive_by_hand(average, latents.latents), rtol=0, atol=1e-5)
    torch.testing.assert_close(last(latents).double(), progressive_by_hand(progressive_weights, latents.latents), rtol=0, atol=1e-5)


def test_every_layer_of_a_progressive_gan_moves_the_image_and_a_latents_length_says_nothing(progressive_weights, tmp_path):
    torch.save(progressive_weights, tmp_path / "plain.pt")  # a state dict alone
    made = progressive_gan(tmp_path / "plain.pt")
    _, moved, alone = perturbed(made)
    assert ((moved >= 0) & (moved <= 1)).all()
    assert min(alone.values()) > 1e-3
    latents = made.draw(range(2))
    torch.testing.assert_close(made(latents, {"latent": 2 * latents.latents}), made(latents), rtol=0, atol=1e-5)
    assert made.groups() == {
        "latent": ("latent",),
        "early": ("format",),
        "middle": ("scales.0", "scales.1"),
        "late": ("scales.2",),
        "pixels": ("image",),
    }


def test_a_progressive_gan_says_what_does_not_fit(progressive_weights, tmp_path, monkeypatch):
    path = tmp_path / "file.pth"

    def refused(weights, message, **settings):
        save_as_the_zoo(path, monkeypatch, weights, **settings)
        with pytest.raises(ValueError, match=message):
            progressive_gan(path)

    weights = progressive_weights
    refused(
        {name: weight for name, weight in weights.items() if name != "scaleLayers.1.1.bias"},
        r'Missing key.*"scales\.2\.layers\.1\.layer\.bias"',
    )
    refused({**weights, "more.weight": torch.zeros(1)}, r'(?s)do not fit a progressive GAN.*Unexpected key.*"more\.layer\.weight"')
    refused({**weights, "scaleLayers.0.1.weight": torch.zeros(8, 7, 3, 3)}, "size mismatch for scales.1.layers.1.layer.weight")
    refused({"conv.weight": torch.zeros(1)}, r"holds conv\.layer\.weight …; expected a progressive GAN of pytorch_GAN_zoo")
    refused(weights, "conditioned on 5 attributes", categoryVectorDim=5)
    refused(weights, "perChannelNormalization off; .*wrap this one in a Generator", perChannelNormalization=False)
    refused(weights, r"loss 'Hinge'.*expected WGANGP, Logistic, MSE, DCGAN: .*tanh=", lossCriterion="Hinge")
    refused(weights, r"blends two scales \(alpha is 0\.5\)", alpha=0.5)
    with pytest.raises(ValueError, match="expected the path of a checkpoint, or one of celebAHQ-256"):
        progressive_gan("celebAHQ-1024")

    class Other:
        pass

    monkeypatch.setattr(sys.modules[__name__], "Other", Other, raising=False)
    Other.__qualname__ = "Other"
    torch.save({"netG": weights, "config": Other()}, path)
    with pytest.raises(ValueError, match="more than tensors"):
        read_progressive_gan(path)


def test_a_progressive_gans_name_goes_through_torchs_download_once(progressive_weights, tmp_path, monkeypatch):
    asked = []

    def download(link, path, hash_prefix, progress):
        asked.append((link.rpartition("/")[2], hash_prefix))
        torch.save(progressive_weights, path)

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    for _ in range(2):
        assert progressive_gan("celebAHQ-512").shapes()["image"] == (3, 16, 16)
    assert asked == [("celebaHQ16_december_s7_i96000-9c72988c.pth", "9c72988c")]


@pytest.mark.parametrize(("scales", "side"), [(7, 256), (8, 512)])
def test_a_progressive_gan_of_the_papers_size_has_its_layers(scales, side):
    """Six scales above 4 x 4 for 256 pixels, seven for 512; channels as the zoo's configuration has them."""
    with torch.device("meta"):
        network = ProgressiveGAN(latent=512, depths=[512, 512, 512, 512, 256, 128, 64, 32, 16][:scales])
        assert network(torch.empty(2, 512)).shape == (2, 3, side, side)
    assert len(network.scales) == scales


# ── diffusers ──


@pytest.fixture(scope="module")
def kl_folder(tmp_path_factory):
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    network = diffusers.AutoencoderKL(
        block_out_channels=(8, 16),
        norm_num_groups=4,
        layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        sample_size=16,
        shift_factor=0.25,
    )
    folder = tmp_path_factory.mktemp("kl")
    network.save_pretrained(folder / "vae")
    return folder


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    widths = {
        "encoder_block_out_channels": (8, 8),
        "decoder_block_out_channels": (8, 8),
        "num_encoder_blocks": (1, 2),
        "num_decoder_blocks": (2, 1),
    }
    folder = tmp_path_factory.mktemp("tiny")
    diffusers.AutoencoderTiny(**widths).save_pretrained(folder)
    return folder


def test_an_autoencoder_kl_is_read_from_its_folder(kl_folder):
    diffusers = pytest.importorskip("diffusers")
    made = autoencoder_kl(kl_folder, subfolder="vae")
    network = diffusers.AutoencoderKL.from_pretrained(kl_folder, subfolder="vae").eval()
    latents = made.draw(range(3))
    with torch.no_grad():
        own = network.decode(latents.latents).sample
    assert torch.equal(made(latents), ((own + 1) / 2).clamp(0, 1))
    assert made.shapes() == {
        "latent": (4, 8, 8),
        "decoder.conv_in": (16, 8, 8),
        "decoder.mid_block": (16, 8, 8),
        "decoder.up_blocks.0": (16, 16, 16),
        "decoder.up_blocks.1": (8, 16, 16),
        "image": (3, 16, 16),
    }
    many = made.draw(range(200)).latents
    assert many.mean().item() == pytest.approx(0.25, abs=0.2)
    assert many.std().item() == pytest.approx(1 / 0.18215, rel=0.02)
    _, _, alone = perturbed(made)
    assert min(alone.values()) > 1e-3


def test_an_autoencoder_tiny_is_read_from_its_folder(tiny_folder):
    diffusers = pytest.importorskip("diffusers")
    made = autoencoder_tiny(tiny_folder, size=16)
    network = diffusers.AutoencoderTiny.from_pretrained(tiny_folder).eval()
    latents = made.draw(range(3))
    with torch.no_grad():
        own = network.decode(latents.latents).sample
    assert torch.equal(made(latents), ((own + 1) / 2).clamp(0, 1))
    assert made.layers == ("latent", "decoder.layers.2", "decoder.layers.3", "decoder.layers.6", "image")
    _, _, alone = perturbed(made)
    assert min(alone.values()) > 1e-3


@pytest.mark.parametrize("kind", ["kl", "tiny"])
def test_with_images_an_autoencoder_draws_their_reconstructions(kl_folder, tiny_folder, kind):
    images = torch.rand(5, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    made = autoencoder_kl(kl_folder, subfolder="vae", images=images) if kind == "kl" else autoencoder_tiny(tiny_folder, images=images)
    network = made.module.eval()
    with torch.no_grad():
        codes = network.encode(images * 2 - 1)
        codes = codes.latent_dist.mean if kind == "kl" else codes.latents
        right = ((network.decode(codes).sample + 1) / 2).clamp(0, 1)
    drawn = made(made.draw(range(20)))
    nearest = (drawn[:, None] - right).flatten(2).abs().amax(2).min(1)
    assert nearest.values.max() < 1e-5
    assert len(nearest.indices.unique()) == 5
    assert made.shapes()["image"] == (3, 24, 24)


def test_half_precision_is_an_option_of_from_pretrained(kl_folder):
    made = autoencoder_kl(kl_folder, subfolder="vae", torch_dtype=torch.bfloat16)
    full = autoencoder_kl(kl_folder, subfolder="vae")
    latents = made.draw(range(2))
    assert next(made.module.parameters()).dtype == torch.bfloat16
    assert made(latents).dtype == torch.float32
    torch.testing.assert_close(made(latents), full(latents), rtol=0, atol=0.1)


def test_an_autoencoders_checkpointing_changes_nothing(kl_folder):
    plain, again = (autoencoder_kl(kl_folder, subfolder="vae") for _ in range(2))
    again.module.enable_gradient_checkpointing()
    slopes = []
    for made in (plain, again):
        made.module.train()  # diffusers checkpoints in any mode
        moved = torch.full((2, 16, 16, 16), 0.1, requires_grad=True)
        made(made.draw(range(2)), {"decoder.up_blocks.0": moved}).square().sum().backward()
        slopes.append(moved.grad)
    assert torch.equal(*slopes)


def test_autoencoders_weights_that_do_not_fit_are_refused(kl_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    (tmp_path / "config.json").write_text((kl_folder / "vae" / "config.json").read_text())
    weights = load_file(kl_folder / "vae" / "diffusion_pytorch_model.safetensors")
    weights.pop("decoder.conv_out.bias")
    save_file({**weights, "more": torch.zeros(1)}, tmp_path / "diffusion_pytorch_model.safetensors")
    with pytest.raises(ValueError, match=r"do not fit AutoencoderKL: .*missing keys: decoder\.conv_out\.bias.*unexpected keys: more"):
        autoencoder_kl(tmp_path)


# ── any decoder ──


class Autoencoder(nn.Module):
    """An encoder that is larger than its decoder, whose blocks are not to be found."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 50), nn.ReLU(), nn.Linear(50, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 16), nn.Sigmoid(), nn.Unflatten(1, (1, 4, 4)))

    def forward(self, images):
        return self.decode(self.encoder(images.flatten(1)))

    def decode(self, latents):
        return self.decoder(latents)


def test_any_autoencoders_decoder_is_a_generator():
    network = Autoencoder()
    made = decoder(network, latent=3, method="decode", within="decoder")
    assert made.layers == ("latent", "decoder.1", "image")
    latents, moved = made.draw(range(4)), torch.randn(4, 8)
    hidden = network.decoder[1](network.decoder[0](latents.latents)) + moved
    torch.testing.assert_close(made(latents, {"decoder.1": moved}), network.decoder[2:](hidden))
    alone = decoder(network.decoder, latent=3)
    assert alone.layers == ("latent", "1", "image")
    assert torch.equal(alone(latents), made(latents))


@pytest.mark.parametrize(("maker", "package"), [(biggan, "boto3"), (autoencoder_kl, "diffusers"), (autoencoder_tiny, "diffusers")])
def test_a_missing_package_is_named_with_the_extra_that_installs_it(monkeypatch, maker, package):
    monkeypatch.setattr(makers, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(ImportError, match=rf'{maker.__name__} needs the package {package}, .*pip install "rt-generator-perturbations\['):
        maker("anything")


def test_the_package_is_cold_and_its_makers_import_nothing_heavy_until_called():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, rt_generator_perturbations.makers; print({'diffusers', 'boto3', 'pytorch_pretrained_biggan'} & set(sys.modules))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "set()"
