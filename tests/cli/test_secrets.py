"""Credentials in the URL or the options of a command never come out again, whatever happens."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from keras_dist_callbacks.base.terminal import say
from keras_dist_callbacks.cli import output
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import Storage
from tests.support.cli_backups import begin, commit, everything, kdc
from tests.support.quoting_store import quoting
from tests.support.secrets_table import REFUSED, SECRET, TAKEN, Given, found_in, said_about

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly with raw bytes:ResourceWarning")
COMMANDS = {"ls": [], "show": [], "verify": [], "doctor": [], "prune": ["--keep", "1", "--yes"]}
WORKING = [name for name in sorted(TAKEN) if name.startswith("memory")]


def _all(given: Given) -> str:
    """Everything that all commands print about a place, for people and as JSON."""
    found = ""
    for command, options in COMMANDS.items():
        for form in ([], ["--json"]):
            result = kdc(command, given.url, *options, *form, "--storage-options", json.dumps(given.options))
            assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
            assert result.stdout or result.stderr
            found += result.stdout + result.stderr
    return found


@pytest.mark.in_gate(6)
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TAKEN))
def test_no_command_prints_a_secret_of_a_place_that_refuses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_PATIENCE", RetryPolicy(0.5, 0.05, 0.1, 5))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with quoting(*said_about(name)) as port:
        assert found_in(_all(TAKEN[name].at(port))) == []


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_no_command_repeats_credentials_in_the_url_of_a_bucket(name: str) -> None:
    assert found_in(_all(Given(REFUSED[name]))) == []


@pytest.mark.parametrize("name", WORKING)
def test_no_command_prints_or_writes_a_secret_of_a_place_that_works(name: str) -> None:
    given = TAKEN[name].at(0)
    store = begin(given.url, options=given.options)
    manifests = [commit(store, sequence) for sequence in (1, 2, 3)]
    text = _all(given)
    store.storage.delete(manifests[-1].blobs[0].path)
    assert found_in(text + _all(given)) == []
    assert "1-3" in text
    assert {path: found_in(content.decode("latin1")) for path, content in everything(given.url).items()} == {
        path: [] for path in everything(given.url)
    }


def test_what_a_store_holds_is_searched_for_the_secrets_too() -> None:
    given = TAKEN["memory"].at(0)
    store = begin(given.url)
    commit(store, 1, {f"variables/{SECRET}@0": [1.0]}, strategy=SECRET)
    assert found_in(_all(given)) == []


URL = TAKEN["http"].url


@pytest.mark.parametrize("arguments", [[URL], ["ls", "x", URL], ["ls", "x", f"--{URL}"], ["show", URL, "-z"]])
def test_wrong_usage_repeats_no_secret(arguments: list[str]) -> None:
    result = kdc(*arguments)
    assert result.exit_code == 2
    assert found_in(result.output) == []


def test_a_mistake_of_the_package_and_logs_of_clients_show_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(storage: Storage, *_: Any) -> Any:
        logging.getLogger("client").warning("gave up on %s with \x1b[2J", SECRET)
        say("trying again", level=logging.WARNING, to_stderr=True)
        raise LookupError(f"unexpected {SECRET}\x1b[2J") from ValueError(SECRET)

    monkeypatch.setattr(Storage, "files", fail)
    result = kdc("ls", TAKEN["memory"].url)
    assert result.exit_code == 2
    assert "LookupError: unexpected ***\\x1b[2J" in result.stderr
    assert "client: gave up on *** with \\x1b[2J" in result.stderr
    assert result.stderr.count("trying again") == 1
    assert found_in(result.output) == []
