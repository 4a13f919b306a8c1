"""verify: every kind of tampering is named, whoever hides it; a rebuild gives the same bytes."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cases.tflite_file import conv_file
from command import Ended, edgefuse

from bundle.beside import put_evidence, repack
from edgefuse.archive import packed, read_members
from edgefuse.bundle import signing
from edgefuse.bundle.verify import Verification, _array
from edgefuse.errors import GateFailed, RecipeError
from edgefuse.rebuild import _require_known_code
from edgefuse.tflite.read import parse_model

INT8 = "models/net_full_integer_quant.tflite"
GOLDEN = "golden/0/output_0.npy"


def verify(bundle: Path, *words: str | Path) -> tuple[Ended, dict[str, Any]]:
    """The command's end, and its checks by name."""
    ended = edgefuse("verify", bundle, "--json", *words)
    document = json.loads(ended.out)
    assert document["exit_code"] == ended.code and (document["verdict"] == "pass") is not ended.code
    return ended, {row["name"]: row for row in document["checks"]}


def verdicts(checks: dict[str, Any]) -> dict[str, str]:
    return {name: row["verdict"] for name, row in checks.items()}


def spans(bundle: Path) -> dict[str, tuple[int, int]]:
    """Where each member's bytes lie in the archive."""
    with tarfile.open(bundle) as archive:
        return {m.name: (m.offset_data, m.size) for m in archive}


def flip(bundle: Path, at: int) -> None:
    data = bytearray(bundle.read_bytes())
    data[at] ^= 1
    bundle.write_bytes(data)


def test_a_whole_bundle_passes(whole: Path) -> None:
    ended, checks = verify(whole)
    assert ended.code == 0 and not ended.err
    assert verdicts(checks) == {
        "archive": "pass", "manifest": "pass", "members": "pass", "evidence": "pass",
        "signature": "none", "golden": "pass",
    }  # fmt: skip
    assert "bit-exact with the reference kernels" in checks["golden"]["detail"]
    table = edgefuse("verify", whole, "--target", "host")
    assert table.code == 0 and table.out.count("pass") >= 6 and str(whole) in table.out
    assert "passed on host" in table.out


def test_one_flipped_byte_of_every_member(whole: Path) -> None:
    """The evidence is rewritten for the flipped bundle, as who tampers with it would."""
    before = whole.read_bytes()
    found = spans(whole)
    assert {name.partition("/")[0] for name in found} == {
        "golden", "manifest.json", "models", "recipe.json", "sbom.cdx.json"
    }  # fmt: skip
    for name, (begin, size) in found.items():
        for at in {begin, begin + size // 2, begin + size - 1}:
            whole.write_bytes(before)
            flip(whole, at)
            put_evidence(whole, recipe="net")
            ended, checks = verify(whole)
            if name == "manifest.json":
                continue  # where it still is one, only evidence and signature know better
            assert ended.code in (1, 2, 3), (name, at, checks)
            assert "fail" in (checks["members"]["verdict"], checks["manifest"]["verdict"]), name


def test_a_flipped_byte_of_the_manifest_departs_from_evidence_and_signature(whole: Path) -> None:
    key = whole.with_name("key")
    signing.generate(key)
    assert edgefuse("sign", whole, "--key", key).code == 0
    trusted = ("--key", whole.with_name("key.pub"))
    assert verdicts(verify(whole, *trusted)[1])["signature"] == "pass"
    begin, _ = spans(whole)["manifest.json"]
    flip(whole, begin + whole.read_bytes()[begin:].index(b'"net"') + 1)
    ended, checks = verify(whole, *trusted)
    assert ended.code == 1 and verdicts(checks)["evidence"] == "fail"
    put_evidence(whole, recipe="net")
    ended, checks = verify(whole, *trusted)
    assert ended.code == 1 and verdicts(checks)["evidence"] == "pass"
    assert "of another bundle" in checks["signature"]["detail"]


@pytest.mark.parametrize("place", ["mode", "owner", "padding", "end"])
def test_bytes_between_the_members(whole: Path, place: str) -> None:
    begin, size = spans(whole)[INT8]
    at = {
        "mode": begin - 512 + 104, "owner": begin - 512 + 265, "padding": begin + size,
        "end": whole.stat().st_size - 5000,
    }[place]  # fmt: skip
    flip(whole, at)
    put_evidence(whole, recipe="net")
    ended, checks = verify(whole)
    assert ended.code == 3 and verdicts(checks)["archive"] == "fail"
    assert verdicts(checks)["golden"] == "not checked"


def rewrite(change: Callable[[dict[str, bytes]], None]) -> Callable[[Path], None]:
    """Change the members without telling the manifest."""

    def edit(bundle: Path) -> None:
        members = read_members(bundle)
        change(members)
        bundle.write_bytes(packed(members))
        put_evidence(bundle, recipe="net")

    return edit


def escaping(bundle: Path) -> None:
    with tarfile.open(bundle, "a") as archive:
        info = tarfile.TarInfo("../outside")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))


def cut(bundle: Path) -> None:
    bundle.write_bytes(bundle.read_bytes()[:-700])


def with_schema(schema: Any) -> Callable[[Path], None]:
    return lambda bundle: repack(bundle, manifest={"schema": schema})


def another_model(bundle: Path) -> None:
    """A sound model of the same form, with every digest corrected."""
    members = read_members(bundle)
    model = bytearray(members[INT8])
    parsed = parse_model(members[INT8])
    weight = next(t for t in parsed.tensors if t.is_constant and t.dtype == "int8")
    begin, length = parsed.spans[weight.buffer]
    for at in range(begin, begin + length):
        model[at] ^= 0x20
    repack(bundle, members={INT8: bytes(model)})


def golden_output(bundle: Path) -> None:
    stream = io.BytesIO()
    array = np.load(io.BytesIO(read_members(bundle)[GOLDEN]))
    array.flat[0] ^= 1
    np.save(stream, array)
    repack(bundle, members={GOLDEN: stream.getvalue()})


def golden(**changes: Any) -> Callable[[Path], None]:
    def edit(bundle: Path) -> None:
        manifest = json.loads(read_members(bundle)["manifest.json"])
        repack(bundle, manifest={"golden": {**manifest["golden"], **changes}})

    return edit


def vector(side: str, **members: str) -> dict[str, Any]:
    both = {"inputs": {"x/in:0": "golden/0/input_0.npy"}, "outputs": {"y/out:0": GOLDEN}}
    return {"vectors": [{**both, side: members}]}


TAMPERED: list[tuple[Callable[[Path], None], int, str, str]] = [
    (rewrite(lambda m: m.pop("sbom.cdx.json") and None), 1, "members", "archive misses sbom.cdx"),
    (rewrite(lambda m: m.update(extra=b"x")), 1, "members", "knows nothing of extra"),
    (rewrite(lambda m: m.pop("manifest.json") and None), 3, "archive", "no manifest.json in it"),
    (escaping, 3, "archive", "would leave the folder"),
    (cut, 3, "archive", "its end is missing"),
    (with_schema(3), 2, "manifest", "schema 3, this edgefuse reads up to 2"),
    (with_schema(1), 2, "manifest", "schema 1, this edgefuse reads 2"),
    (with_schema("2"), 2, "manifest", "schema '2'"),
    (lambda b: repack(b, manifest={"golden": {}}), 2, "manifest", "incomplete: golden.vectors"),
    (lambda b: repack(b, manifest={"lineage": None}), 2, "manifest", "incomplete: lineage"),
    (golden(vectors=[]), 2, "manifest", "incomplete: golden.vectors"),
    (another_model, 1, "golden", "departs from the golden one"),
    (golden_output, 1, "golden", "departs from the golden one"),
    (golden(kernels="guessed"), 3, "golden", "unknown kernels 'guessed'"),
    (golden(kernels="builtin", runtime="ai-edge-litert 0.1"), 4, "golden", "installed is ai-edge"),
    (golden(**vector("outputs", other=GOLDEN)), 1, "golden", "golden are ['other']"),
    (golden(**vector("outputs", **{"y/out:0": "recipe.json"})), 1, "golden", "is no array"),
    (golden(**vector("inputs", **{"x/in:0": "/etc/passwd"})), 1, "golden", "archive does not hold"),
    (lambda b: repack(b, manifest={"models": {}}), 1, "golden", "names None"),
    (lambda b: b.write_bytes(b.read_bytes() + bytes(512)) and None, 3, "archive", "in the form"),
    (lambda b: b.with_name("evidence.json").unlink(), 2, "evidence", "no readable evidence"),
    (lambda b: put_evidence(b, verdict="error") and None, 1, "evidence", "on no target"),
    (lambda b: put_evidence(b, bundle_sha256="0" * 64) and None, 1, "evidence", "for bundle 0000"),
    (lambda b: put_evidence(b, schema=3) and None, 2, "evidence", "reads up to 2"),
    (lambda b: b.with_name("signature.json").write_text("{}") and None, 2, "signature", "schema"),
]


@pytest.mark.parametrize(("tamper", "code", "check", "said"), TAMPERED)
def test_what_was_tampered_with(
    whole: Path, tamper: Callable[[Path], None], code: int, check: str, said: str
) -> None:
    tamper(whole)
    ended, checks = verify(whole)
    assert ended.code == code and len(ended.messages) == 1, ended.err
    failed = {n: row for n, row in checks.items() if row["verdict"] in ("fail", "inconclusive")}
    place = check if check in failed else "manifest"
    assert said in failed[place]["detail"], failed
    assert not (whole.parent.parent / "outside").exists()


def test_a_target_and_a_key_that_are_asked_for(whole: Path) -> None:
    ended, checks = verify(whole, "--target", "rpi4")
    assert ended.code == 1 and "judged on target host, not on rpi4" in checks["evidence"]["detail"]
    key = whole.with_name("key")
    signing.generate(key)
    ended, checks = verify(whole, "--key", whole.with_name("key.pub"))
    assert ended.code == 1 and "no signature beside" in checks["signature"]["detail"]
    missing = edgefuse("verify", whole.with_name("none"))
    assert missing.code == 2 and "no such bundle" in missing.err


def test_permissions_are_told(whole: Path) -> None:
    put_evidence(whole, recipe="net", permissions=['check.permit_float: ["SOFTMAX"]'])
    _, checks = verify(whole)
    assert checks["evidence"]["detail"].endswith('permitted: check.permit_float: ["SOFTMAX"]')


def test_a_rebuild_gives_the_same_bytes(whole: Path, made: Path) -> None:
    ended, checks = verify(whole, "--rebuild", "--sources", made)
    assert ended.code == 0, ended.err
    assert checks["rebuild"]["detail"].startswith("same bytes, ")


def test_nothing_is_rebuilt_of_what_does_not_verify(whole: Path, made: Path) -> None:
    golden_output(whole)
    ended, checks = verify(whole, "--rebuild", "--sources", made)
    assert ended.code == 1 and checks["rebuild"]["detail"] == "needs golden"


def test_the_first_stage_that_departs_is_named(whole: Path, made: Path) -> None:
    manifest = json.loads(read_members(whole)["manifest.json"])
    toolchain = {**manifest["toolchain"], "numpy": "1.0"}
    lineage = {**manifest["lineage"], "quantize": "0" * 64}
    repack(whole, manifest={"lineage": lineage, "toolchain": toolchain})
    ended, checks = verify(whole, "--rebuild", "--sources", made)
    assert ended.code == 1
    assert checks["rebuild"]["detail"] == "the rebuild departs, first at stage quantize"
    assert checks["rebuild"]["hint"].startswith("other versions: numpy 1.0, here ")


def test_a_member_that_the_recipe_does_not_make(whole: Path, made: Path) -> None:
    repack(whole, members={"sbom.cdx.json": b"{}"})
    ended, checks = verify(whole, "--rebuild", "--sources", made)
    assert ended.code == 1
    assert checks["rebuild"]["detail"].endswith("only at stage package, in sbom.cdx.json")


def test_sources_that_are_others(whole: Path, made: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ended, checks = verify(whole, "--rebuild", "--sources", elsewhere)
    assert ended.code == 2 and len(ended.messages) == 1
    for path in made.iterdir():
        if path.is_file():
            shutil.copy(path, elsewhere)
    np.savez(elsewhere / "net_evaluation.npz", **{"x/in:0": np.ones((20, 8, 8, 3), np.float32)})
    ended, checks = verify(whole, "--rebuild", "--sources", elsewhere)
    assert ended.code == 3 and "data.evaluation is not that of the bundle" in ended.err
    shutil.copy(made / "net_evaluation.npz", elsewhere)
    (elsewhere / "given.tflite").write_bytes(conv_file(8, signature=False))
    ended, checks = verify(whole, "--rebuild", "--sources", elsewhere)
    assert ended.code in (1, 2, 3) and checks["rebuild"]["verdict"] == "fail"


@pytest.mark.parametrize(
    ("callable", "known"),
    [
        ("edgefuse.zoo.mobilenet_v2:mobilenet_v2", True),
        ("beside:make", True),
        ("package.inner:make", True),
        ("os:system", False),
        ("edgefuse.cli:main", False),
        ("edgefuse.zoo.mobilenet_v2:torch.hub.load", False),
        ("beside:os.system", False),
    ],
)
def test_an_unsigned_recipe_calls_only_known_code(
    tmp_path: Path, callable: str, known: bool
) -> None:
    (tmp_path / "beside.py").touch()
    (tmp_path / "package").mkdir()
    (tmp_path / "package/inner.py").touch()
    torch = SimpleNamespace(callable=callable)
    job: Any = SimpleNamespace(
        base=tmp_path, recipe=SimpleNamespace(model=SimpleNamespace(torch=torch))
    )
    if known:
        _require_known_code(job)
    else:
        with pytest.raises(RecipeError, match="neither edgefuse's nor in"):
            _require_known_code(job)


def huge_array() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.zeros(3, np.int8))
    return stream.getvalue().replace(b"(3,)", b"(9999999999999,)")


@pytest.mark.parametrize("data", [huge_array(), b"", b"PK\x05\x06" + bytes(18)])
def test_a_golden_array_that_is_none_is_refused(data: bytes, tmp_path: Path) -> None:
    """The first says that it holds nine terabytes; the last is an empty archive of arrays."""
    made = Verification(tmp_path / "b.bundle.tar", "", members={"golden/0/input_0.npy": data})
    with pytest.raises(GateFailed, match="is no array"):
        _array(made, "golden/0/input_0.npy", "golden")
