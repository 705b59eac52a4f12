"""What tests share: models, workloads of real processes, stores; no test lives here."""

from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]


def files(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, with its content."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}
