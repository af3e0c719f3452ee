"""What rt-torchattacks provides."""

from rt_core import AttackEntry, hookimpl


@hookimpl
def rt_attacks():
    return [
        AttackEntry(
            name="torchattacks",
            summary="an attack of torchattacks on the divergence, by its class name",
            factory="rt_torchattacks.bridge:Torchattack",
        )
    ]
