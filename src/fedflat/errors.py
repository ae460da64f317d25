"""The one kind of error that is the user's to fix: shown as a single line, exit code 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something the user gave cannot be used; the message names it, its value and what is allowed."""


def near_miss(word: str, known: Iterable[str], prefix: str = "") -> str:
    """' (did you mean X?)' where a known word is close, else ''; a prefix that all share does not make words close."""
    close = difflib.get_close_matches(word.removeprefix(prefix), [k.removeprefix(prefix) for k in known], n=1)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""


def only_in_python(
    option: str, name: str, advice: str = "give it again in Python: fedflat.analyse(RUN, dataset=..., model=...)"
) -> None:
    """Refuse own:NAME-CHECKSUM, by which config.yaml tells of data and models that were Python objects."""
    if name.startswith("own:"):
        what = f"{option} {name}: was given in Python and is not in the run's folder"
        raise UserError(f"{what}; {advice}" if advice else what)
