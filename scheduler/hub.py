"""The Hugging Face Hub, as far as publishing goes: a repository, its files in one commit, a tag.

Nothing is done twice. A file that the Hub has is not sent again, so that an upload goes on where it broke; a commit
carries a mark, by which the next attempt finds what the last one got done; and it names its parent, so that of two
attempts at once one is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUSY = (408, 409, 412, 425, 429)
"""Beside 5xx: it helps to wait. 412: the branch has moved since we looked."""
REASONS = {
    401: "The Hub does not take the token: set HF_TOKEN to one that may write to the organisation.",
    403: "The Hub does not allow it: {said}. HF_TOKEN needs the right to write to the organisation's repositories.",
    404: "The Hub does not know {where}, or does not show it to us: check HUB_ORGANISATION and HF_TOKEN.",
    413: "The Hub says that this is too much at once: {said}",
    422: "The Hub did not accept what we sent: {said}",
}


class HubError(ValueError):
    """The Hub refused, and will again; the message is a sentence."""


class HubBusy(HubError):
    """It cannot be done just now. `after`: the seconds that the Hub asks us to wait, if it says."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


@dataclass(frozen=True)
class Addition:
    """A file of a commit."""

    path: str
    """In the repository."""
    content: bytes | Path


@dataclass(frozen=True)
class Commit:
    id: str
    marks: tuple[str, ...]
    """Lines of its message that begin with `MARK`, without that."""


MARK = "Published-from: "


class Repository:
    """One repository of the Hub. Raises HubBusy where it helps to wait, HubError where not."""

    def __init__(self, name: str, *, endpoint: str, token: str, kind: str = "model") -> None:
        """`name`: owner/name. `kind`: model or dataset. `endpoint`: https://huggingface.co, or another of its kind."""
        from huggingface_hub import HfApi, constants
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
        constants.ENDPOINT = (
            endpoint  # it reads the addresses in the Hub's answers by this, whatever its own API is told
        )
        self.name = name
        self.kind = kind
        self.address = f"{endpoint}/{'datasets/' if kind == 'dataset' else ''}{name}"
        self._api = HfApi(endpoint=endpoint, token=token, library_name="dailytrain")

    def ensure(self) -> None:
        """Make the repository, unless it is there."""
        with explained(self.name):
            self._api.create_repo(self.name, repo_type=self.kind, exist_ok=True)

    def commits(self) -> list[Commit]:
        """Return the commits of `main`, newest first."""
        with explained(self.name):
            found = self._api.list_repo_commits(self.name, repo_type=self.kind)
        return [Commit(commit.commit_id, tuple(marks(commit.message))) for commit in found]

    def files(self) -> list[str]:
        """Return the paths of all files of `main`."""
        with explained(self.name):
            return list(self._api.list_repo_files(self.name, repo_type=self.kind))

    def publish(
        self, files: Sequence[Addition], title: str, mark: str, earlier: Sequence[Commit], *, instead_of: str = ""
    ) -> str:
        """Put the files into `main` in one commit, and return it. `earlier`: what `commits` has just said.

        `instead_of`: a folder, of which nothing else stays. Files that have not changed make no commit; the newest one
        is returned.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        additions = [CommitOperationAdd(file.path, file.content) for file in files]
        there = self.files() if instead_of else []
        gone = {path for path in there if path.startswith(f"{instead_of}/")} - {file.path for file in files}
        with explained(self.name):
            for addition in sorted(additions, key=lambda addition: addition.upload_info.size):
                # One after another: what has arrived stays, whatever becomes of the next.
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

    def tag(self, name: str, commit: str) -> None:
        """Give a commit a name, unless that name is taken."""
        with explained(self.name):
            self._api.create_tag(self.name, tag=name, revision=commit, repo_type=self.kind, exist_ok=True)


def marks(message: str) -> Iterator[str]:
    return (line.removeprefix(MARK) for line in message.splitlines() if line.startswith(MARK))


# --- what goes wrong --------------------------------------------------------------------------------------------------


@contextmanager
def explained(repository: str) -> Iterator[None]:
    """Say what the client's errors mean to us."""
    import requests
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except HfHubHTTPError as error:
        raise judged(repository, error.response, said(error)) from error
    except requests.RequestException as error:
        if error.response is not None:
            raise judged(repository, error.response, error.response.reason) from error
        raise unreachable(error) from error
    except RuntimeError as error:
        # Of a file on its way to the Hub's storage. What that answers says nothing of our rights: they were asked
        # before, and an address to send to expires.
        response = getattr(error.__cause__, "response", None)
        if response is None:
            raise unreachable(error.__cause__ or error) from error
        raise HubBusy(f"A file could not be sent: the Hub's storage answered {response.status_code}.") from error
    except OSError as error:
        raise unreachable(error) from error
    except ValueError as error:
        raise HubError(f"The Hub did not accept what we sent: {one_line(error)}") from error


def unreachable(error: BaseException) -> HubBusy:
    return HubBusy(f"The Hub cannot be reached just now ({type(error).__name__}).")


def judged(repository: str, response: Any, message: str) -> HubError:
    status = int(response.status_code)
    if status in BUSY or status >= 500:
        wait = response.headers.get("Retry-After", "")
        return HubBusy(f"The Hub answered {status}: {one_line(message)}", float(wait) if wait.isdecimal() else None)
    reason = REASONS.get(status, "The Hub answered {status}: {said}")
    return HubError(reason.format(where=repository, status=status, said=one_line(message)))


def said(error: Any) -> str:
    """Return the Hub's own message, where it sent one."""
    return str(error.server_message or error.response.reason or error)


def one_line(error: object) -> str:
    return " ".join(str(error).split())[:300].rstrip(".")
