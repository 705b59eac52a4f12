"""A module of settings that a callback imports when it is called."""

calls = 0
