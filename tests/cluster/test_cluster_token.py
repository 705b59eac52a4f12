"""Where the cluster's token comes from, and what its proofs are bound to."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.cluster.cluster_token import ClusterToken
from keras_dist_callbacks.cluster.rendezvous import Hello, prove

SECRET = "a secret of more than 16 characters"  # noqa: S105 - of tests only


def test_without_the_variables_there_is_no_token() -> None:
    assert ClusterToken.detect({"HOME": "/"}) is None


def test_the_variable_and_the_file_give_the_same_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"  {SECRET}\n\n")
    assert ClusterToken.detect({"KDC_CLUSTER_TOKEN": SECRET}) == ClusterToken.detect(
        {"KDC_CLUSTER_TOKEN_FILE": str(path)}
    )


def test_the_environment_of_the_process_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDC_CLUSTER_TOKEN", SECRET)
    assert ClusterToken.detect() == ClusterToken(SECRET.encode())


@pytest.mark.parametrize(
    ("content", "match"),
    [("", "is empty; make one with: python -c"), (" \n", "is empty"), ("x" * 5000, "more than 4096 characters"),
     ("x" * 4096 + "\n" + "y" * 4096, "more than 4096 characters"),
     ("123456789012345", "fewer than 16 characters; make one with: python -c .import secrets; print")],
)  # fmt: skip
@pytest.mark.parametrize("is_file", [False, True])
def test_what_is_not_a_token_is_refused(tmp_path: Path, content: str, match: str, is_file: bool) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    environ = {"KDC_CLUSTER_TOKEN_FILE": str(path)} if is_file else {"KDC_CLUSTER_TOKEN": content}
    with pytest.raises(ConfigError, match=match) as caught:
        ClusterToken.detect(environ)
    assert (content.strip() or "not this") not in str(caught.value)
    if is_file:
        assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory"), ("a\0b", "null")):
        with pytest.raises(ConfigError, match=f"KDC_CLUSTER_TOKEN_FILE names .* cannot be read: .*{why}"):
            ClusterToken.detect({"KDC_CLUSTER_TOKEN_FILE": str(path)})
    with pytest.raises(ConfigError, match="cannot be read"):
        ClusterToken.detect({"KDC_CLUSTER_TOKEN_FILE": ""})


def test_an_endless_file_is_not_read_to_its_end() -> None:
    with pytest.raises(ConfigError, match="more than 4096 characters"):
        ClusterToken.detect({"KDC_CLUSTER_TOKEN_FILE": "/dev/urandom"})


def test_both_variables_are_too_many() -> None:
    with pytest.raises(ConfigError, match="KDC_CLUSTER_TOKEN and KDC_CLUSTER_TOKEN_FILE are both set"):
        ClusterToken.detect({"KDC_CLUSTER_TOKEN": SECRET, "KDC_CLUSTER_TOKEN_FILE": "/a"})


def test_a_token_is_not_printed() -> None:
    token = ClusterToken(SECRET.encode())
    assert SECRET not in repr(token)
    try:
        token.sign(object())
    except TypeError as error:
        printed = traceback.TracebackException.from_exception(error, capture_locals=True).format()
        assert SECRET not in "".join(printed)


def test_a_proof_is_good_for_one_side_of_one_conversation() -> None:
    token, hello, nonce = ClusterToken(SECRET.encode()), Hello("c" * 64, 1, "a" * 64, has_token=True), "b" * 64
    proof = prove(token, "worker", hello, nonce)
    assert proof == prove(ClusterToken(SECRET.encode()), "worker", hello, nonce)
    others = [
        prove(token, "chief", hello, nonce),
        prove(token, "go", hello, nonce),
        prove(ClusterToken(b"another secret of the right length"), "worker", hello, nonce),
        prove(None, "worker", hello, nonce),
        prove(token, "worker", Hello("d" * 64, 1, "a" * 64, has_token=True), nonce),
        prove(token, "worker", Hello("c" * 64, 2, "a" * 64, has_token=True), nonce),
        prove(token, "worker", Hello("c" * 64, 1, "c" * 64, has_token=True), nonce),
        prove(token, "worker", hello, "c" * 64),
        prove(token, "worker", Hello("c" * 64, 1, "b" * 64, has_token=True), "a" * 64),
    ]
    assert proof not in others
    assert len(set(others)) == len(others)
