"""Publishing to the Hugging Face Hub: a repository, its files in one commit, a tag.

Publishing is idempotent. Files that the Hub has are not uploaded again, so an interrupted upload resumes. A commit
carries a mark, by which a retry finds the commit of an earlier attempt. It names its parent, so one of two concurrent
attempts is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUSY_STATUSES = (408, 409, 412, 425, 429)
"""Statuses worth a retry, like all 5xx. 412: the branch has changed since we read it."""
REASONS = {
    401: "The Hub rejected the token: set HF_TOKEN to one with write access to the organization.",
    403: "Permission denied by the Hub: {message}. HF_TOKEN needs write access to the organization's repositories.",
    404: "The Hub has no repository {repository}, or hides it: check HUB_ORGANIZATION and HF_TOKEN.",
    413: "The upload is too large for the Hub: {message}",
    422: "The Hub rejected the upload: {message}",
}


class HubError(ValueError):
    """The Hub rejected a request, and a retry will not help; the message is a sentence."""


class HubBusyError(HubError):
    """The Hub is temporarily unavailable, or a file of ours. `after`: seconds until the retry, if the Hub says."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


@dataclass(frozen=True)
class FileAddition:
    """A file to commit."""

    path: str
    """Path in the repository."""
    content: bytes | Path


@dataclass(frozen=True)
class Commit:
    id: str
    marks: tuple[str, ...]
    """Lines of its message that begin with `MARK`, without that prefix."""


MARK = "Published-from: "


class Repository:
    """A repository on the Hub. Raises HubBusyError if a retry may help, else HubError."""

    def __init__(self, name: str, *, endpoint: str, token: str, kind: str = "model") -> None:
        """`name`: owner/name. `kind`: model or dataset. `endpoint`: https://huggingface.co or a compatible server."""
        from huggingface_hub import HfApi, constants
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
        constants.ENDPOINT = endpoint  # huggingface_hub parses URLs in replies with this, not with the API's endpoint
        self.name = name
        self.kind = kind
        self.address = f"{endpoint}/{'datasets/' if kind == 'dataset' else ''}{name}"
        self._api = HfApi(endpoint=endpoint, token=token, library_name="dailytrain")

    def create_if_missing(self) -> None:
        """Create the repository if it does not exist."""
        with translate_errors(self.name):
            self._api.create_repo(self.name, repo_type=self.kind, exist_ok=True)

    def list_commits(self) -> list[Commit]:
        """Return the commits of `main`, newest first."""
        with translate_errors(self.name):
            found = self._api.list_repo_commits(self.name, repo_type=self.kind)
        marks = re.compile(rf"^{MARK}(.*)$", re.MULTILINE)
        return [Commit(commit.commit_id, tuple(marks.findall(commit.message))) for commit in found]

    def list_files(self) -> list[str]:
        """Return the paths of all files of `main`."""
        with translate_errors(self.name):
            return list(self._api.list_repo_files(self.name, repo_type=self.kind))

    def publish(
        self, files: Sequence[FileAddition], title: str, mark: str, earlier: Sequence[Commit], *, instead_of: str = ""
    ) -> str:
        """Commit the files to `main` in one commit and return its id. `earlier`: the result of `list_commits`.

        `instead_of`: a folder whose other files are deleted. Unchanged files make no commit; then the newest commit's
        id is returned.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        additions = [CommitOperationAdd(file.path, file.content) for file in files]
        there = self.list_files() if instead_of else []
        gone = {path for path in there if path.startswith(f"{instead_of}/")} - {file.path for file in files}
        with translate_errors(self.name):
            for addition in sorted(additions, key=lambda addition: addition.upload_info.size):
                # One at a time: a finished upload remains even if the next one fails.
                self._api.preupload_lfs_files(self.name, [addition], repo_type=self.kind, free_memory=False)
            made = self._api.create_commit(
                self.name,
                [*additions, *(CommitOperationDelete(path) for path in sorted(gone))],
                repo_type=self.kind,
                commit_message=title,
                commit_description=f"{MARK}{mark}",
                parent_commit=earlier[0].id if earlier else None,
            )
        return str(made.oid)

    def create_tag(self, name: str, commit: str) -> None:
        """Tag a commit, unless the tag exists."""
        with translate_errors(self.name):
            self._api.create_tag(self.name, tag=name, revision=commit, repo_type=self.kind, exist_ok=True)


# --- errors -----------------------------------------------------------------------------------------------------------


@contextmanager
def translate_errors(repository: str, folder: Path | None = None) -> Iterator[None]:
    """Translate the client's errors, and those of the disk, to HubError and HubBusyError.

    `folder`: where files are written.
    """
    import requests
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except HfHubHTTPError as error:
        response: Any = error.response
        raise build_hub_error(repository, response, str(error.server_message or response.reason or error)) from error
    except requests.RequestException as error:
        if error.response is not None:
            raise build_hub_error(repository, error.response, error.response.reason) from error
        raise build_unreachable_error(error) from error
    except RuntimeError as error:
        # An upload to the Hub's storage failed. Its status says nothing about our permissions, which were checked
        # before; upload addresses expire.
        response = getattr(error.__cause__, "response", None)
        if response is None:
            raise build_unreachable_error(error.__cause__ or error) from error
        raise HubBusyError(f"A file upload failed: the Hub's storage answered {response.status_code}.") from error
    except (ConnectionError, TimeoutError) as error:
        raise build_unreachable_error(error) from error
    except OSError as error:  # of a file: network errors of `requests` are above
        place = error.filename or folder or "A local file"
        raise HubBusyError(f"{place}: {shorten_message(error.strerror or error)}.") from error
    except ValueError as error:
        raise HubError(f"The Hub rejected the upload: {shorten_message(error)}") from error


def build_unreachable_error(error: BaseException) -> HubBusyError:
    return HubBusyError(f"The Hub cannot be reached ({type(error).__name__}).")


def build_hub_error(repository: str, response: Any, message: str) -> HubError:
    status = int(response.status_code)
    if status in BUSY_STATUSES or status >= 500:
        wait = response.headers.get("Retry-After", "")
        after = float(wait) if wait.isdecimal() else None
        return HubBusyError(f"The Hub answered {status}: {shorten_message(message)}", after)
    reason = REASONS.get(status, "The Hub answered {status}: {message}")
    return HubError(reason.format(repository=repository, status=status, message=shorten_message(message)))


def shorten_message(error: object) -> str:
    return " ".join(str(error).split())[:300].rstrip(".")
