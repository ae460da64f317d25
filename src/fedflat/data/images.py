"""Encoded images (PNG, JPEG, ...) decoded to uint8 arrays of one size."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from fedflat.data.prepared import CHUNK
from fedflat.errors import UserError

Named = tuple[str, Path | bytes]  # what to call an image in a message, and its file or encoded bytes


class Form(NamedTuple):
    """What all images of a set share; read off the first one."""

    first: str
    mode: str  # "L" grey or "RGB"
    shape: tuple[int, ...]
    size: int  # the side images are brought to, 0 to take them as they are
    jpeg: bool


@contextmanager
def reading(name: object, what: str) -> Iterator[None]:
    """One line that names the file for whatever a parser raises; on damaged files they raise nearly anything."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{name}: cannot be read as {what}, it may be damaged or incomplete ({reason})") from error


def form_of(name: str, source: Path | bytes, size: int = 0) -> Form:
    """The form the first image of a set prescribes for all others."""
    with reading(name, "an image"), _open(source) as image:
        mode = "L" if image.mode in ("1", "L") and not size else "RGB"  # photographs may be grey or in colour
        jpeg = image.format == "JPEG"
        width, height = (size, size) if size else image.size
    return Form(name, mode, (1 if mode == "L" else 3, height, width), size, jpeg)


def chunks(images: Iterable[Named], form: Form) -> Iterator[np.ndarray]:
    """Decode `images` on all cores (Pillow lets go of the interpreter), in order, as uint8 [k, c, h, w]."""
    rest = iter(images)
    with ThreadPoolExecutor() as pool:
        while part := list(islice(rest, CHUNK)):
            yield np.stack(list(pool.map(lambda image: pixels(image[0], image[1], form), part)))


def pixels(name: str, source: Path | bytes, form: Form) -> np.ndarray:
    """One image as uint8 [c, h, w]; with a size: shorter side scaled to it, centre cut out."""
    with reading(name, "an image"), _open(source) as image:
        _check_depth(name, image, form)
        if form.size:
            image.draft("RGB", (2 * form.size, 2 * form.size))  # JPEG: decode a large photograph at reduced scale
        picture = image.convert(form.mode)
    if form.size:
        picture = ImageOps.fit(picture, (form.size, form.size), Image.Resampling.BICUBIC)
    array = np.asarray(picture)
    array = array[None] if form.mode == "L" else array.transpose(2, 0, 1)
    if array.shape != form.shape:
        raise UserError(
            f"{name}: image is {array.shape[2]}x{array.shape[1]} pixels, but {form.first} is "
            f"{form.shape[2]}x{form.shape[1]}: all images must have one size"
        )
    return array


def _open(source: Path | bytes) -> Image.Image:
    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)


def _check_depth(name: str, image: Image.Image, form: Form) -> None:
    """Refuse what a conversion would spoil silently: colour among grey images, more than 8 bits."""
    if image.mode.startswith(("I", "F")):
        raise UserError(f"{name}: image has more than 8 bits per channel (mode {image.mode}); convert it to 8 bits")
    if form.mode == "L" and image.mode not in ("1", "L"):
        raise UserError(f"{name}: image is in colour, but {form.first} is grey: all images must be of one kind")
