"""Data sets of Hugging Face's datasets: hf:FOLDER, which save_to_disk wrote, or hf:NAME, which is downloaded.

A sample is a text, cut or filled up to one length, with a label or, without a label column, with its own next tokens as
targets. Tokens come from a tokenizer, or are the text's bytes. The splits `train` and `test` (or `validation`) are
used; without a test split a fifth of the samples, chosen by a hash of the row number, is held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedflat.core.state import checksum
from fedflat.core.tasks import IGNORED, find_task
from fedflat.data.dataset import Dataset, dataset_tensors, hold_out
from fedflat.data.image_files import number_clients
from fedflat.data.text import BYTES, SEQUENCE_LENGTH
from fedflat.errors import UserError, import_extra, near_miss

TEXT_COLUMNS, LABEL_COLUMNS = ("text", "sentence", "content"), ("label", "labels")  # taken unless others are named
TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model")
TEST_SPLITS, TEST_SHARE = ("test", "validation"), 0.2


def load_hugging_face_data(
    source: Any,
    tokenizer: Any = None,
    text: str | None = None,
    label: str | None = None,
    client: str | None = None,
    length: int = SEQUENCE_LENGTH,
    name: str = "own",
    task: Any = "auto",
) -> Dataset:
    """Return a data set of Hugging Face as token sequences, {"input_ids", "attention_mask"}, or bytes.

    Args:
        source: a datasets.Dataset or datasets.DatasetDict; or the folder or the name of one.
        tokenizer: a tokenizer of transformers; its tokens are the model's inputs. Without it, the text's bytes are.
        text: the column of texts; the first of `text`, `sentence` and `content` that there is unless given.
        label: the column of labels; `label` or `labels` unless given. Without it the next token is predicted.
        client: the column that names each row's client, None if a partition assigns the rows.
        length: the number of tokens of a sample.
        name: what reports call the data set.
        task: what is learned, as the option `task`. Labels are classes, numbered in their order; decimal numbers, and
            the labels of a task without classes, are used as they are.

    Raises:
        UserError: there is no such data set or column, or it has missing values.
    """
    splits = _read_splits(source) if isinstance(source, str | Path) else source
    splits = dict(splits) if hasattr(splits, "keys") else {"train": splits}
    train = splits.get("train", next(iter(splits.values())))
    test = next((splits[split] for split in TEST_SPLITS if split in splits), None)
    text = _column(name, train.column_names, text, TEXT_COLUMNS)
    label = _column(name, train.column_names, label, LABEL_COLUMNS, optional=True)
    client = _column(name, train.column_names, client, ()) if client else None
    for split in (each for each in (train, test) if each):
        _check_complete(name, split, text, label)
    labels: np.ndarray | None = np.unique(
        [value for split in (train, test) if label and split for value in split[label]]
    )
    if np.asarray(labels).dtype.kind == "f" or (task != "auto" and not find_task(task).class_scores):
        labels = None
    x, y = _samples(train, tokenizer, text, label, labels, length)
    x_test, y_test = (x, y) if test is None else _samples(test, tokenizer, text, label, labels, length)
    owner = number_clients(np.asarray(train[client])) if client else None
    rows = None if owner is None else [np.flatnonzero(owner == k).tolist() for k in range(int(owner.max()) + 1)]
    tokens = BYTES if tokenizer is None else len(tokenizer)
    data = Dataset.from_arrays(x, y, x_test, y_test, rows, name, None if label else tokens)
    data = hold_out(data, TEST_SHARE) if test is None else data
    return replace(data, fingerprint=f"{checksum(dataset_tensors(data)):08x}")


def load_tokenizer(name: str) -> Any:
    """Return the tokenizer in the folder of a model hf:FOLDER; None for other models.

    Args:
        name: the model.

    Raises:
        UserError: there is none in the folder.
    """
    if not name.startswith("hf:"):
        return None
    library, folder = import_extra("transformers", "hf", "model", name), Path(name.removeprefix("hf:")).expanduser()
    if not folder.is_dir():
        raise UserError("model", name, f"there is no folder {folder}; give one that save_pretrained wrote")
    problem = "has no tokenizer for the texts of the data set; save it there with tokenizer.save_pretrained"
    if not any(True for pattern in TOKENIZER_FILES for _ in folder.glob(pattern)):
        raise UserError("model", name, problem)  # transformers would make one that knows no word
    try:
        return library.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever the library raises for files that it cannot read
        raise UserError("model", name, f"{problem} ({' '.join(str(error).split())[:200]})") from error


def _read_splits(source: str | Path) -> Any:
    """Return the splits of a folder that save_to_disk wrote, or of a data set that is downloaded by its name."""
    datasets, folder = import_extra("datasets", "hf", "dataset", f"hf:{source}"), Path(source).expanduser()
    try:
        return datasets.load_from_disk(folder) if folder.is_dir() else datasets.load_dataset(str(source))
    except Exception as error:  # the library's own errors, and those of the network below it
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        problem = "was not written by save_to_disk" if folder.is_dir() else "is not a folder, and cannot be downloaded"
        raise UserError("dataset", f"hf:{source}", f"{problem} ({reason})") from error


def _check_complete(name: str, split: Any, text: str | None, label: str | None) -> None:
    """Raise UserError if a row has no text or no label. Data sets with hidden labels say -1."""
    for column in filter(None, (text, label)):
        values = split[column]
        missing = [row for row, value in enumerate(values, 1) if value is None]
        if missing:
            raise UserError(None, name, f"column '{column}' has no value in row {missing[0]}; leave such rows out")
        if column == label and -1 in values:
            problem = f"column '{label}' has labels of -1, which stand for unknown ones; use splits with labels"
            raise UserError(None, name, problem)


def _column(
    name: str, known: Sequence[str], wanted: str | None, usual: Sequence[str], optional: bool = False
) -> str | None:
    """Return the column that was named, or the first usual one; None if there is none and it is optional."""
    if wanted is None and (found := [column for column in usual if column in known]):
        return found[0]
    if wanted in known or (wanted is None and optional):
        return wanted
    problem = f"has no column '{wanted or usual[0]}'{near_miss(wanted or usual[0], known)}; it has {', '.join(known)}"
    raise UserError(None, name, problem)


def _samples(
    split: Any, tokenizer: Any, text: str | None, label: str | None, labels: np.ndarray | None, length: int
) -> tuple[Any, np.ndarray]:
    """Return the inputs and targets of a split; a label becomes its number among all `labels`, if these are given."""
    texts = [str(value) for value in split[text]]
    tokens, mask = _byte_tokens(texts, length) if tokenizer is None else _tokens(texts, tokenizer, length)
    x = tokens if tokenizer is None else {"input_ids": tokens, "attention_mask": mask}
    if label:
        given = np.asarray(split[label])
        return x, given.astype(np.float32) if labels is None else np.searchsorted(labels, given).astype(np.int64)
    known = np.where(mask > 0, tokens, IGNORED)
    return x, np.concatenate([known[:, 1:], np.full((len(known), 1), IGNORED)], axis=1)


def _tokens(texts: Sequence[str], tokenizer: Any, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of texts and which of them are no padding, both int64 [n, length]."""
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    found = tokenizer(texts, padding="max_length", truncation=True, max_length=length)
    return np.asarray(found["input_ids"], np.int64), np.asarray(found["attention_mask"], np.int64)


def _byte_tokens(texts: Sequence[str], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of texts, filled up with 0, and which of them are no padding, both int64 [n, length]."""
    rows = [np.frombuffer(text.encode()[:length], np.uint8) for text in texts]
    tokens = np.stack([np.pad(row, (0, length - len(row))) for row in rows]).astype(np.int64)
    return tokens, (np.arange(length) < np.array([len(row) for row in rows])[:, None]).astype(np.int64)
