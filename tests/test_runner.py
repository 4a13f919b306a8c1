"""Running: reuse, gates that are all heard, damage, full disks, what the output stands for."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from command import edgefuse
from fake_stages import Fakes, fakes

from edgefuse.errors import DeviceUnavailable, GateFailed, Inconclusive, StoreError, ToolError
from edgefuse.plan import Selection

__all__ = ["fakes"]

ALL = ["alpha", "beta", "gate_one", "gate_two", "seal"]
BUNDLE = {"tiny.bundle.tar", "bundle/manifest.json", "bundle/models/m"}


def test_first_run_makes_everything_and_the_second_nothing(fakes: Fakes) -> None:
    first = fakes.run()
    assert first.exit_code == 0 and fakes.ran == ALL
    assert fakes.published() == {"tiny_alpha.onnx", "tiny_beta.onnx", *BUNDLE}
    before = {p: p.stat().st_mtime_ns for p in fakes.out.rglob("*")}
    second = fakes.run()
    assert fakes.ran == [] and set(fakes.status(second).values()) == {"reused"}
    assert before == {p: p.stat().st_mtime_ns for p in fakes.out.rglob("*")}
    assert [o.artifact and o.artifact.sha256 for o in first.outcomes] == [
        o.artifact and o.artifact.sha256 for o in second.outcomes
    ]
    assert not list((fakes.store.root / "work").iterdir())


def test_a_lost_output_folder_comes_back_from_the_store(fakes: Fakes) -> None:
    fakes.run()
    before = fakes.published()
    shutil.rmtree(fakes.out)
    fakes.run()
    assert fakes.ran == [] and fakes.published() == before


def test_altered_outputs_are_replaced(fakes: Fakes) -> None:
    fakes.run()
    whole = (fakes.out / "bundle/models/m").read_bytes()
    (fakes.out / "bundle/models/m").write_bytes(b"altered")
    (fakes.out / "bundle/extra").write_bytes(b"planted")
    (fakes.out / "tiny_beta.onnx").write_bytes(b"altered")
    fakes.run()
    assert fakes.ran == []
    assert (fakes.out / "bundle/models/m").read_bytes() == whole
    assert not (fakes.out / "bundle/extra").exists()
    assert (fakes.out / "tiny_beta.onnx").read_bytes() != b"altered"


@pytest.mark.parametrize(
    ("figures", "code", "kind", "verdict"),
    [((11.0, 10.5), 0, None, "pass"), ((11.0, 9.0), 4, Inconclusive, "inconclusive"),
     ((9.0, 8.0), 1, GateFailed, "fail"), ((float("nan"),) * 2, 1, GateFailed, "fail")],
)  # fmt: skip
def test_every_verdict(fakes: Fakes, figures, code, kind, verdict) -> None:
    fakes.figures["gate_one"] = figures
    result = fakes.run()
    assert result.exit_code == code
    assert (type(result.error) if result.error else None) is kind
    assert result.outcomes[2].evidence["verdict"] == verdict
    if kind:
        assert fakes.status(result)["seal"] == "blocked" and "seal" not in fakes.ran
        assert "gate_one: figure" in result.error.message and verdict in result.error.message
        assert result.error.hint == "mend gate_one"
        assert not fakes.published() & BUNDLE


def test_all_gates_are_heard_and_a_failure_is_not_stored(fakes: Fakes) -> None:
    fakes.figures = {"gate_one": (9.0, 8.0), "gate_two": (11.0, 9.0)}
    result = fakes.run()
    assert isinstance(result.error, GateFailed)
    assert "gate_one" in result.error.message and "gate_two" in result.error.message
    again = fakes.run()
    assert fakes.ran == ["gate_one", "gate_two"] and again.exit_code == 1
    assert fakes.status(again) == {
        "alpha": "reused", "beta": "reused", "gate_one": "failed", "gate_two": "failed",
        "seal": "blocked",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("trouble", "figures", "kind"),
    [
        (ToolError("the tool broke"), (9.0, 8.0), ToolError),
        (DeviceUnavailable("no board"), (9.0, 8.0), GateFailed),
        (DeviceUnavailable("no board"), (11.0, 10.5), DeviceUnavailable),
    ],
)
def test_a_gate_that_breaks_does_not_silence_the_others(
    fakes: Fakes, trouble, figures, kind
) -> None:
    fakes.trouble["gate_one"] = lambda: trouble
    fakes.figures["gate_two"] = figures
    result = fakes.run()
    assert "gate_two" in fakes.ran and type(result.error) is kind
    assert fakes.status(result)["seal"] == "blocked"


def test_a_failing_gate_withdraws_the_bundle_of_a_former_run(fakes: Fakes) -> None:
    fakes.run()
    (fakes.out / "evidence.json").write_text("{}")
    fakes.figures["gate_one"] = (9.0, 8.0)
    result = fakes.run(gates={"memory": {"max_arena_bytes": 1}})
    assert result.exit_code == 1
    assert fakes.published() == {"tiny_alpha.onnx", "tiny_beta.onnx"}
    back = fakes.run()
    assert back.exit_code == 0 and fakes.ran == [] and fakes.published() >= BUNDLE


def test_what_cannot_be_planned_takes_nothing_away(fakes: Fakes) -> None:
    fakes.run()
    before = fakes.published()
    result = fakes.run(Selection(until="nowhere"))
    assert result.exit_code == 2 and not result.outcomes
    assert before >= BUNDLE and fakes.published() == before


def test_a_measurement_made_anew_that_fails_takes_the_stored_pass_away(fakes: Fakes) -> None:
    fakes.run()
    fakes.run(Selection(measure=True))
    assert fakes.ran == ["gate_two"] and fakes.published() >= BUNDLE
    fakes.figures["gate_two"] = (9.0, 8.0)
    assert fakes.run(Selection(measure=True)).exit_code == 1
    assert not fakes.published() & BUNDLE
    assert fakes.run().exit_code == 1, "the old pass must not come back"


@pytest.mark.parametrize("how", ["error", "interrupt", "defect"])
def test_no_bundle_remains_when_a_gate_does_not_answer(fakes: Fakes, how: str) -> None:
    fakes.run()
    raised = {"error": ToolError("x"), "interrupt": KeyboardInterrupt(), "defect": RuntimeError()}
    fakes.trouble["gate_two"] = lambda: raised[how]
    if how == "error":
        assert fakes.run(Selection(measure=True)).exit_code == 3
    else:
        with pytest.raises(type(raised[how])):
            fakes.run(Selection(measure=True))
    assert not fakes.published() & BUNDLE
    assert not list((fakes.store.root / "work").iterdir())


def test_an_error_blocks_what_follows_and_keeps_what_was_made(fakes: Fakes) -> None:
    fakes.trouble["beta"] = lambda: ToolError("the tool broke", hint="mend it")
    result = fakes.run()
    assert fakes.status(result) == {
        "alpha": "ran", "beta": "failed", "gate_one": "blocked", "gate_two": "blocked",
        "seal": "blocked",
    }  # fmt: skip
    assert fakes.published() == {"tiny_alpha.onnx"}
    del fakes.trouble["beta"]
    assert fakes.run().exit_code == 0 and fakes.ran == ALL[1:]


def test_scratch_outlives_an_interruption_and_goes_with_success(fakes: Fakes) -> None:
    seen: list[str] = []
    real = fakes.work

    def work(name: str, inputs: Any, made: Any) -> Any:
        if name == "beta":
            left = made.scratch / "way"
            seen.append(left.read_text() if left.is_file() else "")
            made.scratch.mkdir(parents=True, exist_ok=True)
            left.write_text("half")
        return real(name, inputs, made)

    fakes.work = work  # type: ignore[method-assign]
    scratch = fakes.store.root / "scratch"
    fakes.trouble["beta"] = KeyboardInterrupt
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            fakes.run()
    assert seen == ["", "half"] and len(list(scratch.iterdir())) == 1
    with pytest.raises(KeyboardInterrupt):
        fakes.run(Selection(start="beta"))
    assert seen[2] == "", "a run from this stage on goes on from nothing"
    forgotten = scratch / ("0" * 64)
    forgotten.mkdir()
    os.utime(forgotten, (0, 0))
    fakes.trouble.clear()
    assert fakes.run().exit_code == 0
    assert seen[3] == "half" and not list(scratch.iterdir())


def test_until_and_from(fakes: Fakes) -> None:
    result = fakes.run(Selection(until="beta"))
    assert list(fakes.status(result)) == ["alpha", "beta"] and fakes.ran == ["alpha", "beta"]
    fakes.run()
    assert fakes.ran == ["gate_one", "gate_two", "seal"]
    fakes.run(Selection(start="gate_one"))
    assert fakes.ran == ["gate_one", "seal"]
    fakes.run(Selection(until="beta", start="beta"))
    assert fakes.ran == ["beta"]
    assert fakes.published() == {"tiny_alpha.onnx", "tiny_beta.onnx"}, "the rest was not asked for"


def test_another_machine_measures_anew_and_converts_nothing(fakes: Fakes) -> None:
    fakes.run()
    fakes.fingerprint = "another machine"
    fakes.run()
    assert fakes.ran == ["gate_two"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("what", ["object", "entry", "lost object", "lost entry", "no JSON"])
def test_damage_is_told_dropped_and_made_anew(fakes: Fakes, capsys, what: str) -> None:
    first = fakes.run()
    artifact = first.outcomes[1].artifact
    assert artifact is not None
    entry = fakes.store._entry_path("beta", artifact.key)
    path = artifact.path if "object" in what else entry
    if what.startswith("lost"):
        path.unlink()
    elif what == "no JSON":
        path.write_text("[")
    else:
        flip(path)
    result = fakes.run()
    assert result.exit_code == 0 and "beta" in fakes.ran
    if what != "lost entry":
        assert len(result.warnings) == 1
        assert "beta: damaged entry dropped, made anew" in result.warnings[0]
        assert str(path) in result.warnings[0]
        assert "warning: beta" in capsys.readouterr().err
    assert (
        artifact.path.read_bytes()
        == b"beta of " + first.outcomes[0].artifact.sha256[:8].encode() + b"\n"
    )
    fakes.run()
    assert fakes.ran == []


def test_full_disk_in_a_stage_is_told_as_such(fakes: Fakes) -> None:
    fakes.trouble["beta"] = lambda: OSError(errno.ENOSPC, "No space left on device")
    result = fakes.run()
    assert isinstance(result.error, StoreError) and "no space left" in result.error.message
    assert "EDGEFUSE_CACHE" in result.error.hint
    assert not list((fakes.store.root / "work").iterdir())


def test_a_defect_of_a_stage_is_no_disk_error(fakes: Fakes) -> None:
    fakes.trouble["beta"] = lambda: FileNotFoundError("ours")
    with pytest.raises(FileNotFoundError):
        fakes.run()


def test_full_disk_in_the_store_leaves_nothing_half_written(
    fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = os.fsync, []

    def full(descriptor: int) -> None:
        seen.append(descriptor)
        if len(seen) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    result = fakes.run()
    assert isinstance(result.error, StoreError) and "no space left" in result.error.message
    monkeypatch.setattr(os, "fsync", real)
    everywhere = [*fakes.store.root.rglob(".tmp-*"), *fakes.out.rglob(".tmp-*")]
    assert not everywhere and fakes.run().exit_code == 0


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="mounting needs root")
def test_a_disk_that_is_really_full(fakes: Fakes, tmp_path: Path, monkeypatch) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        monkeypatch.setenv("EDGEFUSE_CACHE", str(disk / "cache"))
        (disk / "filler").write_bytes(b"x" * 800_000)
        fakes.trouble["beta"] = lambda: (disk / "big").write_bytes(b"x" * 900_000)  # type: ignore
        ended = edgefuse("run", tmp_path / "recipe.yaml", "--out", disk / "out")
        assert ended.code == 3 and "no space left on the disk" in ended.err
        assert len(ended.messages) == 1 and "Traceback" not in ended.err + ended.out
        (disk / "big").unlink(missing_ok=True)
        (disk / "filler").unlink()
        fakes.trouble.clear()
        ended = edgefuse("run", tmp_path / "recipe.yaml", "--out", disk / "out")
        assert ended.code == 0, ended.err
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_store_that_cannot_be_written(fakes: Fakes, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEFUSE_CACHE", str(tmp_path / "file" / "cache"))
    ended = edgefuse("run", tmp_path / "recipe.yaml", "--out", tmp_path / "out")
    assert ended.code == 3 and len(ended.messages) == 1
    assert "file" in ended.err and "EDGEFUSE_CACHE" in ended.err
    assert json.loads((tmp_path / "out/report.json").read_text())["verdict"] == "error"


def test_a_run_report_when_nothing_ran(fakes: Fakes, tmp_path: Path, monkeypatch) -> None:
    from edgefuse import plan

    def broken(*_: object) -> None:
        raise ToolError("no plan", hint="none", where="here")

    monkeypatch.setattr(plan, "static_parts", broken)
    ended = edgefuse("run", tmp_path / "recipe.yaml", "--out", tmp_path / "out")
    assert ended.code == 3 and "edgefuse: here: no plan" in ended.err
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "edgefuse.log", "report.json", "report.html"
    }  # fmt: skip
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["error"]["message"] == "no plan" and report["artifacts"] == []


def test_no_bundle_stays_beside_a_run_without_a_plan(fakes: Fakes, monkeypatch) -> None:
    from edgefuse import plan

    words = ("run", fakes.folder / "recipe.yaml", "--out", fakes.out)
    assert edgefuse(*words).code == 0 and fakes.published() >= {"evidence.json", *BUNDLE}

    def broken(*_: object) -> None:
        raise ToolError("no plan")

    monkeypatch.setattr(plan, "static_parts", broken)
    assert edgefuse(*words).code == 3
    assert fakes.published() == {"edgefuse.log", "report.json", "report.html"}


def test_no_report_of_an_older_run_survives_an_interruption(fakes: Fakes, tmp_path: Path) -> None:
    words = ("run", tmp_path / "recipe.yaml", "--out", fakes.out)
    assert edgefuse(*words).code == 0
    assert {"report.json", "evidence.json"} <= fakes.published()
    fakes.trouble["gate_two"] = KeyboardInterrupt
    ended = edgefuse(*words, "--measure")
    assert ended.code == 130 and ended.messages == [
        "edgefuse: interrupted; finished stages are kept, run again to go on"
    ]
    assert fakes.published() == {"edgefuse.log", "tiny_alpha.onnx", "tiny_beta.onnx"}


def test_a_run_of_what_is_stored_changes_no_file(fakes: Fakes, tmp_path: Path) -> None:
    words = ("run", tmp_path / "recipe.yaml", "--out", fakes.out)
    for _ in range(2):
        assert edgefuse(*words).code == 0
    before = {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in fakes.out.rglob("*")}
    assert edgefuse(*words).code == 0
    after = {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in fakes.out.rglob("*")}
    assert {p.name for p in before if before[p] != after[p]} <= {"edgefuse.log"}


def test_json_holds_the_error_and_stderr_tells_it_once(fakes: Fakes, tmp_path: Path) -> None:
    fakes.figures["gate_one"] = (9.0, 8.0)
    ended = edgefuse("run", tmp_path / "recipe.yaml", "--out", fakes.out, "--json")
    assert ended.code == 1 and len(ended.messages) == 1
    assert json.loads(ended.out)["error"]["kind"] == "GateFailed"
    ended = edgefuse("run", tmp_path / "nope.yaml", "--json")
    assert ended.code == 2 and len(ended.messages) == 1
    document = json.loads(ended.out)
    assert document["error"]["kind"] == "RecipeError" and document["exit_code"] == 2
    fakes.trouble["alpha"] = KeyboardInterrupt
    ended = edgefuse("run", tmp_path / "recipe.yaml", "--set", "seed=1", "--json")
    assert ended.code == 130 and json.loads(ended.out)["error"]["kind"] == "Interrupted"


def test_a_defect_is_one_line_and_a_file(fakes: Fakes, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    fakes.trouble["alpha"] = lambda: ZeroDivisionError("oh")
    ended = edgefuse("run", tmp_path / "recipe.yaml", "--out", fakes.out)
    assert ended.code == 3 and "internal error: ZeroDivisionError: oh" in ended.err
    assert "Traceback" not in ended.err + ended.out
    (log,) = tmp_path.glob("edgefuse-*.log")
    assert "Traceback" in log.read_text() and str(log) in ended.err


def test_a_defect_with_a_full_temporary_folder(fakes: Fakes, tmp_path: Path, monkeypatch) -> None:
    real = tempfile.mkstemp

    def full(**given: Any) -> tuple[int, str]:
        if "dir" in given:
            return real(**given)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkstemp", full)
    fakes.trouble["alpha"] = lambda: ZeroDivisionError("oh")
    ended = edgefuse("run", tmp_path / "recipe.yaml", "--out", fakes.out)
    assert ended.code == 3 and "internal error: ZeroDivisionError" in ended.err
    assert "could not be written: No space left" in ended.err and "Traceback" not in ended.err


def test_an_unavailable_device_is_no_undecided_gate(fakes: Fakes, tmp_path: Path) -> None:
    fakes.trouble["gate_two"] = lambda: DeviceUnavailable("no board")
    words = ("run", tmp_path / "recipe.yaml", "--out", fakes.out)
    assert edgefuse(*words).code == 4
    report = json.loads((fakes.out / "report.json").read_text())
    assert report["verdict"] == "error" and report["error"]["kind"] == "DeviceUnavailable"
    page = (fakes.out / "report.html").read_text()
    assert "stopped on an error" in page and "undecided" not in page


def test_two_runs_at_once_share_the_work(fakes: Fakes) -> None:
    started, go = threading.Event(), threading.Event()
    real = fakes.work

    def slow(name, inputs, made):
        if name == "alpha":
            started.set()
            go.wait(10)
        return real(name, inputs, made)

    fakes.work = slow  # type: ignore[method-assign]
    results = []
    one = threading.Thread(target=lambda: results.append(fakes.run()))
    one.start()
    assert started.wait(10)
    two = threading.Thread(target=lambda: results.append(fakes.run()))
    two.start()
    time.sleep(0.2)
    go.set()
    one.join(20)
    two.join(20)
    assert [r.exit_code for r in results] == [0, 0]
    assert fakes.ran.count("alpha") == 1 and fakes.published() >= BUNDLE


SCRIPT = """
    import sys, time
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    import pytest
    from fake_stages import Fakes
    from edgefuse import plan, runner, cli

    made = Fakes(Path({folder!r}))
    plan.STAGES = runner.STAGES = made.registry()
    real = made.work
    def work(name, inputs, context):
        if name == "beta" and {slow}:
            print("beta", flush=True)
            time.sleep(30)
        if name == "alpha":
            with (made.folder / "count").open("a") as stream:
                stream.write("x")
            time.sleep(0.5)
        return real(name, inputs, context)
    made.work = work
    sys.argv = ["edgefuse", "run", str(made.folder / "recipe.yaml"), "--out", {out!r}]
    cli.main()
"""


def process(fakes: Fakes, out: str, slow: bool) -> subprocess.Popen[str]:
    text = SCRIPT.format(
        tests=str(Path(__file__).parent),
        folder=str(fakes.folder),
        out=str(fakes.folder / out),
        slow=slow,
    )
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_make_a_key_once(fakes: Fakes) -> None:
    both = [process(fakes, out, slow=False) for out in ("one", "two")]
    for each in both:
        _, err = each.communicate(timeout=60)
        assert each.returncode == 0, err
    assert (fakes.folder / "count").read_text() == "x"
    names = [sorted(p.name for p in (fakes.folder / out).iterdir()) for out in ("one", "two")]
    assert names[0] == names[1] and "tiny.bundle.tar" in names[0]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_process_loses_nothing_and_the_next_goes_on(fakes: Fakes, how) -> None:
    each = process(fakes, "out", slow=True)
    assert each.stdout is not None and each.stdout.readline() == "beta\n"
    each.send_signal(how)
    out, err = each.communicate(timeout=30)
    assert "Traceback" not in out + err
    work = fakes.store.root / "work"
    if how == signal.SIGINT:
        assert each.returncode == 130
        assert err.count("edgefuse: interrupted") == 1
        assert not list(work.iterdir())
    else:
        assert each.returncode == -signal.SIGKILL and len(list(work.iterdir())) == 1
    again = fakes.run()
    assert again.exit_code == 0 and fakes.ran == ALL[1:] and not list(work.iterdir())


def test_messages_name_files_as_the_output_folder_does(fakes: Fakes) -> None:
    alpha = fakes.run(Selection(until="alpha")).made["alpha"].path
    fakes.trouble["beta"] = lambda: ToolError(f"{alpha}: refused", where=str(alpha))
    error = fakes.run().error
    assert error is not None and error.where == "tiny_alpha.onnx"
    assert error.message == "tiny_alpha.onnx: refused"
