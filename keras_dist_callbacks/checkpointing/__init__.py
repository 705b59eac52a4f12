"""The engine: variables -> capture -> snapshot -> encode -> stage -> commit -> prune, and back."""
