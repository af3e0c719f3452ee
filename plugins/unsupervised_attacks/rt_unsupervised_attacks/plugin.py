"""What rt-unsupervised-attacks provides."""

from rt_core import AttackEntry, MetricEntry, hookimpl

_HERE = "rt_unsupervised_attacks"


@hookimpl
def rt_attacks():
    return [
        AttackEntry(name="u_fgsm", summary="one step of epsilon up the divergence", factory=f"{_HERE}.gradient:UFGSM"),
        AttackEntry(
            name="u_bim", summary="projected gradient steps on the divergence, from beside the input", factory=f"{_HERE}.gradient:UBIM"
        ),
        AttackEntry(
            name="u_pgd", summary="projected gradient steps on the divergence, from a random start", factory=f"{_HERE}.gradient:UPGD"
        ),
        AttackEntry(name="u_mi_pgd", summary="u_pgd with a momentum gradient", factory=f"{_HERE}.gradient:UMIPGD"),
        AttackEntry(
            name="u_apgd", summary="gradient steps whose size follows what they gain, with momentum", factory=f"{_HERE}.apgd:UAPGD"
        ),
        AttackEntry(
            name="margin_apgd",
            summary="u_apgd on the breakaway itself: nearer to another than to its own",
            factory=f"{_HERE}.apgd:MarginAPGD",
        ),
        AttackEntry(
            name="nearest_apgd", summary="u_apgd past the border to each of the nearest others", factory=f"{_HERE}.apgd:NearestAPGD"
        ),
        AttackEntry(name="u_square", summary="random search on the divergence, without gradients", factory=f"{_HERE}.square:USquare"),
        AttackEntry(
            name="ensemble", summary="parameter-free: the worst of several attacks, per measure", factory=f"{_HERE}.suites:ensemble"
        ),
        AttackEntry(
            name="universal",
            summary="one perturbation for all samples, fitted on train",
            factory=f"{_HERE}.universal:UniversalPerturbation",
        ),
        AttackEntry(name="l_fgsm", summary="one step of epsilon up a loss of one's own", factory=f"{_HERE}.loss_based:LFGSM"),
        AttackEntry(name="l_bim", summary="projected gradient steps up a loss, from beside the input", factory=f"{_HERE}.loss_based:LBIM"),
        AttackEntry(name="l_pgd", summary="projected gradient steps up a loss, from a random start", factory=f"{_HERE}.loss_based:LPGD"),
        AttackEntry(name="batch_l_fgsm", summary="l_fgsm on a loss of the whole batch", factory=f"{_HERE}.loss_based:BatchLFGSM"),
        AttackEntry(name="batch_l_bim", summary="l_bim on a loss of the whole batch", factory=f"{_HERE}.loss_based:BatchLBIM"),
        AttackEntry(name="batch_l_pgd", summary="l_pgd on a loss of the whole batch", factory=f"{_HERE}.loss_based:BatchLPGD"),
    ]


@hookimpl
def rt_metrics():
    return [
        MetricEntry(
            name="breakaway_radius", summary="smallest change with which another sample is nearer", factory=f"{_HERE}.radii:BreakawayRadius"
        ),
        MetricEntry(
            name="quantile_radius", summary="smallest change that reaches a universal quantile", factory=f"{_HERE}.radii:QuantileRadius"
        ),
    ]
