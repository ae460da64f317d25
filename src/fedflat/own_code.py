"""Methods, models and data sets in files of the user's: PATH.py:NAME, on the command line and in configuration files.

A file is executed once, under a module name of its own. While it is, its folder is searched for imports first, as
Python does for a script.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from fedflat.errors import UserError, near_miss, shorten

_loaded: dict[Path, tuple[str, ModuleType]] = {}  # SHA-256 and module of every file that was executed


def is_own_code(name: Any) -> bool:
    """Return whether `name` has the form PATH.py:NAME."""
    return isinstance(name, str) and ".py:" in name


def split_own_code(name: str) -> tuple[Path, str]:
    """Return the absolute path and the name in it of PATH.py:NAME."""
    path, _, inside = name.rpartition(":")
    return Path(path).expanduser().resolve(), inside


def absolute_own_code(name: str) -> str:
    """Return PATH.py:NAME with an absolute path, which means the same in every folder."""
    path, inside = split_own_code(name)
    return f"{path}:{inside}"


def short_own_code(name: str) -> str:
    """Return PATH.py:NAME without the folders of its path, as messages and tables show it; other names as they are."""
    return name if not is_own_code(name) else name[name.rfind("/", 0, name.index(".py:")) + 1 :]


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, 64 hexadecimal digits; '' if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def load_own_code(option: str | None, name: str) -> Any:
    """Return the object that PATH.py:NAME names.

    Args:
        option: the option it was given to, for messages.
        name: PATH.py:NAME.

    Raises:
        UserError: there is no such file, it cannot be executed, or has no such name.
    """
    subject = f"method {name}" if option is None else name
    path, inside = split_own_code(name)
    if not path.is_file():
        raise UserError(option, subject, f"there is no file {path}")
    module = _execute(option, subject, path)
    if not hasattr(module, inside):
        own = [word for word, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        has = f"it has {', '.join(own)}" if own else "it defines nothing"
        raise UserError(option, subject, f"no {inside or 'name'} in {path.name}{near_miss(inside, own)}; {has}")
    return getattr(module, inside)


def _execute(option: str | None, subject: str, path: Path) -> ModuleType:
    """Execute a file as a module, again only if it has changed."""
    digest = file_sha256(path)
    if path in _loaded and _loaded[path][0] == digest:
        return _loaded[path][1]
    spec = spec_from_file_location(f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}", path)
    assert spec
    assert spec.loader
    module = sys.modules[spec.name] = module_from_spec(spec)  # dataclasses look their module up there
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UserError(option, subject, f"{where_in_file(error, path)}: {name_error(error)}") from error
    finally:
        sys.path.remove(str(path.parent))
    _loaded[path] = digest, module
    return module


def name_error(error: BaseException) -> str:
    """Return an exception as one line: its type and message."""
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{type(error).__name__}: {shorten(text)}" if text else type(error).__name__


def where_in_file(error: BaseException, path: Path) -> str:
    """Return the line of a file in which an exception arose: "line 31 of my_method.py (if norm > 1:)"; '' if none."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename) == path:
        return f"line {error.lineno} of {path.name}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_file(frame.filename, path)]
    if not frames:
        return ""
    line = f" ({shorten(frames[-1].line)})" if frames[-1].line else ""
    return f"line {frames[-1].lineno} of {path.name}{line}"


def _is_file(name: str, path: Path) -> bool:
    return Path(name).name == path.name and Path(name).resolve() == path


def required_arguments(function: Any) -> list[str]:
    """Return the arguments without which a function or class cannot be called; none of what is no function."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = inspect.signature(function).parameters.values() if callable(function) else ()
    return [each.name for each in known if each.kind in kinds and each.default is inspect.Parameter.empty]


@contextmanager
def explain_own_errors(
    option: str | None, subject: str, files: Sequence[Path], rules: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Turn an exception that arose in one of the user's files into one line with its place and the rule it breaks.

    Args:
        option: the option that named the file; None where `subject` names the thing itself.
        subject: what the line begins with.
        files: the user's files.
        rules: for parts of torch's messages, the rules that are broken.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        place = next(filter(None, (where_in_file(error, path) for path in files)), "")
        if not place:
            raise
        rule = next((rule for part, rule in (rules or {}).items() if part in str(error)), name_error(error))
        raise UserError(option, subject, f"{place}: {rule}") from error
