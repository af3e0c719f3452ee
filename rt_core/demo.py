"""The plans of ``rt demo``: small encoders of real digits, or an encoder with ImageNet weights on real photographs."""

from typing import Any

from rt_core.errors import PlanError, UnknownName
from rt_core.evaluation import Evaluation
from rt_core.registry import Use, installed, use

__all__ = ["demo_plan", "photos_plan"]

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


def demo_plan() -> tuple[Evaluation, list[str]]:
    """Return the plan, and the names of attacks and metrics that are left out because their plugins are not installed.

    The digits stand with those first that no encoder was trained on, so the attacked ones are unseen; the bank is all of them, ten times
    as many.

    Raises:
        PlanError: the samples themselves (plugin rt-samples) are not installed.
    """
    left_out: list[str] = []
    if not _is_there("dataset", use("digits"), left_out):
        raise PlanError(
            "the demo's digits and encoders come with the plugin rt-samples, which is not installed: pip install ./plugins/samples"
        )
    plan = Evaluation(
        encoders=[use(name) for name in _ENCODERS],
        dataset=use("digits"),
        attacks={label: attack for label, attack in _ATTACKS.items() if _is_there("attack", attack, left_out)},
        metrics=[metric for metric in _METRICS if _is_there("metric", use(metric), left_out)],
        attacked=176,
        bank=1797,
        pairing="given",
    )
    return plan, left_out


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


def _is_there(kind: Any, wanted: Use, left_out: list[str]) -> bool:
    try:
        installed().find(kind, wanted.name)
    except UnknownName:
        left_out.append(wanted.name)
        return False
    return True
