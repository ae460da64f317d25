"""Text as data: one file for each client, cut into windows of bytes of which a model predicts the next one.

Tokens are bytes, so that every text has the same 256 of them and clients need not agree on a vocabulary. A window of
length T is the pair (b[0:T], b[1:T+1]); windows follow each other without overlap. The last one of a text is filled up:
its inputs with 0, which no text contains, its targets with -100, which no loss counts. The last fifth of each file, in
bytes, is its test text.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from fedflat.core.state import checksum
from fedflat.core.tasks import IGNORED
from fedflat.data.dataset import Dataset
from fedflat.data.image_files import check_regular
from fedflat.errors import UserError
from fedflat.files import disk_failed

BYTES = 256  # the number of tokens
SEQUENCE_LENGTH = 64  # tokens in a window, unless given
SHORTEST = 10  # bytes of a file, so that its training and its test text have two or more each
TEST_PART = 5  # one part in so many of each file is test text


def load_text(folder: str | Path, length: int = SEQUENCE_LENGTH, name: str | None = None) -> Dataset:
    """Return the files of a folder as a data set for next-token prediction; each file is the text of one client.

    Clients are numbered by the sorted names of their files. Hidden files and subfolders are left out.

    Args:
        folder: holds one file of plain text, in UTF-8 or any other encoding without zero bytes, for each client.
        length: the number of bytes in a window, which is one sample.
        name: what reports call the data set; the folder's name unless given.

    Raises:
        UserError: there is no such folder, it has no files, or a file is no text or too short.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise UserError(None, root, "is not a folder; give one that holds a text file for each client")
    paths = sorted(path for path in root.iterdir() if not path.is_dir() and not path.name.startswith("."))
    if not paths:
        raise UserError(None, root, "has no files; each client's text is a file in it")
    return _windows_of_texts(name or root.name, [_read_text(path) for path in paths], length)


def load_sklearn_text(length: int = SEQUENCE_LENGTH) -> Dataset:
    """Return scikit-learn's descriptions of its data sets, some 40,000 bytes of English; a client for each of them.

    Args:
        length: as in `load_text`.
    """
    package = find_spec("sklearn")  # which is not imported for its files
    assert package, "scikit-learn is one of the package's requirements"
    paths = sorted((Path(str(package.origin)).parent / "datasets" / "descr").glob("*.rst"))
    return _windows_of_texts("sklearn-text", [_read_text(path) for path in paths], length)


def _read_text(path: Path) -> bytes:
    """Return a file's bytes; raise UserError if it cannot be read or is no text."""
    try:
        content = check_regular(path).read_bytes()
    except OSError as error:
        if disk_failed(error):
            raise
        raise UserError(None, path, f"cannot be read ({error.strerror})") from error
    if b"\0" in content:
        raise UserError(None, path, "contains zero bytes, so it is no plain text; save it as UTF-8, or remove it")
    if len(content) < SHORTEST:
        raise UserError(None, path, f"has {len(content)} bytes; a client's text needs at least {SHORTEST}")
    return content


def _windows_of_texts(name: str, texts: Sequence[bytes], length: int) -> Dataset:
    """Return the windows of texts, one client for each text, with the end of each text as test samples."""
    if length < 1:
        raise UserError("length", length, "must be at least 1")
    ends = [len(text) - max(2, len(text) // TEST_PART) for text in texts]
    train = [cut_windows(text[:end], length) for text, end in zip(texts, ends, strict=True)]
    test = [cut_windows(text[end:], length) for text, end in zip(texts, ends, strict=True)]
    x, y, x_test, y_test = (torch.cat(part) for windows in (train, test) for part in zip(*windows, strict=True))
    owner, test_owner = (
        torch.arange(len(texts)).repeat_interleave(torch.tensor([len(inputs) for inputs, _ in windows]))
        for windows in (train, test)
    )
    content = {"x": x, "y": y, "x_test": x_test, "y_test": y_test, "owner": owner}
    fingerprint = f"{checksum(content):08x}"
    return Dataset(name, x, y, x_test, y_test, BYTES, owner=owner, fingerprint=fingerprint, test_owner=test_owner)


def cut_windows(text: bytes, length: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of a text's windows, both int64 [n, length]; the last window is filled up.

    Args:
        text: at least two bytes.
        length: T.
    """
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    missing = -(len(tokens) - 1) % length
    inputs, targets = F.pad(tokens[:-1], (0, missing)), F.pad(tokens[1:], (0, missing), value=IGNORED)
    return inputs.view(-1, length), targets.view(-1, length)
