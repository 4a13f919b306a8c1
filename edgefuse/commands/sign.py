"""``edgefuse keygen`` and ``edgefuse sign``: keys of the user's, and signatures made with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edgefuse.artifact import digest_file
from edgefuse.bundle import evidence, signing
from edgefuse.bundle.schemas import EVIDENCE, SIGNATURE
from edgefuse.errors import UsageError
from edgefuse.store import write_changed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def make_keys(path: Path, passphrase_file: Path | None) -> Iterator[str]:
    """Write a key pair; yields a line for each file.

    Raises:
        UsageError: a file exists or cannot be written.
    """
    key_id = signing.generate(path, passphrase_file)
    yield f"private key {path} (keep it secret), id {key_id[:16]}"
    yield f"public key {path}.pub (trust it: --key, or copy it to {signing.trusted_folder()})"


def sign_bundle(bundle: Path, key: Path, passphrase_file: Path | None) -> str:
    """Sign a bundle together with the evidence beside it, as both lie there.

    Raises:
        UsageError: no bundle, no evidence, a key that cannot be used.
        GateFailed: the evidence is about another bundle.
    """
    return put_signature(bundle, signing.load_private(key, passphrase_file))


def put_signature(bundle: Path, key: Ed25519PrivateKey) -> str:
    """Write signature.json beside a bundle; says what it covers.

    Raises:
        UsageError: no bundle, or no evidence beside it.
        GateFailed: the evidence is about another bundle.
        StoreError: full disk, missing permission.
    """
    if not bundle.is_file():
        raise UsageError(f"no such bundle: {bundle}", hint="make one with `edgefuse run`")
    place = bundle.with_name(EVIDENCE)
    data = evidence.read(place)
    document = evidence.parsed(data, place)
    sha256 = digest_file(bundle)
    evidence.require_bound(bundle, document, sha256)
    path = bundle.with_name(SIGNATURE)
    write_changed(path, signing.sign(key, sha256, data))
    said = ", ".join(f"{n}: {j['verdict']}" for n, j in sorted(document["targets"].items()))
    return f"{path}  signs {sha256[:12]} ({said or 'judged nowhere'})"
