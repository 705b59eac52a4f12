"""The random states of Python, numpy, torch and TensorFlow; Keras' own are variables."""

from __future__ import annotations

from collections.abc import Callable

from keras_dist_callbacks._compat import rng
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import JSON, Piece, Position, Saved
from keras_dist_callbacks.state.part import Moment, Part, moment_of_arrival


class RandomStates(Part):
    """Random states as of now.

    Args:
        put_back: Puts them back, but for those that the input moves when it is read.
    """

    name = "random"

    def __init__(self, put_back: Callable[[JSON], None]) -> None:
        self._put_back = put_back

    def capture(self, position: Position) -> Piece:
        """Returns one topic."""
        return Piece({"now": rng.capture()})

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """Puts them back; nothing finds out whether something draws afterwards."""
        if moment is moment_of_arrival(saved.position):
            self._put_back(saved.mine.state["now"])
        return []


class RandomStatesAtEpoch(Part):
    """Random states as the running epoch began, and as its first batch was asked for.

    An interrupted epoch begins again: its `on_epoch_begin` and its input draw as they did.

    Args:
        put_back: Puts those back that the input begins with.
    """

    name = "random_at_epoch"

    def __init__(self, put_back: Callable[[JSON], None]) -> None:
        self._put_back = put_back
        self._begun: JSON = None
        self._entered: JSON = None

    def note_begun(self) -> None:
        """An epoch begins, and no `on_epoch_begin` was called."""
        self._begun = rng.capture()

    def note_entered(self) -> None:
        """No batch of the epoch was asked for."""
        self._entered = rng.capture()

    def capture(self, position: Position) -> Piece:
        """Returns both within an epoch; the first one only if it differs."""
        if position.kind != "within":
            return Piece()
        begun = {} if self._begun == self._entered else {"begun": self._begun}
        return Piece({"entered": self._entered, **begun})

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """Puts each back where it belongs."""
        if moment is Moment.EPOCH_BEGIN:
            self._begun = saved.mine.state.get("begun") or saved.mine.state["entered"]
            rng.restore(self._begun)
        elif moment is Moment.ENTERED:
            self._entered = saved.mine.state["entered"]
            self._put_back(self._entered)
        return []

    def adopt(self, saved: Saved) -> list[Finding]:
        """No epoch begins again."""
        return []
