from __future__ import annotations

import io
import os
import socket
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest

from leaderboard.submissions import repositories
from leaderboard.submissions.repositories import RepositoryError
from tests.leaderboard.conftest import FILES, Repository
from tests.support.waits import WAIT_SECONDS

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("site")]


def fetch_mirror(repository: Repository) -> repositories.Mirror:
    mirror = repositories.open_mirror(str(repository.path))
    mirror.fetch()
    mirror.fetch_main()
    return mirror


def test_branch_and_short_sha_resolve_to_full_sha(main_repository: Repository) -> None:
    sha = main_repository.git("rev-parse", "HEAD")
    mirror = fetch_mirror(main_repository)
    assert (
        mirror.resolve_revision("main")
        == mirror.resolve_revision("HEAD")
        == mirror.resolve_revision(sha[:9])
        == mirror.resolve_revision(sha)
        == sha
    )


def test_commit_outside_branches_is_fetched_by_sha(main_repository: Repository) -> None:
    first = main_repository.git("rev-parse", "HEAD")
    orphan = main_repository.commit("A pull request's head")
    main_repository.git("reset", "--quiet", "--hard", first)
    assert fetch_mirror(main_repository).resolve_revision(orphan) == orphan


@pytest.mark.parametrize("name", ["0" * 40, "nowhere", "abcdef0", "--upload-pack=touch /tmp/x", "a..b", "@{-1}", ""])
def test_invalid_revision_is_refused(main_repository: Repository, name: str) -> None:
    with pytest.raises(RepositoryError, match="commit"):
        fetch_mirror(main_repository).resolve_revision(name)


def test_bundle_has_models_folder_and_reproducible_bytes(main_repository: Repository) -> None:
    sha = main_repository.git("rev-parse", "HEAD")
    packed = repositories.pack_bundle(fetch_mirror(main_repository).read_model_files(sha))
    assert packed == repositories.pack_bundle(
        dict(reversed(fetch_mirror(main_repository).read_model_files(sha).items()))
    )
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        contents = {member.name: tar.extractfile(member).read().decode() for member in tar.getmembers()}  # type: ignore[union-attr]
        assert {(member.mtime, member.uid, member.mode) for member in tar.getmembers()} == {(0, 0, 0o644)}
    assert contents == {path: text for path, text in FILES.items() if path.startswith("trainer/models/")}


def test_model_file_that_is_a_link_is_refused(main_repository: Repository) -> None:
    (main_repository.path / "trainer/models/secret.py").symlink_to("/etc/passwd")
    sha = main_repository.commit("A link")
    with pytest.raises(RepositoryError, match=r"secret\.py is a link"):
        fetch_mirror(main_repository).read_model_files(sha)


def test_submodule_is_refused(main_repository: Repository) -> None:
    main_repository.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},trainer/models/vendor")
    main_repository.git("commit", "--quiet", "-m", "A submodule")
    with pytest.raises(RepositoryError, match="vendor is a submodule"):
        fetch_mirror(main_repository).read_model_files(main_repository.git("rev-parse", "HEAD"))


def test_binary_model_file_is_refused(main_repository: Repository) -> None:
    for contents in (b"\x7fELF\x00\x01", b"\xff\xfe not utf-8"):
        sha = main_repository.commit("A binary", {"trainer/models/kernel.so": contents})
        with pytest.raises(RepositoryError, match=r"kernel\.so is not a text file"):
            fetch_mirror(main_repository).read_model_files(sha)


def test_model_files_over_size_limit_are_refused(main_repository: Repository) -> None:
    sha = main_repository.commit("Weights in the source", {"trainer/models/table.py": "0" * 256_000})
    with pytest.raises(RepositoryError, match="at most 256,000"):
        fetch_mirror(main_repository).read_model_files(sha)


@pytest.mark.parametrize("name", [".hidden.py", "a b.py", "deep/" * 6 + "x.py", "-x.py", "é.py", "x" * 81])
def test_model_file_with_invalid_name_is_refused(main_repository: Repository, name: str) -> None:
    sha = main_repository.commit("A name", {f"trainer/models/{name}": "x = 1\n"})
    with pytest.raises(RepositoryError, match="not a valid file name"):
        fetch_mirror(main_repository).read_model_files(sha)


def test_commit_without_models_folder_is_refused(main_repository: Repository) -> None:
    main_repository.git("rm", "--quiet", "-r", "trainer/models")
    sha = main_repository.commit("Nothing left")
    with pytest.raises(RepositoryError, match="no trainer/models/ folder"):
        fetch_mirror(main_repository).read_model_files(sha)


def test_changed_files_are_listed_from_merge_base(main_repository: Repository, tmp_path: Path) -> None:
    fork = main_repository.fork(tmp_path / "fork")
    start = main_repository.git("rev-parse", "HEAD")
    main_repository.commit("main goes on", {"README.md": "Faster.\n"})
    sha = fork.commit("An idea", {"trainer/models/idea.py": "x = 1\n"})
    mirror = fetch_mirror(fork)
    assert mirror.find_merge_base(sha) == start
    assert mirror.list_changed_files(sha, start) == ["trainer/models/idea.py"]


def test_unrelated_history_has_no_merge_base(main_repository: Repository) -> None:
    main_repository.git("checkout", "--quiet", "--orphan", "other")
    sha = main_repository.commit("From nothing", {"x.txt": "x"})
    mirror = fetch_mirror(main_repository)
    assert mirror.find_merge_base(sha) is None
    assert "x.txt" in mirror.list_changed_files(sha, None)


def test_repository_without_branch_main_uses_its_head(main_repository: Repository) -> None:
    main_repository.git("branch", "-m", "main", "trunk")
    mirror = fetch_mirror(main_repository)
    assert mirror.find_commit("refs/train/main") == main_repository.git("rev-parse", "HEAD")


def test_hooks_and_filters_of_repository_do_not_run(main_repository: Repository, tmp_path: Path) -> None:
    marker_file = tmp_path / "ran"
    for hook in ("pre-receive", "post-checkout", "reference-transaction", "post-upload-pack"):
        path = main_repository.path / ".git" / "hooks" / hook
        path.write_text(f"#!/bin/sh\ntouch {marker_file}\n")
        path.chmod(0o755)
    main_repository.git("config", "uploadpack.packObjectsHook", f"touch {marker_file}; exec")
    main_repository.git("config", "core.fsmonitor", f"touch {marker_file}")
    main_repository.git("config", "diff.external", f"touch {marker_file}")
    sha = main_repository.commit("Attributes", {".gitattributes": "* diff=x filter=x\n"})
    marker_file.unlink(missing_ok=True)
    mirror = fetch_mirror(main_repository)
    mirror.read_model_files(sha)
    mirror.read_diff(sha, f"{sha}~1")
    assert not marker_file.exists()


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
def test_invalid_repository_address_is_refused(address: str) -> None:
    with pytest.raises(RepositoryError):
        repositories.normalize_address(address)


@pytest.mark.parametrize(
    "address", ["https://github.com/a/b.git", "ssh://git@host.example/a/b", "git@github.com:a/b.git"]
)
def test_valid_repository_address_is_unchanged(address: str) -> None:
    assert repositories.normalize_address(address) == address


@pytest.mark.parametrize(
    "address", ["/etc", "file:///etc", "https://localhost/x", "https://127.0.0.1/x", "git@a.org:b"]
)
def test_private_repository_address_is_refused(address: str) -> None:
    with pytest.raises(RepositoryError):
        repositories.check_public(address)


def test_main_repository_address_is_allowed(main_repository: Repository) -> None:
    repositories.check_public(str(main_repository.path))


def test_fetch_connects_to_the_address_that_was_checked(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the check can resolve the name here, so a connection proves that git does not resolve it again."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_SECONDS)
        port = server.getsockname()[1]
        mirror = repositories.open_mirror(f"https://repositories.invalid:{port}/a/b.git")
        monkeypatch.setattr(repositories, "resolve_public_host", lambda host, port: "127.0.0.1")
        monkeypatch.setattr(repositories, "FETCH_SECONDS", WAIT_SECONDS)
        thread = threading.Thread(target=fetch_without_success, args=[mirror])
        thread.start()
        connection, _ = server.accept()
        with connection:
            hello = connection.recv(4096)
        thread.join()
    assert b"repositories.invalid" in hello  # TLS still checks the certificate of the name


def fetch_without_success(mirror: repositories.Mirror) -> None:
    with pytest.raises(RepositoryError):
        mirror.fetch()


def test_fetch_from_internal_host_is_refused(site: Any) -> None:
    with pytest.raises(RepositoryError, match="not on the public internet"):
        repositories.open_mirror("https://127.0.0.1/a/b.git").fetch()


def test_fetch_from_unknown_host_may_be_retried(site: Any) -> None:
    with pytest.raises(repositories.UnreachableError, match="is not known"):
        repositories.open_mirror("https://repositories.invalid/a/b.git").fetch()


def test_fetch_from_silent_repository_times_out(
    main_repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_git = tmp_path / "bin" / "git"
    fake_git.parent.mkdir()
    fake_git.write_text("#!/bin/sh\nexec sleep 30\n")
    fake_git.chmod(0o755)
    mirror = fetch_mirror(main_repository)
    monkeypatch.setenv("PATH", f"{fake_git.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(repositories, "FETCH_SECONDS", 0.2)
    with pytest.raises(RepositoryError, match="did not answer within 0 seconds"):
        mirror.fetch()


def test_fetch_from_folder_without_repository_fails(tmp_path: Path, site: Any) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RepositoryError, match="cannot be read"):
        repositories.open_mirror(str(tmp_path / "empty")).fetch()


def test_diff_of_huge_files_is_read_up_to_its_limit(
    main_repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repositories, "DIFF_LENGTH", 1000)
    base = main_repository.git("rev-parse", "HEAD")
    sha = main_repository.commit("Large", {"large.txt": "a line\n" * 500_000})
    mirror = fetch_mirror(main_repository)
    assert len(mirror.read_output(4000, "diff", base, sha)) == 4000
    assert len(mirror.read_diff(sha, base)) == 1000
    with pytest.raises(RepositoryError, match="cannot be read"):
        mirror.read_diff("0" * 40, base)


@pytest.mark.parametrize("address", ["https://[::1", "https://example.com:99999999/x", "https://example.com:abc/x"])
def test_malformed_address_is_refused_with_message(address: str) -> None:
    for check in (repositories.normalize_address, repositories.check_public):
        with pytest.raises(RepositoryError, match=r"is (no|not the) address of a repository"):
            check(address)
