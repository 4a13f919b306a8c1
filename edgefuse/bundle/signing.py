"""Signatures: who vouches for a bundle and for what was measured on it.

::

    signature.json, beside bundle and evidence
      schema       1
      statement    bundle_sha256 and evidence_sha256, and that it is about these
      algorithm    ed25519
      key_id       SHA-256 of the raw public key
      public_key   the raw public key in base64
      signature    of the statement as canonical JSON, in base64

So a signature covers every byte of the bundle and every byte of evidence.json: an edited verdict
is as plain as an edited model. The scheme is Ed25519 (RFC 8032) by the library ``cryptography``;
keys are PEM files (PKCS#8, SubjectPublicKeyInfo) that OpenSSL reads too.

Which keys are trusted is said by ``--key FILE``, else by the ``*.pub`` files in the folder
``EDGEFUSE_TRUSTED_KEYS``, else in ``edgefuse/trusted_keys`` below the user's configuration folder:
never by the bundle or its recipe. Where any key is trusted, a bundle must be signed by one of them.
Where none is, a signature is checked with the public key that it brings: that shows whether the
files belong together, not whose they are, and is told so.

A private key that others may read is refused. Its passphrase comes from a file or from the
environment variable ``EDGEFUSE_KEY_PASSPHRASE``, never from the command line.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefuse.artifact import canonical_json, digest_bytes
from edgefuse.bundle.schemas import json_bytes, read_document
from edgefuse.errors import GateFailed, UsageError
from edgefuse.store import disk_error, is_disk_error

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

SCHEMA = 1
PASSPHRASE = "EDGEFUSE_KEY_PASSPHRASE"
TRUSTED = "EDGEFUSE_TRUSTED_KEYS"
_MAX_BYTES = 1 << 16  # of a key or passphrase file
_ABOUT = "edgefuse bundle and evidence"


@dataclass(frozen=True)
class Signed:
    """A signature that holds.

    Attributes:
        key_id: of the key that made it.
        trusted: whether that key is one of those trusted here; False only where none is.
    """

    key_id: str
    trusted: bool

    @property
    def summary(self) -> str:
        if self.trusted:
            return f"signed by trusted key {self.key_id[:16]}"
        return f"signed by key {self.key_id[:16]}, no key is trusted here: give one by --key"


def generate(path: Path, passphrase_file: Path | None = None) -> str:
    """Write a new key pair: the private key to ``path``, the public one to ``path``.pub.

    Returns:
        The key's id.

    Raises:
        UsageError: one of the files exists, or cannot be written.
    """
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    secret = _passphrase(passphrase_file)
    key = Ed25519PrivateKey.generate()
    hidden = form.BestAvailableEncryption(secret) if secret else form.NoEncryption()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, hidden)
    public = key.public_key().public_bytes(
        form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo
    )
    beside = path.with_name(f"{path.name}.pub")
    _create(path, private, 0o600)
    try:
        _create(beside, public, 0o644)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return _id(key.public_key())


def _create(path: Path, data: bytes, mode: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(descriptor)
    except FileExistsError:
        raise UsageError(
            "exists already",
            where=str(path),
            hint="a key is never overwritten: choose another name",
        ) from None
    except OSError as error:
        if is_disk_error(error):
            raise disk_error(error, path) from error
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from None


def load_private(path: Path, passphrase_file: Path | None = None) -> Ed25519PrivateKey:
    """A private key from its PEM file.

    Raises:
        UsageError: not readable, readable for others, no Ed25519 key, wrong or missing passphrase.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if b"PUBLIC KEY" in _read(path, secret=False).partition(b"\n")[0]:
        raise UsageError(
            "a public key cannot sign", where=str(path), hint="give the private one, without .pub"
        )
    data, secret = _read(path, secret=True), _passphrase(passphrase_file)
    encrypted = b"ENCRYPTED" in data.partition(b"\n")[0]
    if encrypted and secret is None:
        raise UsageError(
            "the private key has a passphrase",
            where=str(path),
            hint=f"give its file by --passphrase-file, or set {PASSPHRASE}",
        )
    try:
        key = load_pem_private_key(data, secret if encrypted else None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        what = "wrong passphrase, or no private key" if encrypted else "no private key in PEM form"
        raise UsageError(what, where=str(path), hint="make one: edgefuse keygen PATH") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError("not an Ed25519 key", where=str(path), hint="edgefuse keygen PATH")
    return key


def _read(path: Path, *, secret: bool) -> bytes:
    """A small file's bytes; a secret one must be closed to others."""
    try:
        with path.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if secret and mode & 0o077:
        raise UsageError(
            f"others may read it or write to it (mode {mode & 0o777:04o})",
            where=str(path),
            hint=f"close it: chmod 600 {path}",
        )
    if len(data) > _MAX_BYTES:
        raise UsageError("too large for a key", where=str(path))
    return data


def _passphrase(file: Path | None) -> bytes | None:
    if file is not None:
        secret = _read(file, secret=True).rstrip(b"\r\n")
        if not secret:
            raise UsageError("the passphrase is empty", where=str(file))
        return secret
    return os.environ.get(PASSPHRASE, "").encode() or None


def trusted_keys(key: Path | None) -> dict[str, Ed25519PublicKey]:
    """Public keys by id: the one given, else those of the user's configuration; empty if none.

    Raises:
        UsageError: a file that holds no Ed25519 public key.
    """
    files = [key] if key is not None else sorted(trusted_folder().glob("*.pub"))
    loaded = (_load_public(file) for file in files)
    return {_id(public): public for public in loaded}


def trusted_folder() -> Path:
    """Where the keys lie that are trusted when none is given."""
    if given := os.environ.get(TRUSTED):
        return Path(given)
    configuration = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(configuration).expanduser() / "edgefuse" / "trusted_keys"


def _load_public(path: Path) -> Ed25519PublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(_read(path, secret=False))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UsageError(
            "no public key in PEM form", where=str(path), hint="it ends in .pub beside the private"
        ) from None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError("not an Ed25519 key", where=str(path), hint="edgefuse keygen PATH")
    return key


def _id(key: Ed25519PublicKey) -> str:
    return digest_bytes(key.public_bytes_raw())


def sign(key: Ed25519PrivateKey, bundle_sha256: str, evidence: bytes) -> bytes:
    """The bytes of signature.json; equal arguments give equal bytes."""
    public = key.public_key()
    statement = _statement(bundle_sha256, evidence)
    return json_bytes(
        {
            "schema": SCHEMA,
            "statement": statement,
            "algorithm": "ed25519",
            "key_id": _id(public),
            "public_key": base64.b64encode(public.public_bytes_raw()).decode(),
            "signature": base64.b64encode(key.sign(canonical_json(statement).encode())).decode(),
        }
    )


def _statement(bundle_sha256: str, evidence: bytes) -> dict[str, Any]:
    return {
        "about": _ABOUT,
        "schema": SCHEMA,
        "bundle_sha256": bundle_sha256,
        "evidence_sha256": digest_bytes(evidence),
    }


def check_signature(
    path: Path, bundle_sha256: str, evidence: bytes, key: Path | None = None
) -> Signed | None:
    """Check signature.json against what it is to cover; None where there is none and none is due.

    Args:
        path: where signature.json would lie.
        key: the only trusted public key; None: those of the user's configuration.

    Raises:
        GateFailed: no signature where one is due, one by a key that is not trusted, or one that
            does not hold.
        UsageError: a trusted key that is none; a signature of another schema.
    """
    trusted = trusted_keys(key)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if not trusted:
            return None
        raise GateFailed(
            "no signature beside the bundle, though keys are trusted here",
            where=str(path),
            hint="sign it: edgefuse sign BUNDLE --key PRIVATE_KEY",
        ) from None
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from None
    document = read_document(data, SCHEMA, "signature.json", str(path))
    key_id, public = _signer(document, trusted, path)
    _require_about(document, bundle_sha256, evidence, path)
    _require_signed(public, document, path)
    return Signed(key_id, bool(trusted))


def _signer(
    document: Mapping[str, Any], trusted: Mapping[str, Ed25519PublicKey], path: Path
) -> tuple[str, Ed25519PublicKey]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if document.get("algorithm") != "ed25519":
        raise GateFailed(
            f"signed by algorithm {document.get('algorithm')!r}, not by ed25519", where=str(path)
        )
    try:
        public = Ed25519PublicKey.from_public_bytes(_decoded(document.get("public_key")))
    except ValueError:
        raise GateFailed("the signature brings no public key", where=str(path)) from None
    key_id = _id(public)
    if document.get("key_id") != key_id:
        raise GateFailed("the signature's key_id is not of its public key", where=str(path))
    if trusted and key_id not in trusted:
        raise GateFailed(
            f"signed by key {key_id[:16]}, which is not trusted here",
            where=str(path),
            hint=f"trusted: {', '.join(known[:16] for known in sorted(trusted))}",
        )
    return key_id, public


def _require_about(
    document: Mapping[str, Any], bundle_sha256: str, evidence: bytes, path: Path
) -> None:
    said, due = document.get("statement"), _statement(bundle_sha256, evidence)
    if not isinstance(said, dict) or said.get("bundle_sha256") != due["bundle_sha256"]:
        raise GateFailed(
            "the signature is of another bundle", where=str(path), hint="take both from one place"
        )
    if said.get("evidence_sha256") != due["evidence_sha256"]:
        raise GateFailed(
            "the signature is of another evidence.json: it was changed after signing",
            where=str(path),
            hint="run the recipe again, or sign again if you know why",
        )
    if said != due:
        raise GateFailed("the signature's statement is not one of a bundle", where=str(path))


def _require_signed(public: Ed25519PublicKey, document: Mapping[str, Any], path: Path) -> None:
    from cryptography.exceptions import InvalidSignature

    try:
        signature = _decoded(document.get("signature"))
        public.verify(signature, canonical_json(document["statement"]).encode())
    except (ValueError, InvalidSignature):
        raise GateFailed(
            "the signature does not hold: its key did not sign this",
            where=str(path),
            hint="do not use this bundle; take it anew from whoever signed it",
        ) from None


def _decoded(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, binascii.Error, ValueError):
        raise ValueError("not base64") from None
