"""From a picture file to the model's input: decoding, crop box and the preprocessing contract.

``preprocess`` is the only implementation of :class:`edgefuse.recipe.Preprocess`::

    x = (pixels / (1 / scale) - mean) / std        float32, channels in the contract's order

The division (not a multiplication by ``scale``) makes 1/255 the same float32 numbers as dividing
by 255, which is what training code and the referees do.
"""

from __future__ import annotations

import random
import re
import warnings
from typing import IO, TYPE_CHECKING, Any

from edgefuse.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image

    from edgefuse.recipe import Crops, Preprocess

    Float32 = npt.NDArray[np.float32]

Box = tuple[int, int, int, int]

SUFFIXES = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")
)


def decode(file: IO[bytes], name: str, where: str) -> Image:
    """The first frame of a picture as 8-bit RGB.

    The EXIF orientation is not applied: the pixels are taken as they are stored, as training
    pipelines on PIL do. Alpha is dropped (not blended), grey is repeated, palettes are looked up,
    16-bit grey is scaled from 0..65535 to 0..255.

    Raises:
        DataError: a file that is no picture, is damaged or cut short, or has no known range.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(file) as image:
                image.load()
                return _rgb(image, name)
    except (DataError, MemoryError):
        raise
    except Exception as error:  # Pillow's decoders raise whatever a damaged file leads them to
        raise DataError(
            f"picture {name} cannot be decoded: {_told(error)}",
            hint="replace the file or take it out of the sample set",
            where=where,
        ) from None


def _rgb(image: Image, name: str) -> Image:
    from PIL import Image

    if image.mode == "F":
        raise DataError(
            f"picture {name} holds floating-point pixels without a known range",
            hint="store it as 8-bit, or give the samples as arrays",
        )
    if image.mode.startswith("I"):
        import numpy as np

        wide = np.asarray(image).astype(np.int64)
        if wide.min() < 0 or wide.max() > 65535:
            raise DataError(f"picture {name} holds values beyond 16 bits", hint="store it as 8-bit")
        return Image.fromarray(((wide * 255 + 32767) // 65535).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def crop_box(size: tuple[int, int], crops: Crops, name: str, index: int) -> Box:
    """The seeded square crop number ``index`` of a picture: left, top, right, bottom.

    Its side is uniform in ``min_fraction``..1 of the short side, its position uniform; it depends
    on the seed, the picture's name and the index alone, not on what else is in the set.
    """
    draw = random.Random(f"{crops.seed}/{name}/{index}")
    width, height = size
    short = min(width, height)
    side = max(1, min(short, round(short * draw.uniform(crops.min_fraction, 1.0))))
    left, top = draw.randint(0, width - side), draw.randint(0, height - side)
    return left, top, left + side, top + side


def preprocess(
    image: Image, contract: Preprocess, *, box: Box | None = None, name: str = "picture"
) -> Float32:
    """An RGB picture as the model's input, float32, [1, 3, H, W] or [1, H, W, 3].

    Crop box if any; short side to ``resize`` (bilinear, antialiased; the long side is
    ``int(long * resize / short)``; nothing is done when the short side has that length already);
    centre crop from ``floor((side - crop) / 2)``; scale, mean and deviation in float32.

    Raises:
        DataError: the picture is smaller than the crop.
    """
    import numpy as np
    from PIL import Image

    if box is not None:
        image = image.crop(box)
    width, height = image.size
    short, size = min(width, height), contract.resize
    if size is not None and short != size:
        width, height = (
            size if side == short else int(side * size / short) for side in (width, height)
        )
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    rows, columns = contract.crop
    if height < rows or width < columns:
        raise DataError(
            f"{name} is {width} x {height} pixels where the crop takes {columns} x {rows}",
            hint="set preprocess.resize to at least the crop, or use larger pictures",
        )
    left, top = (width - columns) // 2, (height - rows) // 2
    pixels: Any = np.asarray(image.crop((left, top, left + columns, top + rows)), np.float32)
    if contract.colour == "BGR":
        pixels = pixels[:, :, ::-1]
    x = pixels / np.float32(1 / contract.scale)
    x = (x - np.asarray(contract.mean, np.float32)) / np.asarray(contract.std, np.float32)
    if contract.layout == "NCHW":
        x = x.transpose(2, 0, 1)
    return np.ascontiguousarray(x[None], np.float32)


def _told(error: Exception) -> str:
    """Pillow's message, without the object that it was given instead of a file."""
    return re.sub(r" <[^>]*>", "", str(error)) or type(error).__name__
