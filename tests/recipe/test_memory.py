"""A recipe's memory section, from a float .tflite to a bundle that is verified and made again."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundle.beside import put_evidence, repack
from cases.pipeline import Run, operators, run, samples, write_recipe
from command import edgefuse
from memory.nets import Net

from edgefuse.archive import read_members
from edgefuse.artifact import Signature
from edgefuse.errors import RecipeError
from edgefuse.tflite.read import read_model, signature_of

SIZE = (16, 24)
INT8 = "models/net_full_integer_quant.tflite"
pytestmark = pytest.mark.usefixtures("own_store")
Ran = Callable[..., Run]


def net(*, picture: bool = False) -> bytes:
    """Two padded strides; a pooled vector, or a picture, comes out."""
    made = Net(SIZE, integer=False)
    x = made.conv(made.pad(made.image, (1, 1), (1, 1)), 8, 3, 2, "VALID", "RELU6")
    x = made.block(made.block(x, 8), 12, 2)
    return made.finish(x if picture else made.pooled(x))


@pytest.fixture
def ran(tmp_path: Path) -> Ran:
    """``ran(memory, picture=False, target="host", until=None)`` runs a recipe with that section."""

    def go(
        memory: dict[str, Any],
        *,
        picture: bool = False,
        target: str = "host",
        until: str | None = None,
    ) -> Run:
        (tmp_path / "given.tflite").write_bytes(net(picture=picture))
        model = {
            "tflite": {"path": "given.tflite"},
            "inputs": [{"name": "picture", "shape": [1, *SIZE, 3]}],
        }
        shapes = {"picture": (*SIZE, 3)}
        data = samples(shapes, 40, seed=1), samples(shapes, 20, seed=2)
        gates = {"accuracy": {"min_sqnr_db": 10}}
        path = write_recipe(
            tmp_path, "net", model, *data, gates=gates, release=False, memory=memory, target=target
        )
        return run(path, until=until)

    return go


def evidence(ended: Run) -> dict[str, Any]:
    found = ended.report["memory"]
    assert isinstance(found, dict) and found, ended.error
    return found


def bundle_of(ended: Run) -> Path:
    assert ended.report["verdict"] == "pass", ended.error
    path = ended.out / "net.bundle.tar"
    put_evidence(path, recipe="net")
    return path


def test_padding_goes_and_every_bit_stays(ran: Ran) -> None:
    ended = ran({"padding": "turned"})
    made = ended.file("_full_integer_quant_shrunk.tflite")
    assert operators(ended.int8_file).count("PAD") == 2 and "PAD" not in operators(made)
    assert evidence(ended)["proof"] == {
        "kernels": "reference", "samples": 8, "bit_identical": True
    }  # fmt: skip
    members = read_members(bundle_of(ended))
    assert members[INT8] == made.read_bytes()
    manifest = json.loads(members["manifest.json"])
    assert manifest["memory"]["padding"] == "turned"
    assert not manifest["signature"]["inputs"][0]["turned"]


def test_the_bundle_is_made_again_from_what_the_target_decided(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = ran({"judged_by": "tflite_micro", "arena_bytes": 3200, "max_extra_multiply_adds": 1})
    bundle = bundle_of(ended)
    recipe = json.loads(read_members(bundle)["recipe.json"])
    assert recipe["memory"]["tiles"]["rows"] > 1 and recipe["memory"]["arena_bytes"] == 3200
    monkeypatch.chdir(ended.out.parent)
    told = edgefuse("verify", bundle, "--rebuild", "--sources", ended.out.parent)
    assert told.code == 0, told.err
    assert "same bytes" in told.out


@pytest.mark.parametrize(
    ("target", "memory", "kernels", "reversals", "other"),
    [
        # The larger arena of a turned network is none to take without a goal that allows it.
        ("host-tflite-runtime", {"padding": "turned", "arena_bytes": 6464}, "legacy", 2, "tflm"),
        ("tflm", {}, "micro", 1, "host"),
        ("host", {}, "xnnpack", 0, "tflm"),
    ],
)
def test_kernels_are_those_of_the_target_and_give_the_same_bytes_on_another(
    target: str, memory: dict[str, Any], kernels: str, reversals: int, other: str, ran: Ran
) -> None:
    ended = ran(memory, target=target, until="shrink")
    path = ended.file("_full_integer_quant_shrunk.tflite")
    made, chosen = path.read_bytes(), evidence(ended)["chosen"]
    assert chosen["kernels"] == kernels and chosen["edges"] is False
    assert operators(path).count("REVERSE_V2") == reversals
    again = ran(chosen, target=other, until="shrink")
    assert again.file("_full_integer_quant_shrunk.tflite").read_bytes() == made
    assert evidence(again)["chosen"] == chosen


def test_kernels_that_there_are_none_of(ran: Ran) -> None:
    with pytest.raises(RecipeError, match="legcy") as caught:
        ran({"kernels": "legcy"})
    assert "memory.kernels" in str(caught.value) and "legacy" in str(caught.value)


def test_a_goal_out_of_reach_is_a_failed_gate(ran: Ran) -> None:
    ended = ran({"judged_by": "tflite_micro", "arena_bytes": 64})
    assert ended.report["exit_code"] == 1 and not (ended.out / "net.bundle.tar").exists()
    assert "cannot keep to 64 bytes" in ended.error and "bound" in ended.error


class TestTurned:
    """A network whose picture whoever feeds it has to turn."""

    @pytest.fixture
    def ended(self, ran: Ran) -> Run:
        return ran({"padding": "turned", "reverse_input": False})

    def test_the_file_and_the_manifest_say_so(self, ended: Run) -> None:
        made = ended.file("_full_integer_quant_shrunk.tflite")
        assert "REVERSE_V2" not in operators(made)
        assert signature_of(read_model(made)).inputs[0].turned
        manifest = json.loads(read_members(bundle_of(ended))["manifest.json"])
        assert Signature.from_json(manifest["signature"]).inputs[0].turned
        assert not Signature.from_json(manifest["float_signature"]).inputs[0].turned

    def test_golden_pictures_are_turned_and_an_upright_one_is_rejected(self, ended: Run) -> None:
        bundle, name = bundle_of(ended), "golden/0/input_0.npy"
        assert edgefuse("verify", bundle).code == 0
        given = np.load(io.BytesIO(read_members(bundle)[name]))
        upright = io.BytesIO()
        np.save(upright, np.ascontiguousarray(given[:, ::-1, ::-1]))
        repack(bundle, members={name: upright.getvalue()})
        refused = edgefuse("verify", bundle)
        assert refused.code == 1 and "golden" in refused.out
        assert "Traceback" not in refused.err

    def test_a_picture_among_the_outputs_is_refused(self, ran: Ran) -> None:
        ended = ran({"padding": "turned", "reverse_input": False}, picture=True)
        assert ended.report["exit_code"] == 2 and "would come out turned" in ended.error


def test_auto_takes_another_form_than_one_that_turns_an_output(ran: Ran) -> None:
    asked = {"reverse_input": False, "arena_bytes": 9000, "max_extra_multiply_adds": 1}
    ended = ran({**asked, "judged_by": "tflite_micro"}, picture=True)
    assert ended.report["verdict"] == "pass", ended.error
    refused = [s["why_not"] for s in evidence(ended)["steps"] if not s["kept"]]
    assert any("would come out turned" in reason for reason in refused)


def test_tiles_without_an_end_name_their_place_in_the_recipe(ran: Ran) -> None:
    ended = ran({"tiles": {"rows": 2, "columns": 2}})
    assert ended.report["exit_code"] == 2 and "memory.tiles" in ended.error


def test_a_target_without_reverse_gets_another_form(ran: Ran, tmp_path: Path) -> None:
    listed = ["CONV_2D", "DEPTHWISE_CONV_2D", "MEAN", "ADD", "PAD", "QUANTIZE", "DEQUANTIZE"]
    target = {
        "name": "bare", "summary": "b", "transport": "local", "runtime": "litert",
        "kernels": "builtin", "support": {"operators": listed},
    }  # fmt: skip
    (tmp_path / "bare.yaml").write_text(json.dumps(target))
    asked = {"max_extra_multiply_adds": 0.5, "judged_by": "tflite_micro"}
    ended = ran(asked, target=str(tmp_path / "bare.yaml"))
    made = operators(ended.file("_full_integer_quant_shrunk.tflite"))
    assert "REVERSE_V2" not in made and "PAD" not in made
    assert evidence(ended)["chosen"]["padding"] == "wider_kernels"
