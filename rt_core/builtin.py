"""What rt-core itself provides, through the same hooks as everyone else."""

from rt_core.entries import AttackEntry, DatasetEntry, DemoEntry, EncoderEntry
from rt_core.hookspecs import hookimpl

__all__ = ["rt_attacks", "rt_datasets", "rt_demos", "rt_encoders"]


@hookimpl
def rt_attacks() -> list[AttackEntry]:
    return [
        AttackEntry(name="identity", summary="leave every input as it is", factory="rt_core.baselines:Identity"),
        AttackEntry(
            name="uniform_noise",
            summary="move every value in a random direction, by at most epsilon",
            factory="rt_core.baselines:UniformNoise",
        ),
    ]


@hookimpl
def rt_encoders() -> list[EncoderEntry]:
    return [
        EncoderEntry(
            name="module",
            summary="an importable network by its dotted path, 'package.module:name'",
            factory="rt_core.encoders:from_import",
        )
    ]


@hookimpl
def rt_datasets() -> list[DatasetEntry]:
    return [
        DatasetEntry(name="folder", summary="the images in a folder; ids are relative paths", factory="rt_core.datasets:folder"),
        DatasetEntry(name="tensor", summary="the inputs in a tensor file; ids are 0, 1, 2, …", factory="rt_core.datasets:tensor_file"),
    ]


@hookimpl
def rt_demos() -> list[DemoEntry]:
    return [
        DemoEntry(name="digits", summary="four small encoders of real digits, attacked and measured", factory="rt_core.demos:digits"),
        DemoEntry(name="photos", summary="ImageNet features on real photographs, and their untrained twin", factory="rt_core.demos:photos"),
        DemoEntry(
            name="certificates",
            summary="what can be certified of three encoders of digits: curves, with what was abstained",
            factory="rt_core.demos:certificates",
        ),
    ]
