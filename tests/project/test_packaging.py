"""The wheel contains every file of the package under one top-level name and runs without the checkout."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
INSTALLED_AS = {
    "lra_bench/": "lra_bench/",
    "tasks/": "lra_bench/tasks/",
    "models/": "lra_bench/models/",
    "conf/": "lra_bench/conf/",
    "docs/adding-a-": "lra_bench/guides/adding-a-",
    "results/published/": "lra_bench/published/",
    "results/reference/": "lra_bench/boards/",
}
NEEDED_TO_BUILD = ("LICENSE", "README.md", "constraints.txt", "pyproject.toml")
OF_CHECKOUT = (".gitignore", ".dockerignore", "Dockerfile", "MANIFEST.in")


def project_files() -> list[str]:
    """Return the files of the project: tracked files, and untracked files that git does not ignore."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so the files of the project are unknown")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(name for name in set(listed.stdout.split("\0")) if name and (ROOT / name).is_file())


def installed_name(name: str) -> str | None:
    """Return the path of a project file in the wheel, or None if the wheel does not contain it."""
    for folder, package in INSTALLED_AS.items():
        if name.startswith(folder):
            return package + name.removeprefix(folder)
    return None


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the files of the project, so that files of old builds cannot get into what is built."""
    copy = tmp_path_factory.mktemp("copy")
    for name in project_files():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy / name)
    return copy


def build_wheel(source: Path, built: Path) -> Path:
    """Build a wheel offline and return it; `make wheel` uses build isolation, which downloads setuptools."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", built, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(copy, tmp_path_factory.mktemp("dist"))


def test_the_wheel_contains_exactly_the_files_of_the_package(wheel: Path) -> None:
    expected = {installed for name in project_files() if (installed := installed_name(name))}
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert sorted(expected - found) == [], "missing: add the folder to packages, or the suffix to package-data"
    assert sorted(found - expected) == []


def test_the_wheel_has_one_top_level_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"lra_bench"}


def test_the_wheel_contains_its_licence_and_the_typing_marker(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "lra_bench/py.typed" in names
    licence = next(name for name in names if name.endswith(".dist-info/licenses/LICENSE"))
    assert zipfile.ZipFile(wheel).read(licence) == (ROOT / "LICENSE").read_bytes()


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an environment with the wheel and the libraries of this environment; return its interpreter.

    A path file adds the libraries, so that nothing is downloaded. Path files inside the added folders are not read, so
    an editable install of the checkout is not included.
    """
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True)
    site_packages = next(folder.glob("lib/python*/site-packages"))
    libraries = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    (site_packages / "libraries.pth").write_text("".join(f"{entry}\n" for entry in libraries))
    return python


def run(folder: Path, *command: str) -> str:
    """Run a command in a folder outside the checkout; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LRA_BENCH_"))}
    environment |= {"LRA_BENCH_CACHE": str(folder / "cache"), "WANDB_MODE": "offline"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_lists_and_plans_in_an_empty_environment(python: Path, tmp_path: Path) -> None:
    code = "import lra_bench.errors as e; print(e.__file__); print(e.install_command('nvidia'))"
    where, command = run(tmp_path, str(python), "-c", code).splitlines()
    assert Path(where).is_relative_to(python.parents[1])
    assert command == f"{python} -m pip install 'nvidia-ml-py>=12'"
    program = str(python.with_name("lra-bench"))
    assert "  performer" in run(tmp_path, program, "list", "models")
    assert "to run" in run(tmp_path, program, "bench", "task=listops", "model=performer", "--dry-run")


@pytest.mark.slow
def test_the_wheel_reads_the_boards_and_measures_a_cell_in_an_empty_environment(python: Path, tmp_path: Path) -> None:
    run(tmp_path, str(ROOT / ".ci" / "try-wheel"), str(python.parent))


@pytest.mark.slow
def test_the_source_distribution_builds_the_wheel_and_contains_the_tests(
    copy: Path, wheel: Path, tmp_path: Path
) -> None:
    code = f"from setuptools.build_meta import build_sdist; build_sdist({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    source = next(path for path in tmp_path.iterdir() if path.is_dir())
    # The source distribution omits files for git, Docker and GitHub.
    expected = {
        name for name in project_files() if name.rpartition("/")[2] not in OF_CHECKOUT and ".github" not in name
    }
    assert sorted(name for name in expected if not (source / name).is_file()) == []
    names = zipfile.ZipFile(build_wheel(source, tmp_path / "dist")).namelist()
    assert sorted(names) == sorted(zipfile.ZipFile(wheel).namelist())


def test_the_image_is_built_from_the_files_of_the_wheel() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name in project_files():
        needed = installed_name(name) is not None or name in NEEDED_TO_BUILD
        assert needed == any(fnmatch(name, each) or name.startswith(f"{each}/") for each in kept), name


def test_a_release_has_one_version_and_is_published_only_if_it_is_switched_on() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]) == version
    assert f"\n## [{version}] - " in (ROOT / "CHANGELOG.md").read_text()
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads the key `on` as true
    jobs = workflow["jobs"]
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    assert jobs["publish"]["if"] == "vars.PUBLISH == 'true'" and jobs["publish"]["needs"] == "test"
    assert jobs["test"]["needs"] == "build" and workflow["permissions"] == {"contents": "read"}


SCRIPT = """\
import lra_bench
from torch import nn

gru = lra_bench.wrap(lambda width, heads: nn.GRU(width, width, batch_first=True), causal=True)
options = {"train.steps": 4, "measure.speed_lengths": [], "tracker": "none"}
for task in ("recall", lra_bench.task_from("reviews.csv", max_length=64)):
    results = lra_bench.bench(gru, task, protocol="smoke", hardware="cpu", overrides=options, raise_on_failure=True)
    print(results)
"""


@pytest.mark.slow
def test_a_script_of_ten_lines_measures_a_module_and_a_table(python: Path, tmp_path: Path) -> None:
    assert len(SCRIPT.splitlines()) <= 10
    (tmp_path / "script.py").write_text(SCRIPT)
    shutil.copyfile(ROOT / "tests" / "support" / "own_table" / "reviews.csv", tmp_path / "reviews.csv")
    printed = run(tmp_path, str(python), "script.py")
    assert [line.split()[:2] for line in printed.splitlines() if "gru_wrapped" in line] == [
        ["recall", "gru_wrapped"],
        ["csv", "gru_wrapped"],
    ]
