"""`kdc`: looks at backups and checks stores from the shell."""

from __future__ import annotations


def main() -> None:
    """Runs the command line."""
    raise SystemExit("kdc: no command yet")
