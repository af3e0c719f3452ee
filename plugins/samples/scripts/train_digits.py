"""Make the shipped weights of rt-samples from nothing: `python scripts/train_digits.py`, under two minutes on one core.

Everything is learned from the 1,297 training digits; the test digits are not loaded. Labels are read for `digits_supervised` only.

1. Contrastive pre-training in the manner of MoCo (He et al. 2020): `digits_contrastive`.
2. From there, label-free adversarial fine-tuning (Petrov & Kwiatkowska 2022, Listing 1), once with each of its three attacks.
   `digits_robust` is the one with the smallest median universal quantile under U-PGD at the training epsilon on the first 500
   training digits, among the pairs of all training digits: no labels, no test digits, decided before anything was measured.
3. Classification with labels: `digits_supervised`, of which the layer before the classes is kept.

The same bits come out again on the same machine with the same versions: one thread, one seed. Elsewhere the last bits differ and
training amplifies them, so expect other weights that measure alike.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import safetensors.torch
import sklearn
import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, cross_entropy, grid_sample

from rt_samples.digits import digits
from rt_samples.network import DigitNetwork, ProjectionHead

BATCH = 128
QUEUE = 1024
MOMENTUM = 0.99
TEMPERATURE = 0.2
PRETRAINING = {"epochs": 40, "rate": 2e-3}
FINE_TUNING = {"epochs": 10, "rate": 1e-3}
EPSILON, STEP, STEPS = 0.1, 0.03, 5  # inside the safe window; from epsilon 0.3 on, UNTAR and LOSS make an encoder less robust
VARIANTS = ("target", "away", "loss")
WEIGHTS = Path(__file__).resolve().parent.parent / "rt_samples" / "weights"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of initial weights, order, augmentation and attacks (default 0)")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="folder for the weights (default: the package's)")
    parser.add_argument("--keep-variants", action="store_true", help="save all three fine-tuned encoders, as digits_robust_<variant>")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    train = digits(split="train")
    rows = range(len(train))
    inputs, labels = train.inputs(rows), torch.tensor(train.labels(rows))
    note = {"seed": arguments.seed, "command": f"python scripts/train_digits.py --seed {arguments.seed}"}

    contrastive, head = timed("contrastive pre-training", lambda: pretrain(inputs, seed=arguments.seed))
    save(contrastive, arguments.out / "digits_contrastive.safetensors", **note, method="contrastive pre-training (MoCo)")

    tuned = {}
    for variant in VARIANTS:
        tuned[variant] = timed(
            f"fine-tuning, {variant}", lambda variant=variant: fine_tune(contrastive, head, inputs, variant=variant, seed=arguments.seed)
        )
    moved = {variant: universal_quantile_on_train(network, inputs, seed=arguments.seed) for variant, network in tuned.items()}
    before = universal_quantile_on_train(contrastive, inputs, seed=arguments.seed)
    print(f"median universal quantile on training digits, epsilon {EPSILON:g}: before {before:.4f}")
    for variant, quantile in moved.items():
        print(f"  {variant}: {quantile:.4f}")
        if arguments.keep_variants:
            save(tuned[variant], arguments.out / f"digits_robust_{variant}.safetensors", **note, method=f"fine-tuned, {variant}")
    chosen = min(moved, key=moved.__getitem__)
    print(f"chosen: {chosen}")
    method = f"adversarial fine-tuning of digits_contrastive (Listing 1, variant {chosen}, epsilon {EPSILON:g})"
    save(tuned[chosen], arguments.out / "digits_robust.safetensors", **note, method=method)

    supervised = timed("supervised training", lambda: classify(inputs, labels, seed=arguments.seed))
    save(supervised, arguments.out / "digits_supervised.safetensors", **note, method="classification with labels")


# ── the three trainings ──


def pretrain(inputs: Tensor, *, seed: int) -> tuple[DigitNetwork, ProjectionHead]:
    """Learn to find the other view of a digit among the views of other digits.

    inputs: [n, 1, 16, 16]
    """
    torch.manual_seed(seed)
    network, head = DigitNetwork(), ProjectionHead()
    _contrast(nn.Sequential(network, head), inputs, attack=None, rng=torch.Generator().manual_seed(seed), **PRETRAINING)
    return network.eval(), head.eval()


def fine_tune(network: DigitNetwork, head: ProjectionHead, inputs: Tensor, *, variant: str, seed: int) -> DigitNetwork:
    """Go on contrasting, with attacked queries beside the clean ones (Petrov & Kwiatkowska 2022, Listing 1).

    inputs: [n, 1, 16, 16]; variant: "target", "away" or "loss", the paper's TAR, UNTAR and LOSS
    """
    query = copy.deepcopy(nn.Sequential(network, head))
    _contrast(query, inputs, attack=variant, rng=torch.Generator().manual_seed(seed + 1), **FINE_TUNING)
    return query[0].eval()


def classify(inputs: Tensor, labels: Tensor, *, seed: int) -> DigitNetwork:
    """Learn the classes from the same views and for as long as the contrastive encoder.

    inputs: [n, 1, 16, 16]; labels: [n]
    """
    torch.manual_seed(seed)
    network = DigitNetwork()
    classifier = nn.Sequential(network, nn.ReLU(), nn.Linear(64, 10))
    rng = torch.Generator().manual_seed(seed)
    learner = Learner(classifier, n=len(inputs), **PRETRAINING)
    for rows in learner.batches(rng):
        learner.step(cross_entropy(classifier(augment(inputs[rows], rng)), labels[rows]))
    return network.eval()


def _contrast(query: nn.Module, inputs: Tensor, *, attack: str | None, rng: torch.Generator, epochs: int, rate: float) -> None:
    """Train a query network in place; its keys come from a slow copy, and the negatives from a queue of the latest keys."""
    key = copy.deepcopy(query).requires_grad_(False)
    queue = _first_queue(key, inputs, rng)
    learner = Learner(query, n=len(inputs), epochs=epochs, rate=rate)
    for rows in learner.batches(rng):
        first, second = augment(inputs[rows], rng), augment(inputs[rows], rng)
        keys = key(second)
        views = [first]
        if attack is not None:
            views.append(_attack(_objective(attack, query, first, second, keys, queue), query, first, rng))
        queries = query(torch.cat(views))
        learner.step(contrastive_loss(queries, keys.repeat(len(views), 1), queue).mean())
        with torch.no_grad():
            for slow, fast in zip(key.parameters(), query.parameters(), strict=True):
                slow.lerp_(fast, 1 - MOMENTUM)
        queue = torch.cat([keys, queue])[:QUEUE]


def contrastive_loss(queries: Tensor, keys: Tensor, queue: Tensor) -> Tensor:
    """How badly each query tells its own key from the queue (InfoNCE).

    queries, keys: [batch, 32]; queue: [queue, 32] -> [batch]
    """
    own = (queries * keys).sum(dim=1, keepdim=True)
    logits = torch.cat([own, queries @ queue.T], dim=1) / TEMPERATURE
    return cross_entropy(logits, torch.zeros(len(queries), dtype=torch.long), reduction="none")


def _first_queue(key: nn.Module, inputs: Tensor, rng: torch.Generator) -> Tensor:
    rows = torch.randperm(len(inputs), generator=rng)[:QUEUE]
    with torch.no_grad():
        return key(augment(inputs[rows], rng))


class Learner:
    """Full batches in a new order each epoch, and steps of AdamW whose rate falls as a cosine to zero."""

    def __init__(self, network: nn.Module, *, n: int, epochs: int, rate: float):
        self.n, self.epochs = n, epochs
        self.optimizer = torch.optim.AdamW(network.train().parameters(), lr=rate)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, epochs * (n // BATCH))

    def batches(self, rng: torch.Generator) -> Iterator[Tensor]:
        """-> rows, [128] each"""
        for _ in range(self.epochs):
            yield from torch.randperm(self.n, generator=rng)[: self.n - self.n % BATCH].split(BATCH)

    def step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()


# ── attacks on the query network, head included ──


def _objective(variant: str, query: nn.Module, first: Tensor, second: Tensor, keys: Tensor, queue: Tensor) -> Callable[[Tensor], Tensor]:
    """What an attack climbs, of its queries: away from the clean query, towards another digit's, or up the training loss itself."""
    with torch.no_grad():
        clean, targets = query(first), query(second).roll(1, dims=0)
    return {
        "away": lambda queries: torch.linalg.vector_norm(queries - clean, dim=1),
        "target": lambda queries: -torch.linalg.vector_norm(queries - targets, dim=1),
        "loss": lambda queries: contrastive_loss(queries, keys, queue),
    }[variant]


def _attack(
    objective: Callable[[Tensor], Tensor],
    network: nn.Module,
    inputs: Tensor,
    rng: torch.Generator,
    *,
    epsilon: float = EPSILON,
    step: float = STEP,
    steps: int = STEPS,
) -> Tensor:
    """Climb the objective by signs of its gradient in the pixels, from a random start inside the l-infinity ball and the bounds.

    inputs: [batch, 1, 16, 16] -> same shape
    """
    low, high = (inputs - epsilon).clamp(min=0), (inputs + epsilon).clamp(max=1)
    moved = torch.lerp(low, high, torch.rand(inputs.shape, generator=rng))
    for _ in range(steps):
        moved.requires_grad_()
        (slope,) = torch.autograd.grad(objective(network(moved)).sum(), moved)
        moved = (moved.detach() + step * slope.sign()).clamp(low, high)
    return moved


def universal_quantile_on_train(network: DigitNetwork, inputs: Tensor, *, seed: int, attacked: int = 500) -> float:
    """Median share of pairs of training digits that are at most as far apart as U-PGD moves a training digit: what chooses the variant.

    inputs: [n, 1, 16, 16] -> in [0, 1]
    """
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        bank = network(inputs)
    clean = bank[:attacked]
    moved = _attack(
        lambda representations: torch.linalg.vector_norm(representations - clean, dim=1),
        network, inputs[:attacked], rng, step=2.5 * EPSILON / 20, steps=20,
    )  # fmt: skip
    with torch.no_grad():
        distances = torch.linalg.vector_norm(network(moved) - clean, dim=1)
    pairs = torch.pdist(bank).sort().values
    return (torch.searchsorted(pairs, distances, right=True) / len(pairs)).median().item()


# ── views ──


def augment(inputs: Tensor, rng: torch.Generator) -> Tensor:
    """A random view of each digit: turned, scaled, sheared and shifted, its contrast changed, a square of it erased.

    inputs: [batch, 1, height, width] in [0, 1] -> same shape
    """
    batch = len(inputs)
    angle, scale, shear = _draw(rng, batch, -0.25, 0.25), _draw(rng, batch, 0.85, 1.15), _draw(rng, batch, -0.15, 0.15)
    across, down = _draw(rng, batch, -0.1, 0.1), _draw(rng, batch, -0.1, 0.1)
    cos, sin = angle.cos() / scale, angle.sin() / scale
    maps = torch.stack([cos, shear - sin, across, sin, cos, down], dim=1).view(batch, 2, 3)
    views = grid_sample(inputs, affine_grid(maps, list(inputs.shape), align_corners=False), align_corners=False)
    views = (views * _draw(rng, batch, 0.6, 1.4).view(-1, 1, 1, 1)).clamp(0, 1)

    height, width = inputs.shape[2:]
    row, column, side = _draw(rng, batch, 0, height), _draw(rng, batch, 0, width), _draw(rng, batch, 2, 6)
    in_rows = (torch.arange(height) + 0.5 - row.view(-1, 1)).abs() < side.view(-1, 1) / 2
    in_columns = (torch.arange(width) + 0.5 - column.view(-1, 1)).abs() < side.view(-1, 1) / 2
    erased = in_rows.view(batch, 1, height, 1) & in_columns.view(batch, 1, 1, width)
    return views.masked_fill(erased, 0)


def _draw(rng: torch.Generator, batch: int, low: float, high: float) -> Tensor:
    return low + (high - low) * torch.rand(batch, generator=rng)


# ── files ──


def save(network: DigitNetwork, path: Path, **note: object) -> None:
    """Write float16 weights, with what made them in the file's metadata: one entry, as the order of several is not fixed."""
    weights = {key: tensor.detach().to(torch.float16).contiguous() for key, tensor in network.state_dict().items()}
    versions = {module.__name__: module.__version__ for module in (torch, numpy, sklearn, safetensors)}
    made = {**note, "split": "train: 1,297 digits, rt_samples.digits.split_rows", "threads": 1, "versions": versions}
    path.write_bytes(safetensors.torch.save(weights, metadata={"made": json.dumps(made)}))
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def timed(what: str, work: Callable[[], object]):
    start, cpu = time.perf_counter(), time.process_time()
    made = work()
    print(f"{what}: {time.perf_counter() - start:.1f} s ({time.process_time() - cpu:.1f} s CPU)")
    return made


if __name__ == "__main__":
    main()
