"""What ``rt demo`` runs: small encoders of real digits, an encoder with ImageNet weights on real photographs, and certificates."""

import warnings
from collections.abc import Mapping
from typing import Any

from rt_core.errors import PlanError, RobustnessWarning, UnknownName
from rt_core.evaluation import Evaluation
from rt_core.execution import run
from rt_core.registry import Use, installed, use
from rt_core.results import Results

__all__ = ["certificates", "certificates_plan", "digits", "digits_plan", "photos", "photos_plan"]

_EPSILON, _STEPS = 0.1, 20
_STEP = 2.5 * _EPSILON / _STEPS

_ENCODERS = ("digits_contrastive", "digits_robust", "digits_supervised", "digits_untrained")
_ATTACKS = {
    "noise": use("uniform_noise", epsilon=_EPSILON),
    "u-pgd": use("u_pgd", epsilon=_EPSILON, step=_STEP, steps=_STEPS),
    "torchattacks PGD": use("torchattacks", attack="PGD", eps=_EPSILON, alpha=_STEP, steps=_STEPS),
    "ART PGD": use("art", attack="ProjectedGradientDescentPyTorch", eps=_EPSILON, eps_step=_STEP, max_iter=_STEPS, num_random_init=1),
}
_METRICS = (
    "knn_accuracy",
    "divergence",
    "universal_quantile",
    "cosine_similarity",
    "breakaway_risk",
    "nearest_neighbor_accuracy",
    "target_divergence",
    "relative_quantile",
    "target_cosine_similarity",
    "overlap_risk",
    "adversarial_margin",
)

_CERTIFIED, _CENTER, _DRAWS = 16, 5_000, 5_000
_NOISE = {"sigma": 0.25, "certify_draws": _DRAWS}
_LITTLE_NOISE = _NOISE | {"sigma": 0.05}  # more, and hardly any copy stays nearest to its own sample
_CENTERED = _NOISE | {"input_radius": 0.125, "center_draws": _CENTER}
_REDUCED = (
    f"{_CERTIFIED} samples an encoder; {_CENTER:,} draws for a center (10,000 by default) and {_DRAWS:,} to certify (100,000). Noise of sigma "
    f"{_NOISE['sigma']}, for the nearest neighbor {_LITTLE_NOISE['sigma']}; center certificates for input l2 radius {_CENTERED['input_radius']}"
)
_CERTIFICATES = {
    "knn_accuracy": use("knn_accuracy"),
    "certified_radius": use("certified_radius", **_NOISE),
    "certified_neighbor_radius": use("certified_neighbor_radius", **_LITTLE_NOISE),
    "certified_quantile": use("certified_quantile", **_CENTERED),
    "certified_breakaway": use("certified_breakaway", **_CENTERED),
}
_CURVES = {
    "certified_radius": ((0.0, 0.125, 0.25, 0.375, 0.5), "Certified accuracy of the noise probe, by input l2 radius"),
    "certified_neighbor_radius": ((0.0, 0.025, 0.05, 0.1), "Certified to stay its own nearest neighbor, by input l2 radius"),
    "certified_quantile": ((0.1, 0.25, 0.5, 0.75, 0.9), "Not certified to stay below a universal quantile, by quantile"),
}


def digits(*, store: str | None = None) -> tuple[Results, str]:
    """Attack and measure four small encoders of real digits: the main job, in under two minutes."""
    plan = digits_plan()
    return _compared(plan, run(plan, store=store))


def photos(*, store: str | None = None) -> tuple[Results, str]:
    """Attack and measure real ImageNet features on crops of photographs, beside their untrained twin, in a few minutes."""
    plan = photos_plan()
    return _compared(plan, run(plan, store=store))


def certificates(*, store: str | None = None) -> tuple[Results, str]:
    """Certify three encoders of digits under Gaussian noise, at reduced draws, in under two minutes."""
    import torch

    plan, threads = certificates_plan(), torch.get_num_threads()
    torch.set_num_threads(1)  # networks this small leave further threads waiting
    try:
        results = run(plan, store=store)
    finally:
        torch.set_num_threads(threads)
    said = [f"Reduced: {_REDUCED}. Fewer draws certify less on average; the risk of certifying too much stays as stated."]
    for metric, (thresholds, heading) in _CURVES.items():
        if metric in plan.metrics:
            curve = results.certified_curve(metric, thresholds)
            cells = curve.apply(lambda row: f"{row['estimate']:.2f} [{row['low']:.2f}, {row['high']:.2f}]", axis=1)
            table = curve.assign(cell=cells, abstained=curve["abstained"] / curve["n"]).pivot(
                index=["encoder", "abstained"], columns="threshold", values="cell"
            )
            said.append(f"{heading} [a band for the whole line, {0.95:.0%}]\n{table.to_string()}")
    return results, "\n\n".join(said)


def digits_plan() -> Evaluation:
    """Return the plan of the first demo, without attacks and metrics whose plugins are not installed, which are warned about.

    The digits stand with those first that no encoder was trained on, so the attacked ones are unseen; the bank is all of them, ten times
    as many.

    Raises:
        PlanError: the samples themselves (plugin rt-samples) are not installed.
    """
    return _of_digits(
        _ENCODERS,
        attacks=_there("attack", _ATTACKS),
        metrics=[*_there("metric", {metric: use(metric) for metric in _METRICS})],
        attacked=176,
    )


def certificates_plan() -> Evaluation:
    """Return the plan of the certificates, without metrics whose plugins are not installed, which are warned about.

    The noise probe learns from the digits that the encoders were trained on; those that are certified are unseen.

    Raises:
        PlanError: the samples themselves (plugin rt-samples) are not installed.
    """
    return _of_digits(
        _ENCODERS[:3], attacks={}, metrics=_there("metric", _CERTIFICATES), attacked=_CERTIFIED, train=use("digits", split="train")
    )


def _of_digits(encoders: tuple[str, ...], **parts: Any) -> Evaluation:
    if not _there("dataset", {"digits": use("digits")}):
        raise PlanError(
            "the demo's digits and encoders come with the plugin rt-samples, which is not installed: pip install ./plugins/samples"
        )
    return Evaluation(encoders=[use(name) for name in encoders], dataset=use("digits"), bank=1797, pairing="given", **parts)


def photos_plan() -> Evaluation:
    """Return the plan with real ImageNet features: crops of eight photographs, which do not overlap, and the untrained twin.

    Intervals resample photographs, and eight are few: the numbers describe these pictures.

    Raises:
        UnknownName: the samples (plugin rt-samples) or an attack's or metric's plugin are not installed.
    """
    return Evaluation(
        encoders=[use("efficientnet_lite0"), use("efficientnet_lite0_untrained")],
        dataset=use("photos", size=64, stride=64),
        attacks={"noise": use("uniform_noise", epsilon=0.01), "u-pgd": use("u_pgd", epsilon=0.01, steps=10)},
        metrics=[metric for metric in _METRICS if metric != "knn_accuracy"],
        attacked=40,
        bank=409,
    )


def _compared(plan: Evaluation, results: Results) -> tuple[Results, str]:
    first, second, *_ = plan.encoders
    return results, results.comparison(first, second, attack="u-pgd")


def _there(kind: Any, wanted: Mapping[str, Use]) -> dict[str, Use]:
    """Return what is installed of these; the others are warned about."""
    found = {}
    for label, one in wanted.items():
        try:
            installed().find(kind, one.name)
            found[label] = one
        except UnknownName:
            warnings.warn(f"{one.name} is left out, since its plugin is not installed", RobustnessWarning, stacklevel=4)
    return found
