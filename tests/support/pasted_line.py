"""The way of a sponsor through the site: signs in, fills in the form, copies the command."""

from __future__ import annotations

import re
from html import unescape

import httpx

from tests.support.waits import WAIT_SECONDS

FORM = {"gpu_count": "0", "lanes": "together", "available": "always", "timezone": "UTC", "serves": "everyone"}


def lend_machine(site_url: str, user: str, password: str, name: str = "loco") -> tuple[str, list[str]]:
    """Lend a machine without a GPU; return the pipx command on its page and the packages that the page asks apt for."""
    with httpx.Client(base_url=site_url, follow_redirects=True, timeout=WAIT_SECONDS) as browser:
        browser.get("/accounts/login/")
        secret = {"csrfmiddlewaretoken": browser.cookies["csrftoken"]}
        browser.post("/accounts/login/", data={"login": user, "password": password, **secret})
        form = {**FORM, "name": name, "shown": "name", "sponsor_name": user.title()}
        browser.get("/sponsors/lend/")
        secret = {"csrfmiddlewaretoken": browser.cookies["csrftoken"]}
        page = unescape(browser.post("/sponsors/lend/", data={**form, **secret}).raise_for_status().text)
    line = re.search(r'id="pipx-line"[^>]*>([^<]+)<', page)
    packages = re.search(r"<code>apt install ([^<]+)</code>", page)
    assert line, page
    assert packages, page
    return line[1], packages[1].split()
