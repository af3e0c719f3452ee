"""What rt-art provides."""

from rt_core import AttackEntry, hookimpl


@hookimpl
def rt_attacks():
    return [
        AttackEntry(
            name="art",
            summary="an evasion attack of the Adversarial Robustness Toolbox on the divergence, by its class name",
            factory="rt_art.bridge:ARTAttack",
        )
    ]
