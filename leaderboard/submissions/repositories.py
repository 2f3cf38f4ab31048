"""Bare mirrors of the repositories of entries, read with the git command.

Repositories are untrusted: no hook, filter or submodule of them runs, nothing is checked out, only `TRANSPORTS` are
allowed, every call has limits of time, memory and output, and addresses and names cannot become options.
git connects to the address that was checked (`http.curloptResolve`), even if the name resolves to another one later.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import re
import selectors
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import tokenize
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urljoin, urlsplit

import httpx
from django.conf import settings

from leaderboard.public_hosts import (
    HostError,
    UnknownHostError,
    build_pinned_request,
    resolve_host,
    resolve_public_host,
)

MODELS = "trainer/models/"  # the only folder of a commit that an entry uses
BUNDLE_BYTES = 256_000
BUNDLE_FILES = 200
TRANSPORTS = ("file", "https", "ssh")
FETCH_SECONDS = 120.0
READ_SECONDS = 20.0
FETCH_MEMORY, READ_MEMORY = 2**20, 2**19  # of git's data, in KiB: 1 GiB and 512 MiB
LIMITS = 'ulimit -d "$1"; ulimit -f 4194304; shift; exec "$@"'  # no file beyond 2 GiB, in blocks of 512 bytes
OUTPUT_BYTES = 16 * 2**20  # of git: the names of some 200,000 files
ERROR_BYTES = 2**16  # of git's messages
DIFF_LENGTH = 400_000
SOURCE_BYTES = 8 * 2**20  # largest file that is read for a page
MIRROR_DAYS = 180  # that a mirror is kept after its last fetch
MIRRORS_BYTES = 50 * 2**30  # of all mirrors together
LISTED_FILES = 300  # changed files that are stored for the entry's page

REFERENCES = "/info/refs"  # path of git's first request to a repository

SHA = re.compile(r"[0-9a-f]{40}")
SSH_ADDRESS = re.compile(r"[A-Za-z0-9._-]+@[A-Za-z0-9.-]+:[A-Za-z0-9._/~-]+")
BUNDLE_PATH = re.compile(r"trainer/models(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}){1,5}")


class RepositoryError(ValueError):
    """The repository cannot be read; the message is for the user."""


class UnreachableError(RepositoryError):
    """The repository could not be fetched; a retry may succeed."""


def normalize_address(address: str) -> str:
    """Return the address as a URL for git. Raise RepositoryError if it is not allowed.

    Allowed: a folder of this machine, `file://`, `https://` without credentials, `ssh://` and `user@host:path`.
    """
    address = address.strip()
    if not address or len(address) > 400 or not address.isprintable():
        raise RepositoryError("The repository's address is empty, too long or has unprintable characters.")
    if address.startswith("-") or "::" in address:
        raise RepositoryError(f"{address!r} is not the address of a repository.")
    parts = split_address(address)
    if parts.scheme in ("https", "ssh"):
        secret = parts.username if parts.scheme == "https" else parts.password
        if not parts.hostname or parts.hostname.startswith("-") or secret:
            raise RepositoryError("The address must name a host and contain no credentials, since it is public.")
        return address
    if SSH_ADDRESS.fullmatch(address):
        return address
    if "://" in address and parts.scheme != "file":
        raise RepositoryError(f"Repositories are read over {', '.join(TRANSPORTS)} only, not {parts.scheme}.")
    folder = Path(parts.path if parts.scheme == "file" else address).expanduser()
    if not folder.is_dir():
        raise RepositoryError(f"There is no repository at {address}.")
    return f"file://{folder.resolve()}"


def split_address(address: str) -> SplitResult:
    """Raise RepositoryError for an address with an impossible host or port."""
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError as error:
        raise RepositoryError(f"{address} is no address of a repository: {error}.") from None
    return parts


def check_public(address: str) -> None:
    """Raise RepositoryError unless this is the main repository or an https address on the public internet.

    For addresses from the network: they must not let this server read its own files or internal hosts.
    """
    if address == settings.MAIN_REPOSITORY:
        return
    parts = split_address(address)
    if parts.scheme != "https" or not parts.hostname:
        raise RepositoryError("The API accepts only https:// addresses of repositories.")
    resolve_repository_host(address)


def resolve_repository_host(address: str) -> str:
    """Return the public IP address of an https address. Raise RepositoryError if it has none."""
    parts = urlsplit(address)
    assert parts.hostname, "checked by normalize_address"
    try:
        return resolve_public_host(parts.hostname, parts.port or 443)
    except UnknownHostError as error:
        raise UnreachableError(str(error)) from None
    except HostError as error:
        raise RepositoryError(str(error)) from None


def build_resolution_option(address: str) -> tuple[str, ...]:
    """Return git's option to connect to the checked IP address of an https address; empty for other addresses.

    The host of the main repository is not checked: it may be internal.
    """
    parts = urlsplit(address)
    if parts.scheme != "https" or parts.hostname == urlsplit(settings.MAIN_REPOSITORY).hostname:
        return ()
    ip = resolve_repository_host(address)
    return ("-c", f"http.curloptResolve={parts.hostname}:{parts.port or 443}:{f'[{ip}]' if ':' in ip else ip}")


@dataclass(frozen=True)
class TreeFile:
    """One file of a commit under `trainer/models/`."""

    mode: str
    oid: str
    size: int
    path: str


@dataclass(frozen=True)
class Mirror:
    """A bare copy of one repository under `settings.REPOSITORIES`."""

    address: str  # as given, for pages
    url: str  # for git

    @property
    def folder(self) -> Path:
        return Path(settings.REPOSITORIES) / f"{hashlib.sha256(self.url.encode()).hexdigest()[:24]}.git"

    def fetch(self) -> None:
        """Update all branches and HEAD."""
        with self.lock():
            self.fetch_from(self.url, "+refs/heads/*:refs/heads/*", "+HEAD:refs/train/HEAD", options=("--prune",))

    def fetch_main(self) -> None:
        """Fetch the main repository's branch for comparison, or its HEAD if it has no such branch (as in CI)."""
        url = normalize_address(settings.MAIN_REPOSITORY)
        if url == self.url:
            main = self.find_commit(f"refs/heads/{settings.MAIN_BRANCH}") or self.find_commit("refs/train/HEAD")
            self.run_git("update-ref", "refs/train/main", main or "refs/train/HEAD")
            return
        with self.lock():
            try:
                self.fetch_from(url, f"+refs/heads/{settings.MAIN_BRANCH}:refs/train/main")
            except RepositoryError as error:
                if "couldn't find remote ref" not in str(error):
                    raise
                self.fetch_from(url, "+HEAD:refs/train/main")

    def resolve_revision(self, name: str) -> str:
        """Return the full SHA of a branch, of `HEAD` or of a full or shortened (7 or more digits) SHA.

        A commit that is on no branch (the head of a pull request) is fetched by its full SHA.
        """
        name = name.strip()
        if SHA.fullmatch(name):
            if self.find_commit(name) is None:
                self.fetch_by_sha(name)
            return name
        if name == "HEAD":
            candidates = ["refs/train/HEAD"]
        elif re.fullmatch(r"[0-9a-f]{7,39}", name):
            candidates = [f"refs/heads/{name}", name]
        elif re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,200}", name) and ".." not in name:
            candidates = [f"refs/heads/{name}"]
        else:
            raise RepositoryError(f"{name!r} is neither a commit nor the name of a branch.")
        for candidate in candidates:
            if sha := self.find_commit(candidate):
                return sha
        raise RepositoryError(f"{self.address} has no commit or branch {name}.")

    def find_commit(self, name: str) -> str | None:
        """Return the SHA of a commit in this mirror, or None."""
        try:
            answer = self.run_git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        except RepositoryError:
            return None
        return answer.decode().strip()

    def fetch_by_sha(self, sha: str) -> None:
        try:
            with self.lock():
                self.fetch_from(self.url, sha)
        except UnreachableError:
            # GitHub sends the webhook of a push before all of its servers have the commit.
            raise UnreachableError(f"{self.address} has no commit {sha}.") from None
        if self.find_commit(sha) is None:
            raise RepositoryError(f"{sha} in {self.address} is not a commit.")

    def list_merged_heads(self, merge: str) -> list[str]:
        parents = self.run_git("rev-list", "--parents", "--max-count=1", self.resolve_revision(merge)).decode().split()
        return parents[2:]

    def read_author_and_subject(self, sha: str) -> tuple[str, str]:
        text = self.read_output(2000, "show", "--no-patch", "--format=%an%x00%s", sha).decode(errors="replace")
        author, _, subject = text.strip().partition("\0")
        return author[:120], subject[:120]

    def find_merge_base(self, sha: str) -> str | None:
        """Return the merge base with main, or None without a common history. Call `fetch_main` first."""
        try:
            return self.run_git("merge-base", "refs/train/main", sha).decode().strip()
        except RepositoryError:
            return None

    def list_changed_files(self, sha: str, base: str | None) -> list[str]:
        """Return the paths that differ between base and commit, sorted; every path without a base."""
        if base is None:
            listing = self.run_git("ls-tree", "-r", "-z", "--name-only", sha)
        else:
            listing = self.run_git("diff", "--name-only", "--no-renames", "--no-ext-diff", "-z", base, sha, "--")
        return sorted(path.decode(errors="replace") for path in listing.split(b"\0") if path)

    def read_diff(self, sha: str, base: str) -> str:
        """Return the first `DIFF_LENGTH` characters of the changes since `base`."""
        options = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames")
        text = self.read_output(4 * DIFF_LENGTH, "diff", *options, base, sha, "--")
        return text.decode(errors="replace")[:DIFF_LENGTH]

    def read_file(self, sha: str, path: str) -> bytes:
        """Return a file of a commit; empty if it does not exist or exceeds `SOURCE_BYTES`."""
        name = f"{sha}:{path}"
        try:
            if int(self.run_git("cat-file", "-s", name)) <= SOURCE_BYTES:
                return self.run_git("cat-file", "blob", name)
        except RepositoryError:
            pass
        return b""

    def list_model_files(self, sha: str) -> list[TreeFile]:
        """Return the commit's files under `trainer/models/`. Raise RepositoryError if an entry may not have them."""
        listing = self.run_git("ls-tree", "-r", "-z", "-l", sha, "--", MODELS)
        files = []
        for line in listing.split(b"\0"):
            if not line:
                continue
            head, path = line.split(b"\t", 1)
            mode, _, oid, size = head.decode().split()
            files.append(TreeFile(mode, oid, int(size) if size.isdigit() else 0, path.decode(errors="replace")))
        check_files(files)
        return files

    def read_model_files(self, sha: str) -> dict[str, bytes]:
        """Return the contents by path of the commit's `trainer/models/`, all of them text."""
        files = self.list_model_files(sha)
        object_ids = "".join(f"{file.oid}\n" for file in files).encode()
        answer = io.BytesIO(self.run_git("cat-file", "--batch", stdin=object_ids))
        sources = {}
        for file in files:
            size = int(answer.readline().split()[2])
            sources[file.path] = check_text(file.path, answer.read(size))
            answer.read(1)
        return sources

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock this mirror for writing: concurrent fetches would fail on git's own locks."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with self.folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (self.folder / "HEAD").exists():
                self.run_git("init", "--quiet", "--bare", "--template=", str(self.folder), in_mirror=False)
            yield

    def fetch_from(self, url: str, *references: str, options: Sequence[str] = ()) -> None:
        """Fetch from an address, or from the one to which its server redirects it: the repository was renamed."""
        arguments = ("fetch", *options, *QUIET, "--")
        try:
            self.run_git(*arguments, url, *references)
        except RepositoryError:
            moved = find_new_address(url)
            if not moved:
                raise
            self.run_git(*arguments, moved, *references)

    def run_git(self, *arguments: str, stdin: bytes = b"", in_mirror: bool = True) -> bytes:
        """Run git on the mirror and return its output; raise RepositoryError with git's reason."""
        output = self.read_output(OUTPUT_BYTES + 1, *arguments, stdin=stdin, in_mirror=in_mirror)
        if len(output) > OUTPUT_BYTES:
            raise RepositoryError(f"{self.address} has too many files: their names have more than 16 MiB.")
        return output

    def read_output(self, length: int, *arguments: str, stdin: bytes = b"", in_mirror: bool = True) -> bytes:
        """Run git on the mirror and return at most the first `length` bytes of its output, which may be huge."""
        is_fetch = arguments[0] == "fetch"
        seconds = FETCH_SECONDS if is_fetch else READ_SECONDS
        try:
            return run_limited(self.build_command(*arguments, in_mirror=in_mirror), stdin, seconds, length)
        except TimeoutError:
            what = "did not answer" if is_fetch else "could not be read"  # as on a busy machine
            raise UnreachableError(f"{self.address} {what} within {seconds:.0f} seconds.") from None
        except GitError as error:
            kind = UnreachableError if is_fetch and not error.is_permanent else RepositoryError
            raise kind(f"{self.address} cannot be read: {error}") from None

    def build_command(self, *arguments: str, in_mirror: bool = True) -> list[str]:
        is_fetch = arguments[0] == "fetch"
        resolution = build_resolution_option(arguments[arguments.index("--") + 1]) if is_fetch else ()
        folder = ("--git-dir", str(self.folder)) if in_mirror else ()
        memory = str(FETCH_MEMORY if is_fetch else READ_MEMORY)
        return ["sh", "-c", LIMITS, "sh", memory, "git", *folder, *SAFE, *resolution, *arguments]


class GitError(Exception):
    """git failed; the message is its reason."""

    def __init__(self, stderr: str) -> None:
        lines = [line.strip() for line in stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines or ["git gave no reason"]
        known = [(reason, match) for line in errors for pattern, reason in PERMANENT if (match := pattern.search(line))]
        self.is_permanent = bool(known)
        reason = known[0][0] if known else ""
        super().__init__(reason or errors[0].removeprefix("fatal: ").removeprefix("error: ")[:200])


# What git says (in the locale C) where another attempt has the same result, and what to tell instead.
PERMANENT = [
    (re.compile(pattern), reason)
    for pattern, reason in (
        ("died of signal 25|File too large", "it has more than 2 GiB."),
        ("[Oo]ut of memory|unable to create thread", "git needs too much memory for it."),
        (r"^error: object [0-9a-f]+: |^fatal: (empty filename|malformed mode) in tree", ""),
        ("died of signal (6|11)$", "git crashes on it: its folders are too deep, or its objects malformed."),
        ("repository '.*' not found|couldn't find remote ref", ""),
        (
            r"could not read (Username|Password)|Authentication failed|Permission denied|returned error: 4(0[1-7]|1\d)",
            "the server denies access to it, or does not have it.",
        ),
    )
]


def run_limited(command: list[str], stdin: bytes, seconds: float, length: int) -> bytes:
    """Run git and return at most the first `length` bytes of its output. Raise TimeoutError or GitError."""
    output, errors, deadline = bytearray(), bytearray(), time.monotonic() + seconds
    with tempfile.TemporaryFile() as source, selectors.DefaultSelector() as selector:
        source.write(stdin)
        source.seek(0)
        process = subprocess.Popen(
            command,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=get_environment(),
            start_new_session=True,  # a fetch has children, which end with it
        )
        with process:
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                selector.register(process.stdout, selectors.EVENT_READ, (output, length))
                selector.register(process.stderr, selectors.EVENT_READ, (errors, ERROR_BYTES))
                while selector.get_map() and len(output) < length:
                    ready = selector.select(deadline - time.monotonic())
                    if not ready and time.monotonic() >= deadline:
                        raise TimeoutError
                    for key, _ in ready:
                        piece, (kept, room) = os.read(key.fd, 2**16), key.data
                        kept += piece[: room - len(kept)]
                        if not piece:
                            selector.unregister(key.fileobj)
                if len(output) < length and process.wait(max(deadline - time.monotonic(), 1)) != 0:
                    raise GitError(errors.decode(errors="replace"))
            except subprocess.TimeoutExpired:
                raise TimeoutError from None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
    return bytes(output)


QUIET = ("--quiet", "--no-tags", "--no-recurse-submodules", "--update-shallow", "--no-write-fetch-head")
# Errors of fsck in the history of many repositories, which git hosts accept. They concern who wrote a commit and when,
# and how a mode is written. Errors that make a tree ambiguous are refused: a review could show another file.
TOLERATED = (
    *("badDate", "badDateOverflow", "badEmail", "badName", "badTimezone", "missingEmail", "missingNameBeforeEmail"),
    *("missingSpaceBeforeDate", "missingSpaceBeforeEmail", "multipleAuthors", "zeroPaddedDate", "zeroPaddedFilemode"),
)
SAFE = (
    *("-c", "protocol.allow=never"),
    *(option for transport in TRANSPORTS for option in ("-c", f"protocol.{transport}.allow=always")),
    *("-c", "http.followRedirects=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "fetch.fsckObjects=true"),
    *(option for error in TOLERATED for option in ("-c", f"fetch.fsck.{error}=ignore")),
    *("-c", "core.bigFileThreshold=16m"),  # larger files are written as a stream, and not compared
    *("-c", "gc.auto=0"),
    *("-c", "maintenance.auto=false"),
)


def get_environment() -> dict[str, str]:
    """Return git's environment: only the site's configuration, and no prompts for passwords."""
    config = Path(settings.REPOSITORIES) / "gitconfig"
    if not config.exists():
        config.parent.mkdir(parents=True, exist_ok=True)
        # A folder may belong to another user (a mounted checkout); it is only read.
        config.write_text("[safe]\n\tdirectory = *\n")
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.environ.get("HOME", "/"),  # the keys for ssh
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(config),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_SSH_COMMAND": "ssh -o BatchMode=yes -o ConnectTimeout=10",
    }


def find_new_address(address: str) -> str:
    """Return where an https repository has moved on its host; empty if nowhere. git follows no redirect.

    Its server could redirect git to an internal host.
    """
    parts = urlsplit(address)
    if parts.scheme != "https" or not parts.hostname:
        return ""
    is_ours = parts.hostname == urlsplit(settings.MAIN_REPOSITORY).hostname
    question = f"{address}{REFERENCES}?service=git-upload-pack"
    try:
        ip = resolve_host(parts.hostname, parts.port or 443)[0] if is_ours else resolve_repository_host(address)
        with (
            httpx.Client(trust_env=False, timeout=READ_SECONDS, verify=httpx.create_ssl_context()) as web,
            web.stream("GET", **build_pinned_request(question, ip)) as response,
        ):
            target = urlsplit(urljoin(question, response.headers.get("Location", "")))
    except (HostError, RepositoryError, httpx.HTTPError, httpx.InvalidURL, ValueError):
        return ""
    moved = f"https://{parts.netloc}{target.path.removesuffix(REFERENCES)}"
    is_here = (target.scheme, target.netloc) == (parts.scheme, parts.netloc) and target.path.endswith(REFERENCES)
    return moved if is_here and moved != address else ""


def open_mirror(address: str) -> Mirror:
    """Return the mirror of an address, whether fetched or not."""
    url = normalize_address(address)
    return Mirror(address=url.removeprefix("file://"), url=url)


def delete_old_mirrors() -> int:
    """Delete mirrors that were not fetched for `MIRROR_DAYS`, then the oldest beyond `MIRRORS_BYTES`; return how many.

    Pages of their entries then say that the site has no copy of the commit. Bundles are stored elsewhere.
    """
    main, found = open_mirror(settings.MAIN_REPOSITORY).folder, []
    for folder in Path(settings.REPOSITORIES).glob("*.git"):
        if folder != main:
            size = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
            found.append((folder.with_suffix(".lock").stat().st_mtime, size, folder))
    kept, deleted, oldest = 0, 0, time.time() - MIRROR_DAYS * 86400
    for fetched_at, size, folder in sorted(found, reverse=True):
        kept += size
        if fetched_at >= oldest and kept <= MIRRORS_BYTES:
            continue
        with folder.with_suffix(".lock").open("r+") as lock, suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
            deleted += 1
    return deleted


def check_files(files: list[TreeFile]) -> None:
    if not files:
        raise RepositoryError(f"The commit has no {MODELS} folder.")
    if len(files) > BUNDLE_FILES:
        raise RepositoryError(f"{MODELS} holds {len(files)} files; at most {BUNDLE_FILES} are allowed.")
    for file in files:
        if file.mode == "120000":
            raise RepositoryError(f"{file.path} is a link; entries may contain regular files only.")
        if file.mode == "160000":
            raise RepositoryError(f"{file.path} is a submodule; entries may contain regular files only.")
        if not BUNDLE_PATH.fullmatch(file.path) or len(file.path) > 200:
            raise RepositoryError(f"{file.path!r} is not a valid file name: use letters, digits, _ . - only.")
    total = sum(file.size for file in files)
    if total > BUNDLE_BYTES:
        raise RepositoryError(f"{MODELS} holds {total:,} bytes; at most {BUNDLE_BYTES:,} are allowed.")


def check_text(path: str, contents: bytes) -> bytes:
    """Return the contents of an entry's file. Raise RepositoryError unless they are text, and Python reads UTF-8."""
    try:
        text = contents.decode("utf-8")
        encoding = tokenize.detect_encoding(io.BytesIO(contents).readline)[0] if path.endswith(".py") else "utf-8"
    except UnicodeDecodeError as error:
        place = f"byte {contents[error.start]:#04x} at offset {error.start}"
        raise RepositoryError(f"{path} is not a text file: {place} is not UTF-8.") from None
    except SyntaxError as error:
        raise RepositoryError(f"{path} declares an {error.msg}; entries are in UTF-8.") from None
    if "\0" in text:
        raise RepositoryError(f"{path} is not a text file; entries may contain source code only.")
    if encoding not in ("utf-8", "utf-8-sig"):
        raise RepositoryError(f"{path} declares an encoding other than UTF-8, {encoding}.")
    return contents


def pack_bundle(sources: dict[str, bytes]) -> bytes:
    """Return a reproducible tar of files, which a node extracts over the release."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(sources):
            member = tarfile.TarInfo(path)
            member.size = len(sources[path])
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(sources[path]))
    return packed.getvalue()
