"""Signatures: what they cover, whose they are, and how keys are kept."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import edgefuse
from fake_stages import TEXT, Fakes, fakes

from bundle.beside import put_evidence
from edgefuse.bundle import evidence, signing
from edgefuse.errors import EdgefuseError, GateFailed, UsageError

__all__ = ["fakes"]


@pytest.fixture(autouse=True)
def own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keys that the person who runs the tests trusts are no matter here."""
    folder = tmp_path / "config" / "edgefuse" / "trusted_keys"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in (signing.TRUSTED, signing.PASSPHRASE):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "keys" / "release"
    signing.generate(path)
    return path


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "net.bundle.tar"
    path.write_bytes(b"bundle")
    put_evidence(path)
    return path


def public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


def test_a_signed_bundle_is_cleared_for_whoever_trusts_the_key(bundle: Path, key: Path) -> None:
    ended = edgefuse("sign", bundle, "--key", key)
    assert ended.code == 0 and "(host: pass)" in ended.out
    first = bundle.with_name("signature.json").read_bytes()
    assert edgefuse("sign", bundle, "--key", key).code == 0
    assert bundle.with_name("signature.json").read_bytes() == first, "it is deterministic"
    signed = evidence.require_passing(bundle, "host", public(key)).signed
    assert signed is not None and signed.trusted
    assert f"signed by trusted key {signed.key_id[:16]}" == signed.summary


def test_without_trusted_keys_it_only_holds_together(bundle: Path, key: Path) -> None:
    assert evidence.require_passing(bundle, "host").signed is None
    edgefuse("sign", bundle, "--key", key)
    signed = evidence.require_passing(bundle, "host").signed
    assert signed is not None and not signed.trusted and "no key is trusted here" in signed.summary


def test_trusted_keys_of_the_configuration(
    bundle: Path, key: Path, own_configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_configuration.mkdir(parents=True)
    (own_configuration / "release.pub").write_bytes(public(key).read_bytes())
    with pytest.raises(GateFailed, match="no signature beside the bundle"):
        evidence.require_passing(bundle, "host")
    edgefuse("sign", bundle, "--key", key)
    signed = evidence.require_passing(bundle, "host").signed
    assert signed is not None and signed.trusted
    monkeypatch.setenv(signing.TRUSTED, str(key.parent))
    signed = evidence.require_passing(bundle, "host").signed
    assert signed is not None and signed.trusted


def change(**changes: Any) -> Callable[[Path], None]:
    def edit(bundle: Path) -> None:
        path = bundle.with_name("signature.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return edit


def edit_statement(bundle: Path) -> None:
    path = bundle.with_name("signature.json")
    statement = json.loads(path.read_text())["statement"]
    change(statement={**statement, "about": "something else"})(bundle)


def edit_verdict(bundle: Path) -> None:
    put_evidence(bundle, permissions=["all"])


def edit_bundle(bundle: Path) -> None:
    bundle.write_bytes(b"Bundle")
    put_evidence(bundle)


def sign_by_another(bundle: Path) -> None:
    other = bundle.with_name("other")
    signing.generate(other)
    edgefuse("sign", bundle, "--key", other)


def claim_the_trusted_key(bundle: Path) -> None:
    """The signature of another key, under the name of the trusted one."""
    true = json.loads(bundle.with_name("signature.json").read_text())
    sign_by_another(bundle)
    change(key_id=true["key_id"], public_key=true["public_key"])(bundle)


TAMPERED: list[tuple[Callable[[Path], None], type[EdgefuseError], str]] = [
    (edit_verdict, GateFailed, "changed after signing"),
    (edit_bundle, GateFailed, "of another bundle"),
    (edit_statement, GateFailed, "statement is not one of a bundle"),
    (sign_by_another, GateFailed, "which is not trusted here"),
    (claim_the_trusted_key, GateFailed, "does not hold"),
    (change(signature="AAAA"), GateFailed, "does not hold"),
    (change(signature="?"), GateFailed, "does not hold"),
    (change(signature=None), GateFailed, "does not hold"),
    (change(statement=[]), GateFailed, "of another bundle"),
    (change(key_id="0" * 64), GateFailed, "key_id is not of its public key"),
    (change(public_key="AAAA"), GateFailed, "brings no public key"),
    (change(public_key=7), GateFailed, "brings no public key"),
    (change(algorithm="none"), GateFailed, "algorithm 'none'"),
    (change(schema=2), UsageError, "reads up to 1"),
    (lambda b: b.with_name("signature.json").write_text("{"), UsageError, "no readable"),
    (lambda b: b.with_name("signature.json").unlink(), GateFailed, "no signature beside"),
]


@pytest.mark.parametrize(("tamper", "kind", "said"), TAMPERED)
def test_what_was_tampered_with(
    bundle: Path, key: Path, tamper: Callable[[Path], None], kind: type[EdgefuseError], said: str
) -> None:
    edgefuse("sign", bundle, "--key", key)
    tamper(bundle)
    with pytest.raises(kind, match=said):
        evidence.require_passing(bundle, "host", public(key))


@pytest.mark.parametrize("name", ["signature.json", "evidence.json", "net.bundle.tar"])
def test_every_flipped_bit_is_noticed(bundle: Path, key: Path, name: str) -> None:
    edgefuse("sign", bundle, "--key", key)
    path = bundle.with_name(name)
    whole = path.read_bytes()
    for at in range(0, len(whole), 1 + len(whole) // 40):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises((GateFailed, UsageError)):
            evidence.require_passing(bundle, "host", public(key))
    path.write_bytes(whole)
    assert evidence.require_passing(bundle, "host", public(key)).signed


def test_keys_are_written_closed_and_never_over_others(tmp_path: Path) -> None:
    path = tmp_path / "new" / "release"
    before = os.umask(0)
    try:
        ended = edgefuse("keygen", path)
    finally:
        os.umask(before)
    assert ended.code == 0 and "keep it secret" in ended.out
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(public(path).stat().st_mode) == 0o644
    text = path.read_bytes()
    again = edgefuse("keygen", path)
    assert again.code == 2 and "exists already" in again.err and path.read_bytes() == text
    path.unlink()
    half = edgefuse("keygen", path)
    assert half.code == 2 and "release.pub" in half.err and not path.exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_private_key_that_others_may_read(bundle: Path, key: Path, mode: int) -> None:
    key.chmod(mode)
    ended = edgefuse("sign", bundle, "--key", key)
    assert ended.code == 2 and f"mode {mode:04o}" in ended.err and "chmod 600" in ended.err
    assert not bundle.with_name("signature.json").exists()


def test_a_passphrase_comes_from_a_file_or_the_environment(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, key = tmp_path / "secret", tmp_path / "release"
    secret.write_text("correct horse\n")
    loose = edgefuse("keygen", key, "--passphrase-file", secret)
    assert loose.code == 2 and "chmod 600" in loose.err and not key.exists()
    secret.chmod(0o600)
    assert edgefuse("keygen", key, "--passphrase-file", secret).code == 0
    assert b"ENCRYPTED" in key.read_bytes()
    without = edgefuse("sign", bundle, "--key", key)
    assert without.code == 2 and "has a passphrase" in without.err
    monkeypatch.setenv(signing.PASSPHRASE, "battery staple")
    wrong = edgefuse("sign", bundle, "--key", key)
    assert wrong.code == 2 and "wrong passphrase" in wrong.err and "battery" not in wrong.err
    monkeypatch.setenv(signing.PASSPHRASE, "correct horse")
    assert edgefuse("sign", bundle, "--key", key).code == 0
    secret.write_text("\n")
    empty = edgefuse("sign", bundle, "--key", key, "--passphrase-file", secret)
    assert empty.code == 2 and "passphrase is empty" in empty.err


def other_algorithm(path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    made = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(
        made.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    )
    public(path).write_bytes(
        made.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: path.write_bytes(b"no key"), "no private key"),
        (lambda path: path.write_bytes(b"x" * 70_000), "too large"),
        (lambda path: path.write_bytes(public(path).read_bytes()), "a public key cannot sign"),
        (other_algorithm, "not an Ed25519 key"),
    ],
)
def test_what_is_no_private_key(bundle: Path, key: Path, make: Any, said: str) -> None:
    make(key)
    ended = edgefuse("sign", bundle, "--key", key)
    assert ended.code == 2 and said in ended.err and len(ended.messages) == 1


def test_what_is_no_public_key(bundle: Path, key: Path) -> None:
    for given, said in ((key, "no public key"), (key.with_name("none"), "cannot be read")):
        with pytest.raises(UsageError, match=said):
            evidence.require_passing(bundle, "host", given)
    other_algorithm(key)
    with pytest.raises(UsageError, match="not an Ed25519 key"):
        evidence.require_passing(bundle, "host", public(key))


def test_only_what_lies_together_is_signed(bundle: Path, key: Path) -> None:
    nothing = edgefuse("sign", bundle.with_name("none"), "--key", key)
    assert nothing.code == 2 and "no such bundle" in nothing.err
    bundle.write_bytes(b"Bundle")
    other = edgefuse("sign", bundle, "--key", key)
    assert other.code == 1 and "the evidence is for bundle" in other.err
    bundle.with_name("evidence.json").unlink()
    assert edgefuse("sign", bundle, "--key", key).code == 2


def test_a_run_signs_what_passed(fakes: Fakes, key: Path) -> None:
    words = ("run", fakes.folder / "recipe.yaml", "--out", fakes.out, "-q", "--sign", key)
    assert edgefuse(*words).code == 0
    bundle = fakes.out / "tiny.bundle.tar"
    path = bundle.with_name("signature.json")
    data = bundle.with_name("evidence.json").read_bytes()
    sha256 = json.loads(data)["bundle_sha256"]
    signed = signing.check_signature(path, sha256, data, public(key))
    assert signed is not None and signed.trusted
    before = path.read_bytes()
    assert edgefuse(*words[:-2]).code == 0
    assert path.read_bytes() == before, "a cached run measures nothing, so the signature holds"
    assert edgefuse(*words[:-2], "--measure").code == 0
    assert path.exists() is (bundle.with_name("evidence.json").read_bytes() == data)
    fakes.figures["gate_two"] = (9.0, 8.0)
    assert edgefuse(*words, "--measure").code == 1
    assert not path.exists() and not bundle.exists()


def test_a_key_that_cannot_be_used_ends_it_before_anything_runs(fakes: Fakes, key: Path) -> None:
    key.chmod(0o644)
    (fakes.folder / "recipe.yaml").write_text(TEXT + "release: true\n")
    for command in (("run",), ("release",)):
        ended = edgefuse(*command, fakes.folder / "recipe.yaml", "--out", fakes.out, "--sign", key)
        assert ended.code == 2 and not fakes.ran and not fakes.out.exists(), ended.err
