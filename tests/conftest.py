"""What all tests share."""

import sys
from pathlib import Path

import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "golden"))  # for recipe and reference

# Tensors here are small: a second thread costs more than it brings, and the suite runs beside others.
torch.set_num_threads(1)
# torch's first call of a kind is slow.
settings.register_profile("rt", deadline=None, max_examples=60)
settings.load_profile("rt")
