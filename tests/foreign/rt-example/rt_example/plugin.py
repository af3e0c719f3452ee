"""What rt-example provides."""

from rt_core import AttackEntry, EncoderEntry, MetricEntry, hookimpl


@hookimpl
def rt_attacks():
    yield AttackEntry(name="shade", summary="brighten or darken the whole input", factory="rt_example.attack:Shade")


@hookimpl
def rt_metrics():
    yield MetricEntry(
        name="relative_shift", summary="distance moved, in lengths of the clean one", factory="rt_example.metric:RelativeShift"
    )


@hookimpl
def rt_encoders():
    yield EncoderEntry(name="thumbnail", summary="the image itself, averaged down to a few pixels", factory="rt_example.encoder:thumbnail")
