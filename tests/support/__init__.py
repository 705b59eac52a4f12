"""What tests share: models, workloads of real processes, stores; no test lives here."""

from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]
