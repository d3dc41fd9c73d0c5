"""The W&B mirror with a test server: uploads, ``wandb sync``, and records that are loaded from the server."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from lra_bench import load_records
from lra_bench.cli import main
from lra_bench.config.schema import TrackerOptions
from lra_bench.records import store
from lra_bench.records.schema import Record
from lra_bench.records.upgrades import SCHEMA_VERSION
from lra_bench.tracking import mirror as mirroring
from lra_bench.tracking import reading
from lra_bench.tracking.contents import summary
from lra_bench.tracking.mirror import Tracker, run_id, tracker, update
from lra_bench.tracking.reading import load_project
from tests.support.command import TINY, Folder
from tests.support.mirrored_runs import OFFLINE, ONLINE, PLAIN, mirror_record
from tests.support.record_factory import RATIOS, make_curves, make_extrapolation, make_point, make_record, make_speed
from tests.support.wandb_server import ENTITY, KEY, Artifact, Request, Run, Server, Trouble, serving

pytestmark = [
    pytest.mark.slow,
    # wandb ends its service in a thread, which raises SystemExit if the service does not answer in time.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
PROJECT = ONLINE["project"]
PATH = f"{ENTITY}/{PROJECT}"
STEPS = 3000
FOLLOWED = {"seed": 0, "tracker": ONLINE}
SECRET = "swordfish-and-nothing-but-swordfish"


@pytest.fixture(scope="module")
def listener() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def server(listener: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """An empty server with an account; the test fails if the server received an unsupported request."""
    listener.clear()
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_BASE_URL", listener.url)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LRA_BENCH_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("MY_SERVICE_TOKEN", SECRET)
    monkeypatch.chdir(tmp_path)
    yield listener
    assert listener.unknown == []
    import wandb

    wandb.teardown()


def mirrored(folder: Path, model: str = "performer", seed: int = 0, **changes: Any) -> Record:
    """Write a record without figures to the results of ``folder`` and mirror it on the server."""
    return mirror_record(make_record(model, seed=seed, **{**PLAIN, **changes}), folder / "results", ONLINE)


def record_of(run: Run) -> Artifact:
    """Return the latest artifact of a run that contains its record."""
    return [artifact for artifact in run.artifacts if artifact.kind == "record"][-1]


def test_an_online_run_is_complete(server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    speed = make_speed(1.0, 1e-5, False, {})[:3]
    record = mirrored(tmp_path, speed=speed)
    assert capfd.readouterr() == ("", "")
    run = server.only_run(PROJECT)
    assert (run.name, run.exit_code) == (run_id(record.key), 0)
    assert run.fields["displayName"] == str(record.key)
    assert (run.fields["groupName"], run.fields["jobType"]) == (str(record.key.folder()), "bench")
    assert run.config == {**record.config, "key": asdict(record.key)}
    assert_figures(run, record)
    assert_history(run)
    assert_tables(run, record)
    artifact = record_of(run)
    assert record.path is not None and artifact.state == "COMMITTED"
    names = {"seed0.json", record.artifacts["curves"]}
    assert artifact.blobs == {name: record.path.with_name(name).read_bytes() for name in names}


@pytest.mark.parametrize("entity", [None, "a-team"])
def test_the_url_of_the_project_is_known_before_anything_is_uploaded(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entity: str | None
) -> None:
    if entity:
        monkeypatch.setenv("WANDB_ENTITY", entity)
    line = tracker(TrackerOptions(**ONLINE)).destination(tmp_path, "wandb sync")
    assert f"uploaded to {server.url}/{entity or ENTITY}/{PROJECT}" in line and "tracker=none" in line
    assert not server.runs and not any(b"mutation" in request.body for request in server.received)


def test_the_project_is_named_if_the_server_does_not_answer(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(mirroring, "REACH_SECONDS", 1)
    line = tracker(TrackerOptions(**ONLINE)).destination(tmp_path, "wandb sync")
    assert f"uploaded to the project {PROJECT} if its server can be reached (" in line and "\n" not in line


def assert_figures(run: Run, record: Record) -> None:
    """Check that the summary is that of the record, apart from values that wandb adds."""
    figures = {name: value for name, value in run.summary.items() if not isinstance(value, dict)}
    assert {name for name in figures if name.startswith("_")} <= {"_step", "_runtime", "_timestamp"}
    assert {name: value for name, value in figures.items() if not name.startswith("_")} == summary(record)


def assert_history(run: Run) -> None:
    curves = make_curves()
    drawn = [row for row in run.history if "curves/step" in row]
    assert [row["curves/step"] for row in drawn] == list(curves["step"])
    assert [row["curves/train_loss"] for row in drawn] == pytest.approx(list(curves["train_loss"]))
    assert [row["_step"] for row in run.history if "live/train_loss" in row] == [25, 50]


def assert_tables(run: Run, record: Record) -> None:
    table = json.loads(run.files[run.summary["tables/speed"]["path"]])
    times = [row[table["columns"].index("median_seconds")] for row in table["data"]]
    assert times == [point["median_seconds"] for point in record.speed]
    charts = run.fields["config"]["_wandb"]["value"]["visualize"]
    assert sorted(charts) == ["charts/resident_over_length", "charts/time_over_length"]
    for name, chart in charts.items():
        settings = chart["panel_config"]
        (query,) = settings["userQuery"]["queryFields"]
        (key,) = [field["args"][0]["value"] for field in query["fields"] if field["name"] == "summaryTable"]
        shown = json.loads(run.files[run.summary[key]["path"]])
        assert set(shown["columns"]) == set(settings["fieldSettings"].values()), name
        assert [row[0] for row in shown["data"]] == [1024, 2048, 4096]
    image = run.files[run.summary["figures/speed_vs_length"]["path"]]
    assert image.startswith(b"\x89PNG")


def assert_nothing_secret(server: Server) -> None:
    """Check that neither the API key, apart from its header, nor other environment variables were sent."""
    assert len(server.received) > 20
    for request in server.received:
        headers = {name: value for name, value in request.headers.items() if name != "Authorization"}
        sent = request.body + json.dumps(headers).encode() + request.path.encode()
        for secret in (KEY, base64.b64encode(f"api:{KEY}".encode()).decode(), SECRET, "MY_SERVICE_TOKEN"):
            assert secret.encode() not in sent, request.operation
    online = next(iter(server.runs.values()))
    assert (online.fields["host"], online.fields["program"]) == (None, "lra-bench")


def offline(server: Server, folder: Path, record: Record) -> Record:
    """Mirror a record offline in ``folder``, and upload it by ``wandb sync``."""
    os.environ["WANDB_MODE"] = "offline"
    seen = len(server.received)
    mirror_record(record, folder, OFFLINE)
    del os.environ["WANDB_MODE"]
    assert len(server.received) == seen
    synced(folder)
    return record


def synced(folder: Path) -> None:
    """Upload the offline run in the results of ``folder``."""
    (kept,) = (folder / "wandb").glob("offline-run-*")
    command = [sys.executable, "-m", "wandb", "sync", str(kept)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_synced_run_equals_an_online_run_and_contains_no_secrets(server: Server, tmp_path: Path) -> None:
    direct = mirrored(tmp_path)
    (first,) = server.runs.values()
    later = offline(server, tmp_path / "elsewhere", make_record("local", **PLAIN))
    second = next(run for run in server.runs.values() if run is not first)
    assert_figures(second, later)
    assert_history(second)
    for name in ("displayName", "groupName", "jobType"):
        assert first.fields[name].replace("performer", "local") == second.fields[name]
    assert second.config == {**later.config, "key": asdict(later.key)}
    assert set(record_of(second).blobs) == set(record_of(first).blobs)
    assert load_project(PATH) == sorted([direct, later], key=lambda record: record.key)
    assert_nothing_secret(server)


def test_the_leaderboard_of_a_project_equals_that_of_the_folder(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for model in ("transformer", "performer"):
        mirrored(tmp_path, model)
    on_disk = store.load_all(tmp_path / "results")
    assert load_project(PATH) == on_disk and len(on_disk) == 2
    downloads = [request for request in server.received if request.operation.startswith("GET /artifactsV2")]
    assert len(downloads) == 2
    for layout, form in (("wide", "latex"), ("long", "json")):
        printed = [board(capsys, layout, form, *source) for source in ((), ("--from-wandb", PATH))]
        assert printed[0] == printed[1] and "erformer" in printed[0]
    frame = load_records(wandb=PATH).drop(columns="path")
    assert frame.equals(load_records(tmp_path / "results").drop(columns="path")) and len(frame) == 2
    # The second time, records and manifests come from the cache.
    assert downloads == [request for request in server.received if request.operation.startswith("GET /artifactsV2")]
    assert len([request for request in server.received if request.operation == "FetchArtifactManifest"]) == 2


def board(capsys: pytest.CaptureFixture[str], layout: str, form: str, *arguments: str) -> str:
    """Return the output of ``lra-bench leaderboard``."""
    command(["leaderboard", "--layout", layout, "--format", form, *arguments])
    return capsys.readouterr().out


def command(arguments: list[str]) -> int:
    """Run ``lra-bench`` in this process and return its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lra-bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.main()
    return int(ended.value.code or 0)


def test_a_resumed_cell_is_one_run_and_an_unfinished_attempt_does_not_replace_it(
    server: Server, tmp_path: Path
) -> None:
    mirrored(tmp_path, status="interrupted")
    run = server.only_run(PROJECT)
    assert run.fields["state"] == "failed" and not [row for row in run.history if "curves/step" in row]
    done = mirrored(tmp_path, attempt=2)
    assert server.only_run(PROJECT) is run
    assert_history(run)
    assert_figures(run, done)
    assert run.fields["state"] == "finished"
    assert load_project(PATH) == [done]
    # An interrupted attempt at the same cell in another results folder.
    mirrored(tmp_path / "elsewhere", attempt=3, status="interrupted")
    assert [each.summary["status"] for each in server.runs_of(ENTITY, PROJECT)] == ["ok", "interrupted"]
    assert_figures(run, done)
    assert load_project(PATH) == [done]


def test_evaluating_a_record_again_updates_its_run(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # A run of another attempt at the same cell, which does not belong to this record.
    other = mirrored(tmp_path / "elsewhere", started_at="2026-01-01T00:00:00+00:00")
    unmoved = server.only_run(PROJECT)
    record = mirrored(tmp_path, config=FOLLOWED)
    run = server.runs_of(ENTITY, PROJECT)[1]
    first, config = record_of(run), run.config
    record.extrapolation, record.attempt = make_extrapolation([make_point(0.4, 0.02, ratio) for ratio in RATIOS]), 2
    store.amend(record)
    update(record)
    assert capfd.readouterr() == ("", "")
    assert server.runs_of(ENTITY, PROJECT) == [unmoved, run]
    assert_figures(run, record)
    assert_figures(unmoved, other)
    assert_history(run)
    assert run.config == config and run.exit_code == 0
    table = json.loads(run.files[run.summary["tables/extrapolation"]["path"]])
    scores = [row[table["columns"].index("score")] for row in table["data"]]
    assert scores == [point["score"] for point in record.extrapolation["points"]]
    assert record.path is not None and record_of(run) is not first
    assert record_of(run).blobs["seed0.json"] == record.path.read_bytes() != first.blobs["seed0.json"]
    assert load_project(PATH) == [record]


def test_a_record_without_a_run_is_not_updated(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    quick(monkeypatch)
    other = mirrored(tmp_path, "local")
    record = make_record(**PLAIN, config=FOLLOWED)
    store.write(record, tmp_path, make_curves())
    update(record)
    printed = capfd.readouterr().err
    assert printed.count("\n") == 1 and "no run of this record" in printed
    assert_figures(server.only_run(PROJECT), other)
    server.trouble = lambda _: Trouble(401)
    update(record)
    printed = capfd.readouterr().err
    assert (
        printed.count("\n") == 1
        and "could not resume the run" in printed
        and "the record itself is complete" in printed
    )


def test_a_deleted_run_is_replaced_by_a_new_one(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    quick(monkeypatch)
    name = run_id(make_record().key)

    def deleted(request: Request) -> Trouble | None:
        taken = request.operation == "UpsertBucket" and json.loads(request.body)["variables"]["name"] == name
        return Trouble(409, message=f"run {PATH}/{name} was previously created and deleted") if taken else None

    server.trouble = deleted
    record = mirrored(tmp_path)
    assert server.only_run(PROJECT).name != name and capfd.readouterr().err == ""
    assert load_project(PATH) == [record]


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce all timeouts to at most two seconds."""
    import wandb

    monkeypatch.setattr(mirroring, "QUIET", {**mirroring.QUIET, "init_timeout": 2, "finish_timeout": 2})
    monkeypatch.setattr(wandb.Api, "_HTTP_TIMEOUT", 1)
    monkeypatch.setattr(reading, "REACH_SECONDS", 1)


def everything(_: Request) -> bool:
    return True


def uploads(request: Request) -> bool:
    return request.path.startswith("/store/")


@pytest.mark.parametrize(
    ("when", "trouble", "what", "message"),
    [
        ("start", Trouble(401), everything, "the run is kept offline, wandb sync uploads it later"),
        ("start", Trouble(seconds=1000), everything, "the run is kept offline"),
        ("middle", Trouble(500), everything, "could not"),
        ("middle", Trouble(401), everything, "could not mirror the record"),
        ("middle", Trouble(seconds=1000), everything, "could not"),
        ("middle", Trouble(500), uploads, "could not end"),
        ("middle", Trouble(403), uploads, "could not end"),
    ],
)
def test_a_server_error_prints_one_line_and_keeps_the_record(
    when: str,
    trouble: Trouble,
    what: Callable[[Request], bool],
    message: str,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    quick(monkeypatch)
    record, mirror = make_record(**PLAIN), Tracker(PROJECT)
    if when == "middle":
        mirror.start(record.config, record.key, tmp_path)
    server.trouble = lambda request: trouble if what(request) else None
    if when == "start":
        mirror.start(record.config, record.key, tmp_path)
    mirror.log(25, {"train_loss": 1.0})
    store.write(record, tmp_path, make_curves())
    mirror.finish(record, make_curves())
    printed = capfd.readouterr().err
    assert printed.count("\n") == 1 and message in printed
    assert store.load_all(tmp_path) == [record]
    if when == "start":  # the offline run can be uploaded later, as the message says
        server.trouble = lambda _: None
        synced(tmp_path)
        assert load_project(PATH) == [record]


def damage(artifact: Artifact, change: Callable[[bytes], bytes]) -> None:
    (name,) = [name for name in artifact.blobs if name.endswith(".json")]
    artifact.blobs[name] = change(artifact.blobs[name])


def refer(artifact: Artifact, path: Path) -> None:
    """Replace the record by a reference to a file of this machine."""
    manifest = json.loads(artifact.manifest)
    (name,) = [name for name in manifest["contents"] if name.endswith(".json")]
    manifest["contents"][name]["ref"] = path.as_uri()
    artifact.manifest = json.dumps(manifest).encode()


def lose(artifact: Artifact) -> None:
    artifact.blobs.clear()


SCHEMA = f'"schema_version": {SCHEMA_VERSION}'.encode()
NEWER = f'"schema_version": {SCHEMA_VERSION + 1}'.encode()
DAMAGES: list[tuple[Callable[[Artifact, Path], None], str]] = [
    (lambda artifact, _: damage(artifact, lambda content: content[:-40]), "cannot be read as a record"),
    (
        lambda artifact, _: damage(
            artifact, lambda c: c.replace(f'"schema_version": {SCHEMA_VERSION}'.encode(), NEWER)
        ),
        f"has schema version {SCHEMA_VERSION + 1}, this lra-bench supports up to {SCHEMA_VERSION}",
    ),
    (lambda artifact, _: damage(artifact, lambda content: content.replace(b"listops", b"text")), "of another cell"),
    (lambda artifact, _: damage(artifact, lambda content: b'{"schema_version": 1}'), "version 1 is not supported"),
    (lambda artifact, path: refer(artifact, path), "contains no record"),
    (lambda artifact, _: lose(artifact), "its file does not exist"),
]


def test_invalid_records_are_reported_and_left_out(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = mirrored(tmp_path, "local")
    bad = mirrored(tmp_path, "performer")
    assert bad.path is not None
    artifact = record_of(server.runs_of(ENTITY, PROJECT)[1])
    manifest, blobs = artifact.manifest, dict(artifact.blobs)
    for number, (change, reason) in enumerate(DAMAGES):
        monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / f"cache{number}"))  # where artifacts never change
        artifact.manifest, artifact.blobs = manifest, dict(blobs)
        change(artifact, bad.path)
        messages: list[str] = []
        assert load_project(PATH, broken=messages.append) == [good]
        assert len(messages) == 1 and reason in messages[0] and messages[0].startswith(f"{PATH}, run {run_id(bad.key)}")
        assert messages[0].endswith("; left out")
    artifact.manifest, artifact.blobs = manifest, dict(blobs)
    assert load_project(PATH) == [good, bad]


@pytest.mark.parametrize(
    ("path", "reason", "trouble"),
    [
        ("lra-bench", "is not a W&B project; set it to ENTITY/PROJECT", None),
        (f"{PATH}/runs", "is not a W&B project; set it to ENTITY/PROJECT", None),
        (f"{ENTITY}/nothing", "W&B has no such project", None),
        (PATH, "run wandb login or set WANDB_API_KEY", "account"),
        (PATH, "W&B rejects the configured account", Trouble(401)),
        (PATH, "W&B cannot be reached", Trouble(seconds=1000)),
        (PATH, "W&B cannot be reached", "network"),
    ],
)
def test_errors_are_one_sentence_with_the_option(
    path: str,
    reason: str,
    trouble: Trouble | str | None,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    quick(monkeypatch)
    if isinstance(trouble, Trouble):
        server.trouble = lambda _: trouble
    elif trouble == "account":
        monkeypatch.delenv("WANDB_API_KEY")
    elif trouble == "network":
        monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    assert command(["leaderboard", "--from-wandb", path]) == 2
    printed = capfd.readouterr()
    assert printed.out == "" and KEY not in printed.err
    *before, last = printed.err.splitlines()
    assert last.startswith(f"lra-bench: --from-wandb {path}: ") and reason in last
    assert before in ([], [f"Requesting the runs of {path} from W&B."])


def test_a_cell_that_is_interrupted_resumed_and_evaluated_again(server: Server, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "cell", WANDB_MODE="online")
    arguments = ["bench", "model=bag_of_tokens", *TINY, f"train.steps={STEPS}"]
    # A checkpoint at every step slows the run down, so that it can be interrupted.
    child = folder.start(*arguments, "hardware.checkpoint_seconds=0")
    deadline = time.monotonic() + 300
    # Wait for a checkpoint and for the run on the server; live metrics are sent only every few seconds.
    while not (server.runs and list(folder.cache.glob("checkpoints/**/last.pt"))):
        assert time.monotonic() < deadline and child.poll() is None, child.communicate()[0]
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGINT)
    child.communicate(timeout=120)
    assert folder.record()["status"] == "interrupted"
    assert server.only_run(PROJECT).summary["status"] == "interrupted"
    folder.run(*arguments, timeout=600)
    (record,) = store.load_all(folder.results)
    assert (record.status, record.attempt) == ("ok", 2)
    run = server.only_run(PROJECT)
    steps = [row["curves/step"] for row in run.history if "curves/step" in row]
    assert steps == sorted(set(steps)) and steps[-1] == STEPS
    assert_mirrored(server, folder, record)
    folder.run("evaluate", str(record.path), "--lengths", "70")
    (again,) = store.load_all(folder.results)
    assert again.attempt == 3 and again != record
    assert_mirrored(server, folder, again)


def assert_mirrored(server: Server, folder: Folder, record: Record) -> None:
    """Check that the only run of the project shows the record and that its leaderboard is that of the folder."""
    assert_figures(server.only_run(PROJECT), record)
    assert load_project(PATH) == [record]
    printed = [
        folder.run("leaderboard", "--protocol", "smoke", "--format", "csv", *source).stdout
        for source in ((), ("--from-wandb", PATH))
    ]
    assert printed[0] == printed[1] and "bag_of_tokens" in printed[0]
