"""What goes into each private environment: versions, and the SHA-256 of the wheels accepted.

Where a package has several wheels they are those of CPython 3.10 and 3.11 on x86_64 Linux, in this
order; flatbuffers is the same everywhere.
"""

from __future__ import annotations

from edgefuse.devices.setup.venv import Environment, Pin

_NUMPY = Pin(
    "numpy",
    "2.2.6",
    (
        "fc7b73d02efb0e18c000e9ad8b83480dfcd5dfd11065997ed4c6747470ae8915",
        "ba10f8411898fc418a521833e014a77d3ca01c15b0c6cdcce6a0d2897e6dbbdf",
    ),
)
_FLATBUFFERS = Pin(
    "flatbuffers",
    "25.12.19",
    ("7634f50c427838bb021c2d66a3d1168e9d199b0607e6329399f04846d42e20b4",),
)
_PYYAML = Pin(
    "pyyaml",
    "6.0.3",
    (
        "9c7708761fccb9397fe64bbc0395abcae8c4bf7b0eac081e12b809bf47700d0b",
        "b8bb0864c5a28024fac8a632c443c87c5aa6f215c0b126c449ae1a150412f31d",
    ),
)
_TFLITE_MICRO = Pin(
    "tflite-micro",
    "0.dev20261023182759",
    (
        "138594a4a07b3bd0dfe0ed196018177dbb1421eb5ceddaf2c5279601bd00baac",
        "15de433ac849d6bc09b314ce455347af480ebdb6335d8680e4fb8c3fd2b59af2",
    ),
)
_VELA = Pin(
    "ethos-u-vela",
    "5.2.0",
    (
        "34f52bd9d9722dc8b4980bbc2ad4ce4b4009c7e879a66c02c82d085e5a85b109",
        "a12db89e014ad0d19f1a5156ec1ba45e0d0f30d3428f4ca8abea88e3d64a0ad2",
    ),
)

TFLITE_MICRO = Environment(
    "tflite-micro", (_TFLITE_MICRO, _NUMPY, _FLATBUFFERS, _PYYAML), ("tflite_micro",)
)
VELA = Environment("ethos-u-vela", (_VELA, _NUMPY, _FLATBUFFERS), ("ethosu.vela.vela",))
