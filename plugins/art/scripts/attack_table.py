"""Run every evasion attack of ART on a small trained encoder and write the table of docs/plugins/art.md; about ten minutes on one core.

python plugins/art/scripts/attack_table.py [--write] [NAME …]
"""

import sys
import time
from pathlib import Path

import torch

import rt_core
from rt_art import ARTAttack
from rt_art.library import evasions
from rt_art.table import REFUSED, SERVED

PAGE = Path(__file__).parents[3] / "docs" / "plugins" / "art.md"
OPEN, CLOSE = "<!-- table -->", "<!-- end of table -->"
EPSILON, SAMPLES, QUANTILE = 0.1, 4, 0.05

_STEPS = {"eps": EPSILON, "eps_step": 0.02, "max_iter": 20}
_AUTO = {"eps": EPSILON, "eps_step": 2 * EPSILON, "max_iter": 20}
_CONJUGATE = {**_AUTO, "eps_step": 0.5}  # in units of the gradient, see rt_art.table
SETTINGS = {
    "FastGradientMethod": {"eps": EPSILON},
    **dict.fromkeys(("BasicIterativeMethod", "MomentumIterativeMethod", "ProjectedGradientDescent"), _STEPS),
    **dict.fromkeys(("ProjectedGradientDescentNumpy", "ProjectedGradientDescentPyTorch"), _STEPS),
    "AutoProjectedGradientDescent": _AUTO,
    **dict.fromkeys(("AutoConjugateGradient", "RescalingAutoConjugateGradient"), _CONJUGATE),
    "SquareAttack": {"eps": EPSILON, "max_iter": 300},
    "AutoAttack": {"eps": EPSILON},
    "ShadowAttack": {"nb_steps": 50, "batch_size": 16, "learning_rate": 0.01},
    "FeatureAdversariesPyTorch": {"delta": EPSILON, "step_size": 0.02, "max_iter": 20},
    "DeepFool": {},
    "NewtonFool": {},
    "CarliniL2Method": {"initial_const": 1.0, "binary_search_steps": 5},
    "CarliniLInfMethod": {"initial_const": 10.0, "learning_rate": 0.1, "max_iter": 30},
    "CarliniL0Method": {"initial_const": 1.0, "binary_search_steps": 3},
    "ElasticNet": {"initial_const": 1.0, "binary_search_steps": 3, "max_iter": 40},
    "ZooAttack": {"use_resize": False, "use_importance": False, "initial_const": 10.0, "max_iter": 40},
    "SaliencyMapMethod": {},
    "SimBA": {"max_iter": 300},
    "PixelAttack": {"th": 40, "max_iter": 10},
    "ThresholdAttack": {"th": 60, "es": 1, "max_iter": 5},
    "BoundaryAttack": {"max_iter": 150},
    "HopSkipJump": {"max_iter": 20, "max_eval": 500},
    "SignOPTAttack": {"max_iter": 10, "k": 30, "num_trial": 20},
    "GeoDA": {"sub_dim": 8, "max_iter": 1000},
    "SpatialTransformation": {"max_translation": 20, "num_translations": 3, "max_rotation": 30, "num_rotations": 5},
    "VirtualAdversarialMethod": {"eps": 1.0, "max_iter": 2, "finite_diff": 1e-3},
    "Wasserstein": {"max_iter": 8, "regularization": 300.0, "eps": 1.0, "eps_step": 0.3},
    "UniversalPerturbation": {"eps": EPSILON, "max_iter": 5},
    "TargetedUniversalPerturbation": {"eps": EPSILON, "max_iter": 5},
}
"""Options of each class that is served."""

_BRIEF = {"max_iter": 4, "eps": EPSILON, "eps_step": 0.05}
FAST = {
    **{name: {**_BRIEF, "eps_step": options["eps_step"]} for name, options in SETTINGS.items() if "eps_step" in options},
    "SquareAttack": {"eps": EPSILON, "max_iter": 20},
    "AutoAttack": {"eps": EPSILON},
    "ShadowAttack": {"nb_steps": 3, "batch_size": 4, "learning_rate": 0.01},
    "DeepFool": {"max_iter": 20},
    "NewtonFool": {"eta": 0.05, "max_iter": 20},
    "CarliniL2Method": {"initial_const": 10.0, "binary_search_steps": 2},
    "CarliniLInfMethod": {"initial_const": 10.0, "learning_rate": 0.1, "max_iter": 30, "decrease_factor": 0.5},
    "CarliniL0Method": {"initial_const": 10.0, "binary_search_steps": 2, "max_iter": 3},
    "ElasticNet": {"initial_const": 10.0, "binary_search_steps": 2, "max_iter": 10},
    "ZooAttack": {"use_resize": False, "use_importance": False, "max_iter": 5, "nb_parallel": 16},
    "SimBA": {"max_iter": 60},
    "PixelAttack": {"th": 10, "max_iter": 2},
    "ThresholdAttack": {"th": 60, "es": 1, "max_iter": 1},
    "BoundaryAttack": {"max_iter": 10},
    "HopSkipJump": {"max_iter": 3, "max_eval": 100, "init_eval": 10},
    "SignOPTAttack": {"max_iter": 2, "k": 10, "num_trial": 5},
    "GeoDA": {"sub_dim": 5, "max_iter": 500},
    "SpatialTransformation": {"max_translation": 20, "num_translations": 2, "max_rotation": 30, "num_rotations": 2},
    "VirtualAdversarialMethod": {"eps": 1.0, "max_iter": 1, "finite_diff": 1e-3},
    "Wasserstein": {"max_iter": 4, "regularization": 300.0, "eps": 3.0, "eps_step": 1.0},
    "UniversalPerturbation": {"eps": EPSILON, "max_iter": 1, "attacker_params": {"max_iter": 5}},
    "TargetedUniversalPerturbation": {"eps": EPSILON, "max_iter": 1},
}
"""Options with which a class runs in a second or so; those of SETTINGS where a class is not here."""

SLOW = {("SignOPTAttack", "target")}
"""What takes minutes at any settings, so that this script alone runs it: (class, aim)."""


def problem(samples: int = SAMPLES) -> tuple[rt_core.Encoder, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return an encoder, inputs, as many targets of other digits, and inputs for the bank."""
    digits = rt_core.dataset("digits")
    labels = digits.labels(range(len(digits)))
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0)).tolist()
    first = order[:samples]
    second = [next(row for row in order[100 * place + 100 :] if labels[row] != labels[one]) for place, one in enumerate(first)]
    return rt_core.encoder("digits_contrastive"), digits.inputs(first), digits.inputs(second), digits.inputs(order[1200:1500])


def attack_of(name: str, options: dict) -> ARTAttack:
    """Return the attack of that class, with the table's quantile where it looks for a threshold."""
    search = SERVED[name].modes[0] == "threshold"
    return ARTAttack(name, **({"quantile": QUANTILE} if search else {}), **options)


def run(name: str) -> dict[str, str]:
    """Run one class of ART in its default mode and return its row of the table."""
    if name in REFUSED:
        return {"class": name, "runs": f"no: {REFUSED[name]}"}
    served = SERVED[name]
    try:
        attack = attack_of(name, SETTINGS[name])
    except ImportError as error:
        return {"class": name, "runs": f"with {', '.join(served.needs)}", **known(name), "why": str(error)}
    encoder, inputs, targets, bank = problem()
    reached, seconds = {}, 0.0
    for aim in attack.aims:
        begun = time.process_time()
        given = {"targets": targets if aim == "target" else None}
        trace = rt_core.perturb(attack, encoder, inputs, bank=bank, **given)
        seconds += time.process_time() - begun
        reached[aim] = _told(attack, trace, encoder, inputs, given)
    return {
        "class": name,
        "runs": f"with {', '.join(served.needs)}" if served.needs else "yes",
        **known(name),
        **reached,
        "seconds": f"{seconds:.1f}",
    }


def known(name: str) -> dict[str, str]:
    """Return what is known of a class without running it."""
    served = SERVED[name]
    single = served.alone or served.modes[0] == "threshold" or (served.modes[0] == "unit" and not served.whole)
    return {"modes": ", ".join(served.modes), "rows": "one at a time" if single else "batch"}


def _told(attack: ARTAttack, trace, encoder, inputs, given) -> str:
    """Say how far an attack came: of searches how many samples and what move, of others the divergence as a share of U-PGD's."""
    if "reached" in trace.notes:
        there = trace.notes["reached"] == 1
        moved = f" by l2 {trace.notes['magnitude_l2'][there].median():.2f}" if there.any() else ""
        return f"{int(there.sum())} of {len(there)} reach it{moved}"
    theirs = trace.divergence.median()
    if attack.ball is None:
        return f"d {theirs:.2f}, no ball"
    from rt_unsupervised_attacks import UPGD

    ours = rt_core.perturb(UPGD(epsilon=EPSILON, step=0.02, steps=20), encoder, inputs, **given)
    return f"{theirs / ours.divergence.median():.2f} of U-PGD's d"


COLUMNS = {
    "class": "class of ART",
    "runs": "runs",
    "modes": "modes, the default first",
    "rows": "rows",
    "away": "away",
    "target": "target",
    "seconds": "seconds",
}


def table(rows: list[dict[str, str]]) -> str:
    """Return the served classes as a table, and under it the others with their reasons."""
    served = [row for row in rows if row["class"] in SERVED]
    lines = ["| " + " | ".join(COLUMNS.values()) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(f"`{row[key]}`" if key == "class" else row.get(key, "–") for key in COLUMNS) + " |" for row in served]
    lines += ["", "| not served | why |", "|---|---|"]
    lines += [f"| `{row['class']}` | {row['runs'].removeprefix('no: ')} |" for row in rows if row["class"] not in SERVED]
    return "\n".join(lines)


def write(text: str) -> None:
    """Put the table into the page, between its markers."""
    page = PAGE.read_text()
    before, rest = page.split(OPEN)
    _, after = rest.split(CLOSE)
    PAGE.write_text(f"{before}{OPEN}\n{text}\n{CLOSE}{after}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = [one for one in sys.argv[1:] if not one.startswith("-")]
    rows = []
    for name in wanted or [*SERVED, *sorted(set(evasions()) - set(SERVED))]:
        rows.append(run(name))
        print(rows[-1], flush=True)
    if "--write" in sys.argv:
        write(table(rows))
