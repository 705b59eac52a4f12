"""Which fields Kubernetes, JobSet and Kubeflow Trainer know."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
from kubeflow_trainer_api import models

CUSTOM = {
    "JobSet": models.JobsetV1alpha2JobSet,
    "TrainJob": models.TrainerV1alpha1TrainJob,
    "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
}


def validate(document: dict[str, Any]) -> None:
    """Fails if a manifest has a field that its kind does not have, or lacks one."""
    kind = CUSTOM.get(document["kind"])
    if kind is None:
        kubernetes_validate.validate(document, "1.34", strict=True)
    else:
        assert kind.from_dict(document).to_dict() == document  # fields that it does not know are lost
