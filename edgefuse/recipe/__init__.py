"""What a recipe says: frozen models that forbid unknown keys, one class a section.

files.py      files by content, or on this machine       fusion.py     fuse, contract
model.py      model                                      quantize.py   quantize
samples.py    preprocess, data                           memory.py     memory
shapes.py     shapes                                     cuda.py       cuda
gates.py      gates                                      whole.py      the rest, and the whole
"""

from edgefuse.recipe.files import Blob, LocalFile
from edgefuse.recipe.gates import AccuracyGate, Gates, LatencyGate, MemoryGate
from edgefuse.recipe.model import Model, TensorShape, TorchModel
from edgefuse.recipe.samples import SAMPLE_ROLES, Crops, Preprocess, Samples, Split
from edgefuse.recipe.whole import Check, Recipe

__all__ = [
    "SAMPLE_ROLES",
    "AccuracyGate",
    "Blob",
    "Check",
    "Crops",
    "Gates",
    "LatencyGate",
    "LocalFile",
    "MemoryGate",
    "Model",
    "Preprocess",
    "Recipe",
    "Samples",
    "Split",
    "TensorShape",
    "TorchModel",
]
