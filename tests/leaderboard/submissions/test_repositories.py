from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from leaderboard.submissions import repositories
from leaderboard.submissions.repositories import RepositoryError
from tests.leaderboard.conftest import FILES, Repository

pytestmark = pytest.mark.usefixtures("site")


def fetched(repository: Repository) -> repositories.Mirror:
    mirror = repositories.open_mirror(str(repository.path))
    mirror.fetch()
    mirror.fetch_main()
    return mirror


def test_a_branch_and_a_short_sha_resolve_to_the_full_one(main: Repository) -> None:
    sha = main.git("rev-parse", "HEAD")
    mirror = fetched(main)
    assert (
        mirror.resolve_revision("main")
        == mirror.resolve_revision("HEAD")
        == mirror.resolve_revision(sha[:9])
        == mirror.resolve_revision(sha)
        == sha
    )


def test_a_commit_that_no_branch_holds_is_fetched_by_its_sha(main: Repository) -> None:
    first = main.git("rev-parse", "HEAD")
    orphan = main.commit("A pull request's head")
    main.git("reset", "--quiet", "--hard", first)
    assert fetched(main).resolve_revision(orphan) == orphan


@pytest.mark.parametrize("name", ["0" * 40, "nowhere", "abcdef0", "--upload-pack=touch /tmp/x", "a..b", "@{-1}", ""])
def test_what_is_no_commit_is_refused_with_a_sentence(main: Repository, name: str) -> None:
    with pytest.raises(RepositoryError, match="commit"):
        fetched(main).resolve_revision(name)


def test_the_bundle_is_the_models_folder_and_the_same_bytes_each_time(main: Repository) -> None:
    sha = main.git("rev-parse", "HEAD")
    packed = repositories.pack_bundle(fetched(main).read_model_files(sha))
    assert packed == repositories.pack_bundle(dict(reversed(fetched(main).read_model_files(sha).items())))
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        found = {member.name: tar.extractfile(member).read().decode() for member in tar.getmembers()}  # type: ignore[union-attr]
        assert {(member.mtime, member.uid, member.mode) for member in tar.getmembers()} == {(0, 0, 0o644)}
    assert found == {path: text for path, text in FILES.items() if path.startswith("trainer/models/")}


def test_a_link_is_refused(main: Repository) -> None:
    (main.path / "trainer/models/secret.py").symlink_to("/etc/passwd")
    sha = main.commit("A link")
    with pytest.raises(RepositoryError, match=r"secret\.py is a link"):
        fetched(main).read_model_files(sha)


def test_a_submodule_is_refused(main: Repository) -> None:
    main.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},trainer/models/vendor")
    main.git("commit", "--quiet", "-m", "A submodule")
    with pytest.raises(RepositoryError, match="vendor is a submodule"):
        fetched(main).read_model_files(main.git("rev-parse", "HEAD"))


def test_a_binary_is_refused(main: Repository) -> None:
    for contents in (b"\x7fELF\x00\x01", b"\xff\xfe not utf-8"):
        sha = main.commit("A binary", {"trainer/models/kernel.so": contents})
        with pytest.raises(RepositoryError, match=r"kernel\.so is not a text file"):
            fetched(main).read_model_files(sha)


def test_too_many_bytes_are_refused(main: Repository) -> None:
    sha = main.commit("Weights in the source", {"trainer/models/table.py": "0" * 256_000})
    with pytest.raises(RepositoryError, match="at most 256,000"):
        fetched(main).read_model_files(sha)


@pytest.mark.parametrize("name", [".hidden.py", "a b.py", "deep/" * 6 + "x.py", "-x.py", "é.py", "x" * 81])
def test_a_name_that_is_no_source_files_is_refused(main: Repository, name: str) -> None:
    sha = main.commit("A name", {f"trainer/models/{name}": "x = 1\n"})
    with pytest.raises(RepositoryError, match="not a valid file name"):
        fetched(main).read_model_files(sha)


def test_a_commit_without_models_is_refused(main: Repository) -> None:
    main.git("rm", "--quiet", "-r", "trainer/models")
    sha = main.commit("Nothing left")
    with pytest.raises(RepositoryError, match="no trainer/models/ folder"):
        fetched(main).read_model_files(sha)


def test_changed_files_are_counted_from_where_the_fork_left_main(main: Repository, tmp_path: Path) -> None:
    fork = main.fork(tmp_path / "fork")
    start = main.git("rev-parse", "HEAD")
    main.commit("main goes on", {"README.md": "Faster.\n"})
    sha = fork.commit("An idea", {"trainer/models/idea.py": "x = 1\n"})
    mirror = fetched(fork)
    assert mirror.find_merge_base(sha) == start
    assert mirror.list_changed_files(sha, start) == ["trainer/models/idea.py"]


def test_a_history_of_its_own_has_no_base(main: Repository) -> None:
    main.git("checkout", "--quiet", "--orphan", "other")
    sha = main.commit("From nothing", {"x.txt": "x"})
    mirror = fetched(main)
    assert mirror.find_merge_base(sha) is None
    assert "x.txt" in mirror.list_changed_files(sha, None)


def test_without_the_branch_main_the_head_stands_for_it(main: Repository) -> None:
    main.git("branch", "-m", "main", "trunk")
    mirror = fetched(main)
    assert mirror.find_commit("refs/train/main") == main.git("rev-parse", "HEAD")


def test_no_hook_or_filter_of_the_repository_runs(main: Repository, tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    for hook in ("pre-receive", "post-checkout", "reference-transaction", "post-upload-pack"):
        path = main.path / ".git" / "hooks" / hook
        path.write_text(f"#!/bin/sh\ntouch {proof}\n")
        path.chmod(0o755)
    main.git("config", "uploadpack.packObjectsHook", f"touch {proof}; exec")
    main.git("config", "core.fsmonitor", f"touch {proof}")
    main.git("config", "diff.external", f"touch {proof}")
    sha = main.commit("Attributes", {".gitattributes": "* diff=x filter=x\n"})
    proof.unlink(missing_ok=True)
    mirror = fetched(main)
    mirror.read_model_files(sha)
    mirror.read_diff(sha, f"{sha}~1")
    assert not proof.exists()


@pytest.mark.parametrize(
    "address",
    [
        "",
        "--upload-pack=touch /tmp/pwned",
        "ext::sh -c touch% /tmp/pwned",
        "fd::17",
        "http://example.org/x.git",
        "git://example.org/x.git",
        "https://user:secret@example.org/x.git",
        "https://token@example.org/x.git",
        "https:///x.git",
        "ssh://-oProxyCommand=x/y",
        "/no/such/folder",
        "https://example.org/a\nb",
        "x" * 401,
    ],
)
def test_an_address_that_is_not_a_plain_one_is_refused(address: str) -> None:
    with pytest.raises(RepositoryError):
        repositories.normalize_address(address)


@pytest.mark.parametrize(
    "address", ["https://github.com/a/b.git", "ssh://git@host.example/a/b", "git@github.com:a/b.git"]
)
def test_a_plain_address_is_taken_as_it_is(address: str) -> None:
    assert repositories.normalize_address(address) == address


@pytest.mark.parametrize(
    "address", ["/etc", "file:///etc", "https://localhost/x", "https://127.0.0.1/x", "git@a.org:b"]
)
def test_over_the_network_nobody_names_our_own_files_or_neighbours(address: str) -> None:
    with pytest.raises(RepositoryError):
        repositories.check_public(address)


def test_over_the_network_the_main_repository_may_be_named(main: Repository) -> None:
    repositories.check_public(str(main.path))


def test_a_repository_that_does_not_answer_is_given_up(
    main: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o755)
    mirror = fetched(main)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(repositories, "FETCH_SECONDS", 0.2)
    with pytest.raises(RepositoryError, match="did not answer within 0 seconds"):
        mirror.fetch()


def test_a_folder_that_is_no_repository_is_said_so(tmp_path: Path, site: Any) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RepositoryError, match="cannot be read"):
        repositories.open_mirror(str(tmp_path / "empty")).fetch()
