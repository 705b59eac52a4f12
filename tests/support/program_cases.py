"""Programs of others next to `model.fit`, and what must be said of their resumes."""

from __future__ import annotations

from tests.support.program_callbacks import FOLLOWED
from tests.support.program_case import Program
from tests.support.program_inputs import FED

PROGRAMS: dict[str, Program] = {**FOLLOWED, **FED}
