"""What a person reads: lines, warnings, sizes, progress."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_dist_callbacks.base.process import Shared, shared

_UNITS = ("KiB", "MiB", "GiB", "TiB")
_NOT_THE_USERS = {"keras_dist_callbacks", "keras", "tensorflow", "contextlib", "threading"}


def escape_controls(text: str, keep: str = "") -> str:
    r"""`text` with everything that a terminal would interpret, or not show, written as an escape such as `\x1b`.

    Control characters, line breaks, marks that turn the direction of writing, characters without width and halves
    of surrogate pairs; letters, signs and spaces of any language stay. A text that is shown already stays as it is.

    Args:
        text: Names or messages out of a store, or from another process.
        keep: Characters that stay although they would be escaped, such as `"\n"` in a message of several lines.
    """
    if text.isprintable():
        return text
    shown = ""
    for character in text:
        stays = character in keep or character.isprintable() or unicodedata.category(character) == "Zs"
        shown += character if stays else character.encode("unicode_escape").decode("ascii")
    return shown


def first_few(texts: Sequence[str], most: int = 4) -> list[str]:
    """Returns the first of many texts, and at the end how many more there are, such as `and 3 more`."""
    more = len(texts) - most
    return [*texts[:most], *([f"and {more} more"] if more > 0 else [])]


def warn(text: str, category: type[Warning] = RuntimeWarning, *, items: Sequence[str] = ()) -> None:
    """Warns at the line of the user's that called Keras or this package, mostly that of `fit()`.

    Args:
        text: What to say; made fit for a terminal.
        category: The class of the warning.
        items: What belongs to it: each gets a line of its own if there are several.
    """
    texts = [text, *items] if len(items) > 1 else [" ".join([text, *items])]
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS:
        level, frame = level + 1, frame.f_back
    warnings.warn("\n- ".join(map(escape_controls, texts)), category, stacklevel=level)


def duration(seconds: float) -> str:
    """Returns a span of time in its two largest units, as `45 s`, `12 min`, `6 h 12 min` or `3 d 4 h`."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours} h"


def data_size(count: int) -> str:
    """Returns a number of bytes, as `812 B` or `6.9 MiB`."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in _UNITS:
        value /= 1024
        if value < 1023.95 or unit == _UNITS[-1]:
            break
    return f"{value:.1f} {unit}"


_LOG = logging.getLogger("keras_dist_callbacks")
_LOG.addHandler(logging.NullHandler())  # handlers and level are the application's choice
_SHOW_AFTER = 3.0
_PREFIX = "kdc: "
_FAILURES = (OSError, ValueError)  # a full disk or a pipe without a reader; a closed stream


@dataclass
class Output(Shared):
    """Who prints, and what was said already."""

    prints: Callable[[], bool] = lambda: True
    said: set[str] = field(default_factory=set)


def say(
    text: str, *, verbose: int | str = 1, level: int = logging.INFO, after_bar: bool = False, to_stderr: bool = False
) -> None:
    """Logs a line, and prints it behind `kdc: ` if this process prints (`is_printed` of the log record). Never raises.

    Args:
        text: The line; control characters in it are escaped.
        verbose: 0 logs it only.
        level: For the log.
        after_bar: A progress bar may be drawn in the current line; the text gets a line of its own.
        to_stderr: Print to stderr instead of stdout.
    """
    is_printed = is_shown(verbose)
    if is_printed:
        write_line(_PREFIX + text, after_bar=after_bar, to_stderr=to_stderr)
    with contextlib.suppress(*_FAILURES):
        _LOG.log(level, "%s", escape_controls(text), extra={"is_printed": is_printed})


def is_shown(verbose: int | str = 1) -> bool:
    """Returns whether a line, or a bar, of this process is for the terminal.

    Keras keeps its switch per thread: ask in the thread of the user's, and pass the answer to other threads.

    Args:
        verbose: 0: it is not.
    """
    return bool(verbose) and shared(Output).prints() and _is_interactive()


def print_only_if(prints: Callable[[], bool]) -> None:
    """Sets who prints: a function that says whether this process does. TF_CONFIG is read elsewhere."""
    shared(Output).prints = prints


def is_first(text: str) -> bool:
    """Returns whether this process has not said it yet; for advice that is the same for every run."""
    said = shared(Output).said
    is_new = text not in said
    said.add(text)
    return is_new


def _is_interactive() -> bool:
    """Keras' switch, without importing Keras: where it is not imported, nothing has turned it off."""
    config = getattr(sys.modules.get("keras"), "config", None)
    ask = getattr(config, "is_interactive_logging_enabled", None)
    return True if ask is None else bool(ask())


def write_line(text: str, *, after_bar: bool = False, to_stderr: bool = False) -> None:
    """Prints a line in one write, so that no other thread writes into it; never raises.

    A pipe without a reader takes no line any more: training must not end for that, and what is still buffered must not
    change the exit code.

    Args:
        text: What to print; control characters in it are escaped.
        after_bar: A progress bar may be drawn in the current line; the text gets a line of its own.
        to_stderr: Print it there.
    """
    stream = sys.stderr if to_stderr else sys.stdout
    if stream is None:  # pythonw, or a service without it
        return
    line = f"{chr(10) if after_bar else ''}{escape_controls(text)}\n"
    try:
        try:
            stream.write(line)
        except UnicodeEncodeError:
            stream.write(line.encode("ascii", "backslashreplace").decode())
        stream.flush()
    except BrokenPipeError:
        discard(stream)
    except _FAILURES:
        return


def discard(stream: Any) -> None:
    """Lets a stream without a reader take what is written, as the documentation of Python's `signal` advises."""
    with contextlib.suppress(*_FAILURES), open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), stream.fileno())


def uploads(
    description: str, total_bytes: int, *, shown: bool = True
) -> contextlib.AbstractContextManager[Callable[[int], None]]:
    """A progress bar on stderr for an upload that lasts; nothing if it is quick or stderr is not a terminal.

    Args:
        description: What is being uploaded.
        total_bytes: How much it is.
        shown: What `is_shown` has said in the user's thread.

    Returns:
        A context, whose function is to be called with each number of bytes sent, from any thread.
    """
    return _progress(description, total_bytes, ["DownloadColumn", "TransferSpeedColumn"], shown, _SHOW_AFTER)


def reading(
    description: str, total: int | None, *, shown: bool = True
) -> contextlib.AbstractContextManager[Callable[[int], None]]:
    """A progress bar on stderr for batches that are read; nothing if stderr is not a terminal.

    Args:
        description: What is being read.
        total: How many batches; None if that is not known.
        shown: What `is_shown` has said in the user's thread.

    Returns:
        A context, whose function is to be called with each number of batches read.
    """
    return _progress(description, total, ["MofNCompleteColumn"], shown, 0.0)


@contextlib.contextmanager
def _progress(
    description: str, total: int | None, columns: list[str], shown: bool, show_after: float
) -> Iterator[Callable[[int], None]]:
    """A bar of rich's; a broken terminal ends nothing."""
    if not (shown and stderr_is_terminal()):
        yield lambda count: None
        return
    from rich import progress
    from rich.console import Console

    inner = [getattr(progress, name)() for name in ("BarColumn", *columns, "TimeRemainingColumn")]
    bar = progress.Progress(
        progress.TextColumn("{task.description}", markup=False), *inner,
        console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip
    task = bar.add_task(escape_controls(description), total=total)

    def show() -> None:
        with contextlib.suppress(*_FAILURES):
            bar.start()

    timer = threading.Timer(show_after, show)
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # no thread can be started: then there is no bar
        timer.start()
    try:
        yield lambda count: bar.advance(task, count)
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        with contextlib.suppress(*_FAILURES):
            bar.stop()


def stderr_is_terminal() -> bool:
    """Returns whether a bar can be drawn there; also asked where stderr is closed, or was never opened."""
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # it is closed
        return False
