from __future__ import annotations

import io
import os
import socket
import ssl
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from leaderboard.submissions import repositories
from leaderboard.submissions.repositories import RepositoryError, UnreachableError
from tests.leaderboard.conftest import FILES, Repository
from tests.support.git_objects import commit_tree, write_object
from tests.support.waits import WAIT_SECONDS

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("site")]


def fetch_mirror(repository: Repository) -> repositories.Mirror:
    mirror = repositories.open_mirror(str(repository.path))
    mirror.fetch()
    mirror.fetch_main()
    return mirror


def test_branch_short_sha_and_unreferenced_commit_resolve_to_full_sha(main_repository: Repository) -> None:
    first = main_repository.git("rev-parse", "HEAD")
    orphan = main_repository.commit("A pull request's head")
    main_repository.git("reset", "--quiet", "--hard", first)
    mirror = fetch_mirror(main_repository)
    assert {mirror.resolve_revision(name) for name in ("main", "HEAD", first[:9], first)} == {first}
    assert mirror.resolve_revision(orphan) == orphan


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


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (b"\x7fELF\x00\x01", "; entries may contain source code only."),
        (b"\xff\xfe not utf-8", ": byte 0xff at offset 0 is not UTF-8."),
        ("# é".encode("latin-1"), ": byte 0xe9 at offset 2 is not UTF-8."),
    ],
)
def test_model_file_that_is_no_text_is_refused_with_its_place(
    main_repository: Repository, contents: bytes, reason: str
) -> None:
    sha = main_repository.commit("A binary", {"trainer/models/kernel.so": contents})
    with pytest.raises(RepositoryError) as error:
        fetch_mirror(main_repository).read_model_files(sha)
    assert str(error.value) == f"trainer/models/kernel.so is not a text file{reason}"


def test_hooks_and_filters_of_repository_do_not_run(main_repository: Repository, tmp_path: Path) -> None:
    marker_file = tmp_path / "ran"
    for hook in ("pre-receive", "post-checkout", "reference-transaction", "post-upload-pack"):
        path = main_repository.path / ".git" / "hooks" / hook
        path.parent.mkdir(exist_ok=True)
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


COMMANDS = ("--upload-pack=touch /tmp/pwned", "ext::sh -c touch% /tmp/pwned", "fd::17", "ssh://-oProxyCommand=x/y")
CREDENTIALS = ("https://user:secret@example.org/x.git", "https://token@example.org/x.git")
SCHEMES = ("http://example.org/x.git", "git://example.org/x.git", "https:///x.git", "/no/such/folder")


@pytest.mark.parametrize("address", [*COMMANDS, *CREDENTIALS, *SCHEMES, "", "https://example.org/a\nb", "x" * 401])
def test_invalid_repository_address_is_refused(address: str) -> None:
    with pytest.raises(RepositoryError):
        repositories.normalize_address(address)


@pytest.mark.parametrize("address", ["/etc", "file:///etc", "https://127.0.0.1/x", "git@a.org:b"])
def test_private_repository_address_is_refused(main_repository: Repository, address: str) -> None:
    with pytest.raises(RepositoryError):
        repositories.check_public(address)
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
    thread.join()  # not before the server is closed, to which git connects again
    assert b"repositories.invalid" in hello  # TLS still checks the certificate of the name


def fetch_without_success(mirror: repositories.Mirror) -> None:
    with pytest.raises(RepositoryError):
        mirror.fetch()


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


# --- repositories that are large or odd -------------------------------------------------------------------------------


def commit_tree_bomb(repository: Repository) -> str:
    """Commit ten levels of ten equal trees under `trainer/models/`: a few hundred bytes, ten billion files."""
    entry, mode = bytes.fromhex(write_object(repository, "blob", b"x = 1\n")), "100644"
    for _ in range(10):
        content = b"".join(f"{mode} {number}".encode() + b"\0" + entry for number in range(10))
        entry, mode = bytes.fromhex(write_object(repository, "tree", content)), "40000"
    for name in (b"models", b"trainer"):
        entry = bytes.fromhex(write_object(repository, "tree", b"40000 " + name + b"\0" + entry))
    return commit_tree(repository, entry.hex())


def test_tree_of_ten_billion_files_is_refused_within_limits(
    main_repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, sha = main_repository.git("rev-parse", "HEAD"), commit_tree_bomb(main_repository)
    mirror = fetch_mirror(main_repository)
    monkeypatch.setattr(repositories, "READ_MEMORY", 2**16)
    for read in (
        lambda: mirror.list_model_files(sha),
        lambda: mirror.list_changed_files(sha, None),
        lambda: mirror.list_changed_files(sha, base),
        lambda: mirror.read_diff(sha, base),
    ):
        with pytest.raises(RepositoryError, match=r"too many files|too much memory") as caught:
            read()
        assert not isinstance(caught.value, UnreachableError)


@pytest.mark.parametrize("zone", ["+051800", "UTC"])
def test_commit_with_invalid_time_zone_in_history_is_accepted(main_repository: Repository, zone: str) -> None:
    tree, parent = main_repository.git("rev-parse", "HEAD^{tree}"), main_repository.git("rev-parse", "HEAD")
    who = f"Ada <ada@example.org> 1500000000 {zone}"
    content = f"tree {tree}\nparent {parent}\nauthor {who}\ncommitter {who}\n\nOld\n"
    odd = write_object(main_repository, "commit", content.encode())
    main_repository.git("reset", "--quiet", "--hard", odd)
    sha = main_repository.commit("Newer", {"trainer/models/idea.py": "x = 1\n"})
    mirror = fetch_mirror(main_repository)
    assert mirror.read_author_and_subject(odd) == ("Ada", "Old")
    assert mirror.find_merge_base(sha) == sha
    assert mirror.list_changed_files(sha, odd) == ["trainer/models/idea.py"]


@pytest.mark.parametrize("is_on_branch", [True, False])
def test_tree_with_two_files_of_one_name_is_refused_for_good(main_repository: Repository, is_on_branch: bool) -> None:
    first = main_repository.git("rev-parse", "HEAD")
    blob = bytes.fromhex(main_repository.git("rev-parse", "HEAD:README.md"))
    sha = commit_tree(main_repository, write_object(main_repository, "tree", 2 * (b"100644 README.md\0" + blob)))
    if not is_on_branch:
        main_repository.git("update-ref", "refs/heads/main", first)
    with pytest.raises(RepositoryError, match="duplicateEntries") as caught:
        fetch_mirror(main_repository).resolve_revision(sha)
    assert not isinstance(caught.value, UnreachableError)


@pytest.mark.parametrize(
    ("stderr", "is_permanent"),
    [
        ("fatal: repository 'https://github.com/a/b.git/' not found", True),
        ("fatal: could not read Username for 'https://github.com': terminal prompts disabled", True),
        ("fatal: unable to access 'https://a.org/b/': The requested URL returned error: 403", True),
        ("error: index-pack died of signal 25\nfatal: fetch-pack: invalid index-pack output", True),
        ("error: rev-list died of signal 11\nerror: https://a.org/b did not send all necessary objects", True),
        ("fatal: empty filename in tree entry", True),
        ("fatal: Out of memory, malloc failed (tried to allocate 5000000000 bytes)", True),
        ("fatal: unable to access 'https://a.org/b/': The requested URL returned error: 429", False),
        ("fatal: unable to access 'https://a.org/b/': The requested URL returned error: 503", False),
        ("fatal: unable to access 'https://a.org/b/': Could not resolve host: a.org", False),
        ("fatal: the remote end hung up unexpectedly\nfatal: early EOF", False),
        ("error: Server does not allow request for unadvertised object 1234", False),
    ],
)
def test_reason_of_git_is_temporary_only_where_a_retry_can_help(stderr: str, is_permanent: bool) -> None:
    assert repositories.GitError(stderr).is_permanent is is_permanent


def test_mirrors_are_deleted_when_unused_or_too_large_together(
    main_repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["main", "old", "large", "new"]
    sources = [main_repository, *(main_repository.fork(tmp_path / name) for name in names[1:])]
    mirrors = {name: fetch_mirror(source) for name, source in zip(names, sources, strict=True)}
    for name, days in {"main": 1000, "old": 181, "large": 2, "new": 1}.items():
        at = time.time() - days * 86400
        os.utime(mirrors[name].folder.with_suffix(".lock"), (at, at))
    assert repositories.delete_old_mirrors() == 1
    assert [name for name in names if mirrors[name].folder.exists()] == ["main", "large", "new"]
    monkeypatch.setattr(repositories, "MIRRORS_BYTES", 50_000)
    (mirrors["large"].folder / "objects" / "more").write_bytes(bytes(50_000))
    assert repositories.delete_old_mirrors() == 1
    assert [name for name in names if mirrors[name].folder.exists()] == ["main", "new"]
    assert fetch_mirror(sources[2]).find_commit("refs/heads/main")


# --- renamed repositories ---------------------------------------------------------------------------------------------


HOST = "repositories.invalid"


@contextmanager
def serve_repository(repository: Repository, folder: Path, locations: dict[str, str]) -> Iterator[str]:
    """Serve a repository as `/new.git` over https; paths that begin with a key of `locations` are redirected."""
    repository.git("clone", "--quiet", "--bare", ".", str(folder / "served" / "new.git"))
    repository.git("--git-dir", str(folder / "served" / "new.git"), "update-server-info")

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            for old, new in locations.items():
                if self.path.startswith(old):
                    self.send_response(301)
                    self.send_header("Location", self.path.replace(old, new, 1))
                    self.send_header("Content-Length", "0")
                    return self.end_headers()
            return super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *arguments: Handler(*arguments, directory=str(folder / "served"))
    )
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "1", "-keyout", str(key), "-out", str(certificate), "-subj", f"/CN={HOST}"]
    subprocess.run([*command, "-addext", f"subjectAltName=DNS:{HOST}"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"https://{HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def trusted_host(site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the served host is known and its certificate trusted, to git and to the site."""
    monkeypatch.setattr(repositories, "resolve_public_host", lambda host, port: "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    site.REPOSITORIES.mkdir()
    (site.REPOSITORIES / "gitconfig").write_text(f"[http]\n\tsslCAInfo = {tmp_path / 'certificate.pem'}\n")


@pytest.mark.usefixtures("trusted_host")
def test_renamed_repository_is_fetched_from_its_new_address(main_repository: Repository, tmp_path: Path) -> None:
    sha = main_repository.git("rev-parse", "HEAD")
    with serve_repository(main_repository, tmp_path, {"/old.git": "/new.git"}) as host:
        mirror = repositories.open_mirror(f"{host}/old.git")
        mirror.fetch()
    assert mirror.resolve_revision("main") == sha
    assert mirror.address == f"{host}/old.git"


@pytest.mark.usefixtures("trusted_host")
def test_redirect_to_another_host_is_not_followed(main_repository: Repository, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as internal:
        internal.settimeout(0.1)
        target = f"https://127.0.0.1:{internal.getsockname()[1]}/new.git"
        with (
            serve_repository(main_repository, tmp_path, {"/old.git": target}) as host,
            pytest.raises(RepositoryError, match="301"),
        ):
            repositories.open_mirror(f"{host}/old.git").fetch()
        with pytest.raises(TimeoutError):
            internal.accept()


@pytest.mark.parametrize(
    ("path", "contents", "problem"),
    [
        # a line of code in UTF-7, a comment for everyone else
        ("gpt.py", b"# coding: utf-7\n# +AAo-import os\n", r"gpt\.py declares an? "),
        ("gpt.py", b"# coding: nonsense\n", r"gpt\.py declares an? "),
        ("secret.py", None, r"secret\.py is a link"),
        ("vendor", None, r"vendor is a submodule"),
    ],
)
def test_model_file_that_cannot_be_reviewed_is_refused(
    main_repository: Repository, path: str, contents: bytes | None, problem: str
) -> None:
    name = f"trainer/models/{path}"
    if contents is not None:
        main_repository.write({name: contents})
    elif path == "vendor":
        main_repository.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},{name}")
    else:
        (main_repository.path / name).symlink_to("/etc/passwd")
    if path != "vendor":
        main_repository.git("add", "--all")
    main_repository.git("commit", "--quiet", "-m", "Odd")
    with pytest.raises(RepositoryError, match=problem):
        fetch_mirror(main_repository).read_model_files(main_repository.git("rev-parse", "HEAD"))


@pytest.fixture
def replace_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that replaces git by a shell script."""

    def replace(script: str) -> None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "git").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / "git").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    return replace


@pytest.mark.parametrize(("command", "problem"), [("fetch", "did not answer"), ("show", "could not be read")])
def test_git_that_is_silent_times_out_and_is_tried_again(
    main_repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    replace_git: Callable[[str], None],
    command: str,
    problem: str,
) -> None:
    mirror = fetch_mirror(main_repository)
    replace_git("exec sleep 30")
    monkeypatch.setattr(repositories, "FETCH_SECONDS", 0.2)
    monkeypatch.setattr(repositories, "READ_SECONDS", 0.2)
    with pytest.raises(UnreachableError, match=f"{problem} within 0 seconds"):
        mirror.run_git(command, "--", mirror.url)


def test_git_is_limited_in_memory_and_file_size(
    main_repository: Repository, replace_git: Callable[[str], None]
) -> None:
    mirror = fetch_mirror(main_repository)
    replace_git("ulimit -f; ulimit -d")
    assert mirror.run_git("show").split() == [b"4194304", b"524288"]
    assert mirror.run_git("fetch", "--", mirror.url).split() == [b"4194304", b"1048576"]
