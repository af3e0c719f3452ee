"""The encoder of rt-example."""

from torch import nn

from rt_core import Encoder


def thumbnail(*, size=4, name="thumbnail"):
    """Average an image down to ``size`` x ``size`` pixels: [batch, channel, height, width] -> [batch, channel * size * size]"""
    return Encoder(nn.Sequential(nn.AdaptiveAvgPool2d(size), nn.Flatten()), name=name)
