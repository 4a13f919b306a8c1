"""A network turned by 180 degrees says so itself, in the metadata of its .tflite file.

Problem: fed with upright pictures it runs, and answers wrongly. So the names of the inputs that
have to be given turned (rows and columns reversed) lie in the file, as a metadata entry
``edgefuse.turned_inputs``: a JSON list. :mod:`edgefuse.tflite.read` gives them to the signature,
and everything here that feeds a model obeys it. The tensors' names stay.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from edgefuse.tflite.read import TURNED_INPUTS, parse_model


def say_turned(data: bytes, tensors: Sequence[str]) -> bytes:
    """The same file with the metadata entry, for inputs by their tensors' names."""
    from edgefuse.tflite.edit import Edit

    model, edit = parse_model(data), Edit(data)
    names = [n for n, index in model.signature_inputs if model.tensors[index].name in tensors]
    assert len(names) == len(tensors), f"{tensors} are not all inputs of the signature"
    edit.note(TURNED_INPUTS, json.dumps(sorted(names)).encode())
    return edit.packed()
