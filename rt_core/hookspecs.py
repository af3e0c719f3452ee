"""The five questions that rt asks every plugin; each docstring is the manual of its hook."""

from collections.abc import Iterable

import pluggy

from rt_core.entries import AttackEntry, DatasetEntry, DemoEntry, EncoderEntry, MetricEntry

__all__ = ["PROJECT", "hookimpl", "hookspec", "rt_attacks", "rt_datasets", "rt_demos", "rt_encoders", "rt_metrics"]

PROJECT = "rt"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def rt_attacks() -> Iterable[AttackEntry]:
    """Return the attacks this plugin provides.

    ``factory(**options)`` gives an attack, ``attack(encoder, batch, divergence, *, random) -> inputs``; a frozen dataclass with a
    ``__call__`` is both. Called once, when the registry is first needed: return quickly and import nothing heavy. ``factory`` is a
    string, ``"package.module:name"``, imported when someone asks for the attack.

    Example:
        import rt_core

        @rt_core.hookimpl
        def rt_attacks():
            yield rt_core.AttackEntry(
                name="uniform_noise",
                summary="uniform noise inside an l-infinity ball",
                factory="rt_noise.attack:UniformNoise",
            )
    """
    return ()


@hookspec
def rt_metrics() -> Iterable[MetricEntry]:
    """Return the metrics this plugin provides.

    ``factory(**options)`` gives a metric, ``metric(trace, bank, context) -> [rows]``, whose class attributes ``aim``, ``better``,
    ``statistic``, ``per`` and ``span`` say how its numbers are read: see ``rt_core.traces.Metric``, and docs/first-plugin.md for a
    complete one. Called once, when the registry is first needed: return quickly and import nothing heavy. ``factory`` is a string,
    ``"package.module:name"``, imported when someone asks for the metric.

    Example:
        import rt_core

        @rt_core.hookimpl
        def rt_metrics():
            yield rt_core.MetricEntry(
                name="shift",
                summary="divergence between the clean and the adversarial representation",
                factory="rt_shift.metric:Shift",
            )
    """
    return ()


@hookspec
def rt_encoders() -> Iterable[EncoderEntry]:
    """Return the encoders this plugin provides.

    ``factory(**options)`` returns an ``rt_core.Encoder``: a function that builds the network and wraps it. Called once, when the
    registry is first needed: return quickly and import nothing heavy. ``factory`` is a string, ``"package.module:name"``, imported
    when someone asks for the encoder.

    Example:
        import rt_core

        @rt_core.hookimpl
        def rt_encoders():
            yield rt_core.EncoderEntry(
                name="thumbnail",
                summary="the image itself, averaged down to a few pixels",
                factory="rt_thumbnail.encoder:thumbnail",
            )
    """
    return ()


@hookspec
def rt_datasets() -> Iterable[DatasetEntry]:
    """Return the datasets this plugin provides.

    ``factory(**options)`` returns what ``rt_core.Evaluation`` takes as a dataset: a tensor, a torch dataset, or samples with ids of
    their own. Called once, when the registry is first needed: return quickly and import nothing heavy. ``factory`` is a string,
    ``"package.module:name"``, imported when someone asks for the dataset.

    Example:
        import rt_core

        @rt_core.hookimpl
        def rt_datasets():
            yield rt_core.DatasetEntry(
                name="letters",
                summary="1,000 scanned letters, 32 pixels a side",
                factory="rt_letters.data:letters",
            )
    """
    return ()


@hookspec
def rt_demos() -> Iterable[DemoEntry]:
    """Return the demos this plugin provides, which ``rt demo NAME`` runs: they need no download and take a few minutes at most.

    ``factory(store=…)`` runs one, in a folder where it may go on later, and returns ``rt_core.Results`` and a text that is shown below
    their table. Called once, when the registry is first needed: return quickly and import nothing heavy. ``factory`` is a string,
    ``"package.module:name"``, imported when someone asks for the demo.

    Example:
        import rt_core

        @rt_core.hookimpl
        def rt_demos():
            yield rt_core.DemoEntry(
                name="letters",
                summary="how robust is an encoder of scanned letters?",
                factory="rt_letters.demo:letters",
            )
    """
    return ()
