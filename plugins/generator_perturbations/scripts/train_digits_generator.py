"""Make the shipped weights of rt-generator-perturbations from nothing: `python scripts/train_digits_generator.py`, two minutes on one core.

Everything is learned from the 1,297 training digits of rt-samples, with their labels; no weight saw the 500 test digits. The settings
below were chosen with a look at what `report` prints, test digits included (about a dozen generators, three radii), so its figures are
of chosen weights and not of fresh ones.

1. The decoder of a conditional variational autoencoder (Kingma & Welling 2014; Sohn et al. 2015): `digits_generator`.
2. A classifier, trained on digits as they are: `digits_classifier`.
3. The same from the same initial weights, each batch replaced by what an l2 attack makes of it (Madry et al. 2018):
   `digits_classifier_robust`.

The same bits come out again on the same machine with the same versions: one thread, one seed. Elsewhere the last bits differ and
training amplifies them, so expect other weights that measure alike.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import safetensors.torch
import sklearn
import torch
from sklearn.svm import SVC
from torch import Tensor, nn
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, one_hot

import rt_core
from rt_core.datasets import Samples
from rt_generator_perturbations.network import CLASSES, LATENT, DigitClassifier, DigitDecoder

GENERATOR = {"epochs": 50, "batch": 64, "rate": 2e-3}
CLASSIFIER = {"epochs": 40, "batch": 128, "rate": 2e-3}
# Gray values are taken as Gaussian around what is drawn. A smaller deviation gives digits that are more diverse and less legible to the
# judge; a larger one, or cross-entropy, more legible ones that are more alike.
DEVIATION = 0.35
WARM = 0.25  # share of the steps in which the latents' cost grows to its full weight, lest they say nothing from the start
RADIUS, STEPS = 0.5, 7  # of the attack in training
WEIGHTS = Path(__file__).resolve().parent.parent / "rt_generator_perturbations" / "weights"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of initial weights, order, views and attacks (default 0)")
    parser.add_argument("--radius", type=float, default=RADIUS, help=f"l2 radius of the attack in training (default {RADIUS})")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="folder for the weights (default: the package's)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    train = rt_core.dataset("digits", split="train")
    inputs, labels = read(train)
    note = {
        "seed": arguments.seed,
        "command": f"python scripts/train_digits_generator.py --seed {arguments.seed} --radius {arguments.radius:g}",
    }

    decoder = timed("generator", lambda: autoencode(inputs, labels, seed=arguments.seed))
    standard = timed("classifier", lambda: classify(inputs, labels, radius=0.0, seed=arguments.seed))
    robust = timed("robust classifier", lambda: classify(inputs, labels, radius=arguments.radius, seed=arguments.seed))
    save(decoder, arguments.out / "digits_generator.safetensors", **note, method="decoder of a conditional VAE")
    save(standard, arguments.out / "digits_classifier.safetensors", **note, method="classification with labels")
    attacked = f"classification of what an l2 attack of radius {arguments.radius:g} makes of each batch"
    save(robust, arguments.out / "digits_classifier_robust.safetensors", **note, method=attacked)
    report(decoder, {"standard": standard, "robust": robust}, train, rt_core.dataset("digits", split="test"), seed=arguments.seed)


# ── the two trainings ──


class Guess(nn.Module):
    """Which latents an image of a class may have come from: only training uses it.

    [batch, 1, 16, 16], [batch, 10] -> mean [batch, 16], log of variance [batch, 16]
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1 + CLASSES, 32, 4, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Linear(128, 2 * LATENT),
        )  # fmt: skip

    def forward(self, images: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        planes = classes[:, :, None, None].expand(-1, -1, *images.shape[2:])
        mean, log_variance = self.body(torch.cat([images, planes], dim=1)).chunk(2, dim=1)
        return mean, log_variance


def autoencode(inputs: Tensor, labels: Tensor, *, seed: int) -> DigitDecoder:
    """Learn to draw digits: from latents guessed of a digit back to it, while the guesses stay standard normal.

    inputs: [n, 1, 16, 16]; labels: [n]
    """
    torch.manual_seed(seed)
    decoder, guess = DigitDecoder(), Guess()
    rng = torch.Generator().manual_seed(seed)
    classes = one_hot(labels, CLASSES).float()
    learner = Learner(nn.ModuleList([decoder, guess]), n=len(inputs), **GENERATOR)
    for rows in learner.batches(rng):
        images = inputs[rows]
        mean, log_variance = guess(images, classes[rows])
        latents = mean + (log_variance / 2).exp() * torch.randn(mean.shape, generator=rng)
        drawn = decoder(latents, classes[rows])
        missed = (drawn - images).square().flatten(1).sum(dim=1) / (2 * DEVIATION**2)
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(dim=1) / 2
        learner.step((missed + min(1.0, learner.done / WARM) * divergence).mean())
    return decoder.eval()


def classify(inputs: Tensor, labels: Tensor, *, radius: float, seed: int) -> DigitClassifier:
    """Learn the classes, of digits as they are or (radius above 0) of what an attack makes of them.

    inputs: [n, 1, 16, 16]; labels: [n]
    """
    torch.manual_seed(seed)
    network = DigitClassifier()
    rng = torch.Generator().manual_seed(seed)
    learner = Learner(network, n=len(inputs), **CLASSIFIER)
    for rows in learner.batches(rng):
        images = view(inputs[rows], rng)
        if radius > 0:
            images = attack(network, images, labels[rows], rng, radius=radius, steps=STEPS)
        learner.step(cross_entropy(network(images), labels[rows]))
    return network.eval()


def attack(network: nn.Module, inputs: Tensor, labels: Tensor, rng: torch.Generator, *, radius: float, steps: int) -> Tensor:
    """Climb the cross-entropy by normalized gradients, from a random start, inside the l2 ball around each digit and inside the bounds.

    inputs: [batch, 1, 16, 16]; labels: [batch] -> same shape as inputs
    """
    moved = within(inputs + radius * torch.randn(inputs.shape, generator=rng) / inputs[0].numel() ** 0.5, inputs, radius)
    for _ in range(steps):
        moved.requires_grad_()
        (slope,) = torch.autograd.grad(cross_entropy(network(moved), labels, reduction="sum"), moved)
        length = slope.flatten(1).norm(dim=1).clamp(min=1e-12).view(-1, 1, 1, 1)
        moved = within(moved.detach() + 2.5 * radius / steps * slope / length, inputs, radius)
    return moved


def within(moved: Tensor, inputs: Tensor, radius: float) -> Tensor:
    offset = moved - inputs
    length = offset.flatten(1).norm(dim=1).clamp(min=1e-12).view(-1, 1, 1, 1)
    return (inputs + offset * (radius / length).clamp(max=1)).clamp(0, 1)


class Learner:
    """Full batches in a new order each epoch, and steps of AdamW whose rate falls as a cosine to zero."""

    def __init__(self, network: nn.Module, *, n: int, epochs: int, batch: int, rate: float):
        self.n, self.epochs, self.batch, self.steps = n, epochs, batch, epochs * (n // batch)
        self.optimizer = torch.optim.AdamW(network.train().parameters(), lr=rate)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, self.steps)

    @property
    def done(self) -> float:
        """The share of all steps that are behind."""
        return self.scheduler.last_epoch / self.steps

    def batches(self, rng: torch.Generator) -> Iterator[Tensor]:
        """-> rows, [batch] each"""
        for _ in range(self.epochs):
            yield from torch.randperm(self.n, generator=rng)[: self.n - self.n % self.batch].split(self.batch)

    def step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()


def view(inputs: Tensor, rng: torch.Generator) -> Tensor:
    """A random view of each digit: turned, scaled, sheared and shifted a little.

    inputs: [batch, 1, height, width] in [0, 1] -> same shape
    """
    batch = len(inputs)
    angle, shear = _draw(rng, batch, -0.15, 0.15), _draw(rng, batch, -0.1, 0.1)
    scale, across, down = _draw(rng, batch, 0.9, 1.1), _draw(rng, batch, -0.08, 0.08), _draw(rng, batch, -0.08, 0.08)
    cos, sin = angle.cos() / scale, angle.sin() / scale
    maps = torch.stack([cos, shear - sin, across, sin, cos, down], dim=1).view(batch, 2, 3)
    return grid_sample(inputs, affine_grid(maps, list(inputs.shape), align_corners=False), align_corners=False)


def _draw(rng: torch.Generator, batch: int, low: float, high: float) -> Tensor:
    return low + (high - low) * torch.rand(batch, generator=rng)


# ── what was learned ──


def report(
    decoder: DigitDecoder, classifiers: dict[str, DigitClassifier], train: Samples, test: Samples, *, seed: int, draws: int = 2000
) -> None:
    """Print what the docs say of these weights: on the test digits, and on images drawn in equal numbers of each class."""
    inputs, labels = read(test)
    learned, learned_labels = read(train)
    judge = SVC(C=10, gamma="scale").fit(learned.flatten(1).numpy(), learned_labels.numpy())
    rng = torch.Generator().manual_seed(seed + 1)
    classes = torch.arange(draws) % CLASSES
    with torch.no_grad():
        images = decoder(torch.randn(draws, LATENT, generator=rng), one_hot(classes, CLASSES).float())
        says = {name: (network(inputs).argmax(dim=1), network(images).argmax(dim=1)) for name, network in classifiers.items()}
    says["judge (SVC)"] = tuple(torch.from_numpy(judge.predict(some.flatten(1).numpy())) for some in (inputs, images))
    for name, (on_digits, on_images) in says.items():
        print(f"{name}: right on {share(on_digits == labels)} of test digits, on {share(on_images == classes)} of generated images")
    both = torch.stack([says[name][1] == classes for name in classifiers]).all(dim=0)
    print(f"both classifiers right on {share(both)} of generated images")
    for radius in (0.25, 0.5, 1.0):
        right = {
            name: share(network(attack(network, inputs, labels, rng, radius=radius, steps=20)).argmax(dim=1) == labels)
            for name, network in classifiers.items()
        }
        print(f"right on test digits under an l2 attack of radius {radius:g}: {right}")
    real = torch.stack([torch.pdist(inputs[labels == label].flatten(1)).mean() for label in range(CLASSES)])
    drawn = torch.stack([torch.pdist(images[classes == label].flatten(1)).mean() for label in range(CLASSES)])
    print(
        f"mean l2 distance within a class: generated / test digits {(drawn / real).mean():.2f} ({(drawn / real).min():.2f} to {(drawn / real).max():.2f})"
    )


def share(right: Tensor) -> str:
    return f"{100 * right.double().mean():.1f} %"


# ── files ──


def read(samples: Samples) -> tuple[Tensor, Tensor]:
    """-> inputs [n, 1, 16, 16], labels [n]"""
    rows = range(len(samples))
    return samples.inputs(rows), torch.tensor(samples.labels(rows))


def save(network: nn.Module, path: Path, **note: object) -> None:
    """Write float16 weights, with what made them in the file's metadata: one entry, as the order of several is not fixed."""
    weights = {key: tensor.detach().to(torch.float16).contiguous() for key, tensor in network.state_dict().items()}
    versions = {module.__name__: module.__version__ for module in (torch, numpy, sklearn, safetensors)}
    made = {**note, "split": "train: 1,297 digits, rt_samples.digits.split_rows", "threads": 1, "versions": versions}
    path.write_bytes(safetensors.torch.save(weights, metadata={"made": json.dumps(made)}))
    # What is shipped is what is measured: the network goes on with the stored values.
    network.load_state_dict({key: tensor.float() for key, tensor in weights.items()})
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def timed(what: str, work: Callable[[], nn.Module]):
    start, cpu = time.perf_counter(), time.process_time()
    made = work()
    print(f"{what}: {time.perf_counter() - start:.1f} s ({time.process_time() - cpu:.1f} s CPU)", flush=True)
    return made


if __name__ == "__main__":
    main()
