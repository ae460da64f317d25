"""The one kind of error that is the user's to fix: shown as a single line, exit code 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something the user gave cannot be used; the message names it, its value and what is allowed."""


def near_miss(word: str, known: Iterable[str]) -> str:
    """' (did you mean X?)' where a known word is close, else ''."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f" (did you mean {close[0]}?)" if close else ""
