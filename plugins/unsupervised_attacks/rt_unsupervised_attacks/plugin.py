"""What rt-unsupervised-attacks provides."""

from rt_core import AttackEntry, hookimpl

_HERE = "rt_unsupervised_attacks.gradient"


@hookimpl
def rt_attacks():
    return [
        AttackEntry(name="u_fgsm", summary="one step of epsilon up the divergence", factory=f"{_HERE}:UFGSM"),
        AttackEntry(name="u_bim", summary="projected gradient steps on the divergence, from beside the input", factory=f"{_HERE}:UBIM"),
        AttackEntry(name="u_pgd", summary="projected gradient steps on the divergence, from a random start", factory=f"{_HERE}:UPGD"),
        AttackEntry(name="u_mi_pgd", summary="u_pgd with a momentum gradient", factory=f"{_HERE}:UMIPGD"),
    ]
