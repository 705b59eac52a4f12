"""Records of the first version of a `SidecarEvaluator`'s results, kept forever: every later version reads them."""

from __future__ import annotations

from keras_dist_callbacks.evaluation.results import RESULT, Evaluation, EvaluationRecord
from tests.support import ROOT

GOLDEN = ROOT / "tests" / "golden"


def test_a_result_of_version_1_is_read() -> None:
    record = RESULT.decode((GOLDEN / "evaluation-v1" / "result.json").read_bytes(), "result.json")
    assert record == EvaluationRecord(
        "1.keras", 10, 1, 10, {"loss": "0.25"}, "0" * 32, ["10 1.keras " + "0" * 32], 1.5e9
    )
    assert record.result == Evaluation("1.keras", 10, 1, {"loss": 0.25})


def test_a_new_version_of_a_format_comes_with_a_golden_file_of_its_own() -> None:
    assert (GOLDEN / f"evaluation-v{RESULT.version}").is_dir()
