"""Measure the paper's finding in miniature: `python scripts/digits_finding.py --seeds 0 1 2`, about ten minutes on one core a seed.

For each seed a generator and classifiers are trained anew, as in `train_digits_generator.py`, and each layer is perturbed by itself. Printed
is by which factor each classifier needs larger perturbations than the standard one, paired by item, with 95 % intervals over items:

- `radius 0.5`: the robust one that is shipped, as accurate on test digits as the standard one;
- `radius 1`: more robust at the pixels, less accurate;
- `short`: the standard one after 6 epochs instead of 40, a control that is less accurate without any attack in training. 6 was chosen as
  the number that comes near `radius 1` on the test digits with seed 0; other seeds come out nearer or further.
"""

import argparse

import pandas
import torch
from train_digits_generator import CLASSIFIER, autoencode, classify, read, share

import rt_core
from rt_generator_perturbations import Generator, classifier, granularity_curve, ratios
from rt_generator_perturbations.network import CLASSES, LATENT

CLASSIFIERS = {"standard": (0.0, 40), "radius 0.5": (0.5, 40), "radius 1": (1.0, 40), "short": (0.0, 6)}  # radius, epochs
LAYERS = ("start", "block4", "block8", "block16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of training, and of the items (default 0)")
    parser.add_argument("--items", type=int, default=120, help="images a seed (default 120)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    train, test = (read(rt_core.dataset("digits", split=split)) for split in ("train", "test"))
    for seed in arguments.seeds:
        victims = {}
        for name, (radius, epochs) in CLASSIFIERS.items():
            CLASSIFIER["epochs"] = epochs
            network = rounded(classify(*train, radius=radius, seed=seed))
            print(f"seed {seed}, {name}: right on {share(network(test[0]).argmax(dim=1) == test[1])} of test digits", flush=True)
            victims[name] = classifier(network, name=name)
        decoder = rounded(autoencode(*train, seed=seed))
        generator = Generator(decoder, layers=LAYERS, latent=(LATENT,), classes=CLASSES, values=(0.0, 1.0))
        groups = {layer: [layer] for layer in generator.layers}
        results = granularity_curve(generator, victims, groups=groups, items=arguments.items, seed=seed, pictures=0, progress=False)
        found = {name: ratios(results, name, "standard").set_index("attack") for name in victims if name != "standard"}
        table = {
            name: [f"{row.ratio:.2f} [{row.low:.2f}, {row.high:.2f}] n {row.n}" for row in table.itertuples()]
            for name, table in found.items()
        }
        print(pandas.DataFrame(table, index=list(groups)).to_string(), flush=True)


def rounded(network: torch.nn.Module) -> torch.nn.Module:
    """Return the network with weights as they are stored, in float16."""
    network.load_state_dict({key: tensor.half().float() for key, tensor in network.state_dict().items()})
    return network


if __name__ == "__main__":
    main()
