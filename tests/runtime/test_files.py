"""Temporary folders of killed processes, and paths in the home folder of a user that has none."""

import os
from pathlib import Path

import pytest

from lra_bench.contracts import UserError
from lra_bench.data.cache import Cache
from lra_bench.records.store import results_root
from lra_bench.runtime.files import expanded
from lra_bench.runtime.redaction import shareable
from lra_bench.tracking.account import has_account


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process run as a user without an entry in the user database, and without HOME."""
    for name in ("HOME", "XDG_CACHE_HOME", "LRA_BENCH_CACHE", "LRA_BENCH_RESULTS", "NETRC", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)


def test_without_a_home_folder_the_option_to_set_is_named(homeless: None) -> None:
    with pytest.raises(
        UserError, match="LRA_BENCH_CACHE: the home folder of this user is unknown; set LRA_BENCH_CACHE"
    ):
        Cache()
    with pytest.raises(UserError, match="--results: the home folder of this user is unknown"):
        results_root("~/results")


def test_without_a_home_folder_absolute_paths_can_be_used(homeless: None, tmp_path: Path) -> None:
    assert Cache(tmp_path).root == tmp_path and results_root(tmp_path) == tmp_path
    assert expanded("a/b", "--results") == Path("a/b")
    assert shareable(f"{tmp_path}/~x") == f"{tmp_path}/~x"
    assert has_account() is False
