"""Every kind of input goes on exactly where it was, or is labelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import tiny
from tests.support.inputs import INPUTS

pytestmark = pytest.mark.slow  # whole fits


@pytest.mark.filterwarnings("ignore:.*input ran out of data.*:UserWarning")
@pytest.mark.parametrize(
    "where",
    [pytest.param((1, 1), marks=pytest.mark.chaos), pytest.param((3, 0), marks=pytest.mark.chaos), (3, 1)],
    ids=str,
)
@pytest.mark.parametrize("name", INPUTS)
def test_an_input_goes_on_exactly_where_it_was(tmp_path: Path, name: str, where: tuple[int, int]) -> None:
    reference = tiny.model()
    expected = tiny.fit(reference, None, epochs=5, **INPUTS[name]())
    with pytest.raises(tiny.Stop):
        tiny.fit(tiny.model(), tmp_path, [tiny.StopAt(*where)], epochs=5, **INPUTS[name]())
    model = tiny.model()
    history = tiny.fit(model, tmp_path, epochs=5, **INPUTS[name]())
    assert history.history == expected.history
    tiny.assert_same(model, reference)
