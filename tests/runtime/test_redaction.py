"""Records and their mirrors contain no secrets and no paths with the user's name."""

import json
import os
import re
from pathlib import Path

import pytest

from lra_bench.data.download import NotFetched, Remote
from lra_bench.records import environment, store
from lra_bench.runtime.redaction import HIDDEN, shareable
from lra_bench.tracking.contents import summary
from tests.support.record_factory import make_record

COMMITTED = Path(__file__).parents[2] / "results" / "reference"
ABSOLUTE = re.compile(r"(?<![\w./~$:-])(?:/[\w.-]+){2,}")

ENVIRONMENT_FACTS = {
    "hardware": {
        "processor", "processor_family", "processor_model", "processor_stepping", "virtual", "cache_bytes",
        "instruction_sets", "architecture", "cores_physical", "cores_logical", "cores_usable", "memory_bytes",
        "load_average_1_minute", "device", "precision", "compile", "accelerated", "threads", "processes", "strategy",
        "gpu",
    },
    "software": {
        "python", "platform", "torch", "cuda", "cudnn", "sdpa_backends", "tf32", "deterministic", "flushes_denormals",
        *environment.LIBRARIES,
    },
}  # fmt: skip


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user's home folder, which contains the working folder."""
    home = tmp_path / "ada"
    (home / "project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home / "project")
    return home


def test_paths_become_relative(home):
    redacted = shareable(
        {"inside": f"{home}/project/own/x.py", "here": f"{home}/project", "home": f"{home}/data", "far": "/data"}
    )
    assert redacted == {"inside": "own/x.py", "here": ".", "home": "~/data", "far": "/data"}
    assert shareable(f"in '{home}/project/a b' and ({home})") == "in 'a b' and (~)"
    assert shareable([f"{home}/project2", f"{home}s/x", f"/mnt{home}/x"]) == [
        "~/project2", f"{home}s/x", f"/mnt{home}/x",
    ]  # fmt: skip


def test_paths_in_named_folders_begin_with_the_variable(home, monkeypatch):
    monkeypatch.setenv("LRA_BENCH_DATA", "/mnt/ada/data/")
    monkeypatch.setenv("LRA_BENCH_CACHE", f"{home}/cache")
    redacted = shareable(["files of /mnt/ada/data/imdb", "/mnt/ada/data", "/mnt/ada/database", f"{home}/cache/raw"])
    assert redacted == [
        "files of $LRA_BENCH_DATA/imdb", "$LRA_BENCH_DATA", "/mnt/ada/database", "$LRA_BENCH_CACHE/raw",
    ]  # fmt: skip


def test_committed_records_contain_no_local_paths():
    texts = [path.read_text(encoding="utf-8") for path in sorted(COMMITTED.glob("**/*.json*"))]
    folders = {folder for text in texts for folder in ABSOLUTE.findall(text)}
    assert texts and folders <= {"/sys/class/powercap"}, (
        "the kernel's folder of energy counters is the same on all machines"
    )


def test_values_other_than_strings_are_unchanged(home):
    value = {"number": 1.5, "list": [1, None, True], "nested": {"tuple": (1, "x")}}
    assert shareable(value) == {**value, "nested": {"tuple": [1, "x"]}}


NAMES = (
    "WANDB_API_KEY", "HF_TOKEN", "aws_secret_access_key", "DB_PASSWORD", "MY_APIKEY", "MYSQL_PWD", "SMTP_PASS",
    "GITHUB_PAT", "REGISTRY_AUTH", "SENTRY_DSN", "PASSWORD", "SSH_KEYS", "REFRESH_TOKENS", "VAULT_CREDENTIAL",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_secrets_of_the_environment_are_hidden(monkeypatch, name):
    monkeypatch.setenv(name, "s3cr3t-value")
    assert shareable({"command": "run --key=s3cr3t-value"}) == {"command": f"run --key={HIDDEN}"}


def test_other_strings_are_unchanged(monkeypatch):
    monkeypatch.setenv("KEYBOARD_LAYOUT", "dvorak-programmer")
    monkeypatch.setenv("HF_TOKEN", "abc")
    assert shareable("dvorak-programmer abc") == "dvorak-programmer abc"
    monkeypatch.chdir("/usr/lib")
    monkeypatch.setenv("PWD", "/usr/lib")
    monkeypatch.setenv("OLDPWD", "/usr/share/doc")
    assert shareable("/usr/share/doc") == "/usr/share/doc"


def test_short_secrets_are_hidden_as_whole_words_only(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_1")
    assert shareable("--token=hf_1 hf_12 (hf_1)") == f"--token={HIDDEN} hf_12 ({HIDDEN})"


def test_credentials_in_urls_are_hidden(monkeypatch):
    assert shareable("https://ada:pw@host/x and git@host") == f"https://{HIDDEN}@host/x and git@host"
    for address in ("ada:p@ss@host/x", "ada:p/ss@host/x", "ada:p@s/s@host/x", ":token@host/x", "token@host/x"):
        assert shareable(f"get https://{address} now") == f"get https://{HIDDEN}@host/x now"
    for address in ("http://host:8080/a@b", "git+https://host/a/b@main", "https://host/x?at=a@b", "http://host:80"):
        assert shareable(address) == address
    monkeypatch.setenv("HF_ENDPOINT", "https://ada:hunter2@mirror.example")
    redacted = str(NotFetched([Remote("a", "a", repository="r", revision="1")], Path("raw"), "offline"))
    assert "hunter2" not in redacted and "mirror.example" in redacted


def test_records_are_redacted_when_written(home, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    record = make_record(
        command=f"lra-bench bench --config-dir {home}/project/own task.source={home}/data tracker.project=hf_abcdefgh",
        reason=f"FileNotFoundError: {home}/project/own/x.py",
        config={"task": {"source": f"{home}/data/listops"}, "hf_abcdefgh": 1},
    )
    path = store.write(record, home / "project" / "results")
    text = path.read_text()
    assert str(home) not in text and "ada" not in text.replace("adaptive", "")
    assert "hf_abcdefgh" not in json.dumps({**json.loads(text), "config": None})
    assert store.load(path).command == (f"lra-bench bench --config-dir own task.source=~/data tracker.project={HIDDEN}")
    redacted = json.dumps(summary(record))
    assert str(home) not in redacted and "hf_abcdefgh" not in redacted


def test_a_record_describes_the_machine_by_these_fields_only():
    found = environment.environment()
    assert {"hardware": set(found["hardware"]), "software": set(found["software"])} == ENVIRONMENT_FACTS
    text = json.dumps(found)
    for name in ("HOSTNAME", "USER", "LOGNAME"):
        assert not (value := os.environ.get(name)) or len(value) < 5 or value not in text
    assert os.uname().nodename not in text
