"""Every case of the table of resumes: what people write, and what a resume of it must be called."""

from __future__ import annotations

from tests.support.exactness_averaged import AVERAGED_CASES
from tests.support.exactness_callbacks import CALLBACK_CASES
from tests.support.exactness_case import Case
from tests.support.exactness_changes import CHANGE_CASES
from tests.support.exactness_hidden import HIDDEN_CASES
from tests.support.exactness_inputs import INPUT_CASES
from tests.support.exactness_models import MODEL_CASES
from tests.support.exactness_pairs import PAIR_CASES
from tests.support.exactness_parts import PART_CASES
from tests.support.exactness_python import PYTHON_CASES
from tests.support.exactness_state import STATE_CASES
from tests.support.exactness_trainers import TRAINER_CASES
from tests.support.exactness_unbuilt import UNBUILT_CASES

CASES: dict[str, Case] = {
    **INPUT_CASES,
    **PYTHON_CASES,
    **MODEL_CASES,
    **CALLBACK_CASES,
    **CHANGE_CASES,
    **PAIR_CASES,
    **TRAINER_CASES,
    **AVERAGED_CASES,
    **PART_CASES,
    **UNBUILT_CASES,
    **HIDDEN_CASES,
}
CELLS = [(name, strategy) for name, case in CASES.items() for strategy in case.strategies]
ALL_CASES = {**CASES, **STATE_CASES}
"""Those of the table, and the generated ones, of which no verdict is expected but a true one."""
