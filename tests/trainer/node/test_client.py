"""What the node's client says about responses that are not successes."""

from __future__ import annotations

import httpx
import pytest

from trainer.node.client import RequestRefusedError, check_response

ADDRESS = "http://site.example/api/node/v1/poll"


@pytest.mark.parametrize(
    ("location", "server"),
    [
        ("https://site.example/api/node/v1/poll", "https://site.example"),
        ("https://other.example/train/api/node/v1/poll", "https://other.example/train"),
        ("/api/node/v1/poll?again=1", "http://site.example"),
    ],
)
def test_redirect_names_the_address_to_start_with(location: str, server: str) -> None:
    response = httpx.Response(301, headers={"Location": location}, request=httpx.Request("POST", ADDRESS))
    with pytest.raises(RequestRefusedError) as refusal:
        check_response(response)
    assert str(refusal.value).endswith(f"start with --server {server}.")
