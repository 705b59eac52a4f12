"""Google Cloud's credentials: without any, `kdc` says so within seconds; else the client is asked."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import fsspec.config
import pytest

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.storage import google_cloud
from tests.support.cli_backups import kdc
from tests.support.secrets_table import REFUSED, SECRET, found_in

KEY = json.dumps({"type": "service_account", "private_key": SECRET})
URL = "gs://bucket/x"


@pytest.fixture(autouse=True)
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An account and a machine without credentials."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "STORAGE_EMULATOR_HOST", "NO_GCE_CHECK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(google_cloud, "_PRODUCT", tmp_path / "product_name")
    monkeypatch.setattr(google_cloud, "_ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{server.getsockname()[1]}")  # which nobody listens to then
    return tmp_path


@pytest.fixture
def metadata_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header(*request.param)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{server.server_port}")
        yield
        server.shutdown()
        thread.join()


def refused() -> str:
    with pytest.raises(ConfigError) as caught:
        google_cloud.require_credentials(URL, {})
    return str(caught.value)


@pytest.mark.parametrize(
    "command", [["ls", URL], ["ls", URL, "--json"], ["prune", URL, "--keep", "1"], ["doctor", "gcs://bucket/x"]]
)
def test_without_credentials_a_command_says_so_in_one_line(command: list[str]) -> None:
    began = time.monotonic()
    result = kdc(*command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"kdc: {command[1]}: no credentials for Google Cloud were found")
    assert time.monotonic() - began < 10


def test_a_metadata_server_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{silent.getsockname()[1]}")
        assert "no credentials" in refused()


@pytest.mark.parametrize("metadata_server", [("Server", "of another cloud")], indirect=True)
@pytest.mark.usefixtures("metadata_server")
def test_the_metadata_server_of_another_cloud_gives_no_credentials() -> None:
    assert "no credentials" in refused()


@pytest.mark.parametrize("metadata_server", [("Metadata-Flavor", "Google")], indirect=True)
@pytest.mark.usefixtures("metadata_server")
def test_in_google_cloud_the_client_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    google_cloud.require_credentials(URL, {})
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # google-auth asks for none then
    assert "no credentials" in refused()


@pytest.mark.parametrize("where", ["variable", "gcloud", "browser", "product"])
def test_credentials_that_are_there_are_left_to_the_client(
    nothing: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    names = {
        "variable": "key.json",
        "gcloud": ".config/gcloud/application_default_credentials.json",
        "browser": ".gcs_tokens",
        "product": "product_name",
    }
    file = nothing / names[where]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("Google Compute Engine\n" if where == "product" else KEY)
    if where == "variable":
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    google_cloud.require_credentials(URL, {})


@pytest.mark.parametrize("content", [None, "", "[]", "{}", "not JSON"])
def test_a_variable_that_names_no_file_of_credentials_is_named(
    nothing: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    if content is not None:
        (nothing / "key.json").write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(nothing / "key.json"))
    assert refused() == f"{URL}: GOOGLE_APPLICATION_CREDENTIALS does not name a file of credentials"


def test_a_key_in_the_variable_itself_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", KEY)
    assert found_in(refused()) == []


@pytest.mark.parametrize("given", [{"token": "anon"}, {"endpoint_url": "http://127.0.0.1:1"}])
def test_an_anonymous_token_or_another_endpoint_needs_none(given: dict[str, str]) -> None:
    google_cloud.require_credentials(URL, given)


def test_neither_an_emulator_nor_a_token_in_the_configuration_of_fsspec_needs_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
        google_cloud.require_credentials(URL, {})
    monkeypatch.setitem(fsspec.config.conf, "gcs", {"token": "anon"})
    google_cloud.require_credentials(URL, {})


@pytest.mark.parametrize("url", ["s3://bucket/x", "memory://x", "runs/gs", "/gs:/x"])
def test_other_stores_are_not_looked_at(url: str) -> None:
    google_cloud.require_credentials(url, {})


def test_credentials_in_the_url_are_refused_as_such() -> None:
    with pytest.raises(ConfigError, match="credentials") as caught:
        google_cloud.require_credentials(REFUSED["gs"], {})
    assert found_in(str(caught.value)) == []
