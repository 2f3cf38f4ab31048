"""The lending form, the install commands, and the owner's actions on a node."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from datetime import UTC, time, timedelta
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from scheduler import node_slots
from scheduler.job_kinds import PoolTrack
from scheduler.models import Event, JoinToken, Node, Sponsor
from scheduler.sponsors.forms import LendForm
from tests.support.pool import HARDWARE, Agent, create_node, read_error_detail
from trainer import protocol
from trainer.cli.node import build_parser
from trainer.sandbox import bubblewrap
from trainer.sandbox.spec import ResourceLimits, SandboxSpec

pytestmark = [pytest.mark.processes, pytest.mark.django_db]

FORM = {
    "name": "loco",
    "gpu_count": "2",
    "gpu_name": "RTX 3090",
    "lanes": "together",
    "labels": "",
    "available": "always",
    "timezone": "Europe/Berlin",
    "serves": "everyone",
    "disk": "",
    "max_hours": "",
    "shown": "name",
    "sponsor_name": "Ada’s garage",
    "sponsor_link": "https://example.org/ada",
}


@pytest.fixture(autouse=True)
def _node_image_and_wheel(settings: Settings, tmp_path: Path) -> None:
    """Configure an image and a wheel for nodes."""
    settings.NODE_IMAGE, settings.WHEELS = "registry.example.org/node:1", tmp_path
    (tmp_path / "dailytrain-1.2.3-py3-none-any.whl").write_bytes(b"a wheel")


@pytest.fixture
def signed_in_user(client: Client) -> User:
    """A user who is signed in."""
    user = User.objects.create_user("ada")
    client.force_login(user)
    return user


def post_lending_form(client: Client, **fields: Any) -> HttpResponse:
    return client.post("/sponsors/lend/", {**FORM, **fields})


def create_lent_node(client: Client, **fields: Any) -> Node:
    response = post_lending_form(client, **fields)
    assert response.status_code == 302, read_form_errors(response)
    return Node.objects.get(pk=response["Location"].strip("/").split("/")[-1])


def read_form_errors(response: HttpResponse) -> str:
    match = re.search(r'id="problems">(.*?)</div>', response.content.decode(), re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", match[1])).split()) if match else ""


def get_node_page(client: Client, node: Node) -> str:
    response = client.get(f"/sponsors/nodes/{node.pk}/")
    assert response.status_code == 200
    return unescape(response.content.decode())


def get_install_command(client: Client, node: Node, installer: str) -> list[str]:
    match = re.search(rf'id="{installer}-line"[^>]*>([^<]+)<', get_node_page(client, node))
    assert match, "the page has no install command"
    return shlex.split(match[1])


def get_join_token(command: list[str]) -> str:
    return command[command.index("--token") + 1]


def register_node(token: str) -> Agent:
    response = Agent("").call("/register", protocol.Register(name="any", hardware=HARDWARE), token)
    assert response.status_code == 200, response.content
    return Agent(protocol.RegisterReply.model_validate_json(response.content).token)


def post_node_action(client: Client, node: Node, action: str) -> HttpResponse:
    return client.post(f"/sponsors/nodes/{node.pk}/{action}/")


# --- the form --------------------------------------------------------------------------------------------------------


def test_lending_form_saves_settings_on_node(client: Client, signed_in_user: User) -> None:
    node = create_lent_node(
        client,
        available="windows",
        days_0=["0", "4"],
        from_0="19:00",
        to_0="07:00",
        days_1=["5"],
        from_1="00:00",
        to_1="00:00",
        serves="core",
        packets="between",
        disk="200",
        max_hours="12",
        labels="Lab-Cluster, quiet",
        lanes="each",
    )

    assert (node.name, node.owner, node.state, node.token_hash) == ("loco", signed_in_user, Node.State.NEW, None)
    assert (node.serves, node.disk_bytes, node.max_hours, node.slots) == ("core", 200 * 10**9, 12.0, 2)
    assert (node.timezone, node.shown, node.packets) == ("Europe/Berlin", True, "between")
    assert node.owner_labels == ["lab-cluster", "quiet"]
    windows = [(window.weekday, window.start, window.end) for window in node.windows.all()]
    assert windows == [(0, time(19), time(7)), (4, time(19), time(7)), (5, time(0), time(0))]
    assert node.hardware["gpus"] == ["RTX 3090", "RTX 3090"]
    sponsor = Sponsor.objects.get(user=signed_in_user)
    assert (sponsor.name, sponsor.link) == ("Ada’s garage", "https://example.org/ada")
    assert Event.objects.about(node).get().actor == "ada"

    end = (timezone.now() + timedelta(days=2)).replace(hour=6, minute=0, second=0, microsecond=0)
    fields = {"available": "until", "available_until": f"{end:%Y-%m-%dT%H:%M}", "timezone": "Asia/Tokyo"}
    lent_until = create_lent_node(client, name="second", **fields)
    assert lent_until.available_until == end.astimezone(UTC) - timedelta(hours=9)
    assert lent_until.packets == "never"


def list_two_tracks() -> dict[str, PoolTrack]:
    return {"small": PoolTrack("Small models"), "night": PoolTrack("One night")}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "two words"}, "letters, digits, dots, dashes"),
        ({"name": "TAKEN"}, "A node with this name exists"),
        ({"available": "windows"}, "Choose at least one day"),
        ({"available": "windows", "from_0": "19:00", "to_0": "07:00"}, "Choose the days"),
        ({"available": "windows", "days_1": ["2"], "from_1": "19:00"}, "Enter a start and an end"),
        ({"available": "until", "available_until": ""}, "Enter a date and a time"),
        ({"available": "until", "available_until": "2020-01-01T12:00"}, "This time has passed"),
        ({"available": "until", "available_until": "2199-01-01T12:00"}, "more than a year ahead"),
        ({"serves": "track"}, "Choose a track"),
        ({"disk": "3"}, "greater than or equal to 10"),
        ({"sponsor_name": ""}, "Enter a name"),
        ({"sponsor_link": "javascript:alert(1)"}, "Enter a valid URL"),
        ({"labels": "a/b"}, "is not a valid label"),
        ({"labels": "8xh100"}, "The node sets"),
        ({"labels": "h100"}, "The node sets"),
    ],
)
def test_lending_form_error_keeps_input(
    client: Client, signed_in_user: User, fields: dict[str, Any], message: str
) -> None:
    create_node("taken")

    response = post_lending_form(client, **fields)

    assert response.status_code == 200
    assert message in read_form_errors(response)
    content = unescape(response.content.decode())
    typed = {**FORM, **fields}
    for name in ("name", "gpu_name", "labels", "disk", "max_hours", "sponsor_name", "sponsor_link"):
        if typed[name]:
            assert f'value="{typed[name]}"' in content, name
    assert Node.objects.count() == 1
    assert not Sponsor.objects.exists()


def test_name_that_another_node_takes_after_the_check_is_refused(
    client: Client, signed_in_user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_settings = LendForm.save_settings

    def take_name_and_save(form: LendForm, *arguments: Any) -> Node:
        create_node(FORM["name"])
        return save_settings(form, *arguments)

    monkeypatch.setattr(LendForm, "save_settings", take_name_and_save)
    assert "A node with this name exists" in read_form_errors(post_lending_form(client))
    assert not Sponsor.objects.exists()


def test_unjoined_nodes_per_owner_are_limited(client: Client, signed_in_user: User) -> None:
    for number in range(20):
        Node.objects.create(name=f"paper-{number}", owner=signed_in_user)

    response = post_lending_form(client)

    assert response.status_code == 200
    assert "Too many of your nodes" in read_form_errors(response)


def test_node_settings_can_be_changed(client: Client, signed_in_user: User) -> None:
    node = create_lent_node(client, available="windows", days_0=["0", "4"], from_0="19:00", to_0="07:00", labels="mine")
    register_node(get_join_token(get_install_command(client, node, "pipx")))
    Node.objects.filter(pk=node.pk).update(labels=["1x3090", "mine"])
    address = f"/sponsors/nodes/{node.pk}/settings/"
    form = client.get(address).content.decode()
    assert re.search(r'name="days_0" value="4"[^>]*checked', form)
    assert 'name="from_0" value="19:00"' in form

    response = client.post(address, {**FORM, "labels": "yours", "shown": "anonymous", "disk": "50"})

    assert response.status_code == 302
    node.refresh_from_db()
    assert (node.available, node.shown, node.disk_bytes, node.windows.count()) == ("always", False, 50 * 10**9, 0)
    assert node.labels == ["1x3090", "yours"]
    assert "changed the settings of loco" in Event.objects.about(node).last().sentence  # type: ignore[union-attr]


# --- the install commands --------------------------------------------------------------------------------------------


def test_bubblewrap_without_capabilities_works(monkeypatch: pytest.MonkeyPatch) -> None:
    # As the container's user with what `--cap-drop ALL` and `no-new-privileges` leave. The image's Python is in /usr.
    monkeypatch.setattr(bubblewrap, "list_interpreter_paths", list)
    limits = ResourceLimits(wall_seconds=10, memory_bytes=1 << 30, disk_bytes=1 << 30, processes=8)
    sandbox = bubblewrap.build_bwrap_arguments(SandboxSpec([], {}, [], Path("/"), limits), None)
    drop = ["setpriv", "--no-new-privs", "--inh-caps=-all"]
    if os.geteuid() == 0:
        drop += ["--bounding-set=-all", "--reuid=10002", "--regid=10002", "--clear-groups"]
    process = subprocess.run([*drop, *sandbox, "cat", "/proc/self/status"], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert re.search(r"^CapBnd:\s0+$", process.stdout, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\s1$", process.stdout, re.MULTILINE)


@pytest.mark.parametrize("result", ["true", "false"])
def test_pipx_command_of_a_hopper_gpu_starts_the_node_with_and_without_a_wheel(
    client: Client, signed_in_user: User, tmp_path: Path, result: str
) -> None:
    node = create_lent_node(client, gpu_name="NVIDIA H100 80GB HBM3")
    page = get_node_page(client, node)
    assert "FlashAttention 3 is included if PyTorch’s index has a wheel" in page
    command = re.search(r'id="pipx-line"[^>]*>([^<]+)<', page)
    assert command
    programs = {
        "pipx": f'[ $1 = environment ] && exec echo {tmp_path}\necho pipx "$*"\n[ $1 != runpip ] || {result}',
        "dailytrain": 'echo dailytrain "$*"',
    }
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", command[1]],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("pipx install --force dailytrain[")
    assert lines[1].startswith("pipx runpip dailytrain install --no-deps --only-binary=:all:")
    assert lines[-1].startswith("dailytrain node --server ")
    assert ("No wheel of FlashAttention 3 fits" in done.stdout) == (result == "false")


@pytest.mark.parametrize(
    ("fields", "extras"),
    [
        ({"packets": "never"}, "training,notebook,swarm"),
        ({"packets": "between"}, "training,notebook,swarm,rephrase"),
        ({"packets": "only"}, "rephrase"),
        ({"serves": "track", "serves_track": "small"}, "training,notebook"),
        ({"gpu_count": "2"}, "training,gpu,notebook,swarm"),
    ],
)
def test_pipx_command_installs_the_wheel_with_what_the_node_is_lent_for(
    client: Client, signed_in_user: User, settings: Settings, fields: dict[str, str], extras: str
) -> None:
    settings.POOL_TRACKS = "tests.scheduler.sponsors.test_lending.list_two_tracks"
    node = create_lent_node(client, **{"gpu_count": "0", "labels": "mine", **fields})
    assert (node.serves, node.serves_track) == (fields.get("serves", "everyone"), fields.get("serves_track", ""))
    page = get_node_page(client, node)
    assert ("Small models only" in page) == ("serves" in fields)
    assert ("PyTorch’s own FlashAttention 2 is used" in page) == ("gpu_count" in fields)
    command = get_install_command(client, node, "pipx")
    wheel = f"{settings.SITE_URL}/download/dailytrain-1.2.3-py3-none-any.whl#sha256={sha256(b'a wheel').hexdigest()}"
    assert command[:4] == ["pipx", "run", "--spec", f"dailytrain[{extras}] @ {wheel}"]
    project = tomllib.loads((Path(settings.BASE_DIR) / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) >= set(extras.split(","))
    program = command.index("node") - 1
    assert (project["name"], command[program] in project["scripts"]) == ("dailytrain", True)
    assert build_parser().parse_args(command[program + 2 :]).label == ["mine"]
    settings.NODE_IMAGE, settings.WHEELS = "", settings.WHEELS / "nothing"
    page = get_node_page(client, node)
    assert "pipx run" not in page
    assert "manage.py build_wheel" in page


def test_node_page_names_each_gpu_and_why_one_is_unusable(client: Client, signed_in_user: User) -> None:
    node = create_lent_node(client)
    agent = register_node(get_join_token(get_install_command(client, node, "docker")))
    assert "none found" in get_node_page(client, node)
    card = protocol.Gpu(name="NVIDIA H100", memory_bytes=80 * 2**30)
    lost = protocol.Gpu(name="GPU 1", problem="It does not answer (GPU is lost).")
    agent.hardware = HARDWARE.model_copy(
        update={"gpus": ("NVIDIA H100",), "gpu_details": (card,), "unusable_gpus": (lost,)}
    )
    agent.request_action()

    page = get_node_page(client, node)

    assert "NVIDIA H100, 80\u00a0GB" in page
    assert "<dt>Unusable GPU</dt><dd>GPU 1. It does not answer (GPU is lost).</dd>" in page
    assert "none found" not in page
    node.refresh_from_db()
    assert node_slots.build_node_slot(node, timezone.now()).gpus == 1, "matching counts usable GPUs"


def test_install_command_is_shown_only_in_its_session(client: Client, signed_in_user: User) -> None:
    node = create_lent_node(client)
    other_session = Client()
    other_session.force_login(signed_in_user)

    assert "dtn_join_" not in get_node_page(other_session, node)
    assert "loco is expected" in get_node_page(other_session, node)


def test_new_install_command_expires_old_one_only(client: Client, signed_in_user: User) -> None:
    node = create_lent_node(client)
    old_token = get_join_token(get_install_command(client, node, "docker"))
    post_node_action(client, node, "rotate")
    response = Agent("").call("/register", protocol.Register(name="any", hardware=HARDWARE), old_token)
    assert response.status_code == 401
    agent = register_node(get_join_token(get_install_command(client, node, "docker")))
    agent.request_action()

    post_node_action(client, node, "rotate")

    assert agent.request_action().action == "idle", "the current token is valid until the new command is used"
    command = get_install_command(client, node, "docker")
    assert command[:3] == ["docker", "rm", "-f"], "the new command removes the old container"
    assert command[command.index("--shm-size") + 1] == "2g"
    moved_agent = register_node(get_join_token(command))
    assert agent.poll().status_code == 401
    assert moved_agent.request_action().action == "idle"
    assert Node.objects.count() == 1


# --- actions on a node -----------------------------------------------------------------------------------------------


@pytest.fixture
def joined_node(client: Client, signed_in_user: User) -> tuple[Node, Agent]:
    node = create_lent_node(client)
    agent = register_node(get_join_token(get_install_command(client, node, "docker")))
    agent.request_action()
    return node, agent


def test_revoking_node_expires_all_its_tokens(client: Client, joined_node: tuple[Node, Agent]) -> None:
    node, agent = joined_node
    post_node_action(client, node, "rotate")
    unused_token = get_join_token(get_install_command(client, node, "docker"))

    post_node_action(client, node, "revoke")

    assert agent.poll().status_code == 401
    response = Agent("").call("/register", protocol.Register(name="any", hardware=HARDWARE), unused_token)
    assert "expired" in read_error_detail(response)
    assert "revoked" in get_node_page(client, node)


def test_repeated_or_unknown_node_action_changes_nothing(client: Client, joined_node: tuple[Node, Agent]) -> None:
    node, _ = joined_node
    for action in ("drain", "pause", "resume", "revoke"):
        assert client.get(f"/sponsors/nodes/{node.pk}/{action}/").status_code == 405
        post_node_action(client, node, action)
        events = Event.objects.about(node).count()
        assert post_node_action(client, node, action).status_code == 302
        assert Event.objects.about(node).count() == events
    assert post_node_action(client, node, "explode").status_code == 404
    assert post_node_action(Client(), node, "revoke")["Location"].startswith("/accounts/login/")
    unjoined_node = create_lent_node(client, name="second")
    for each in (unjoined_node, node):
        post_node_action(client, each, "forget")
    assert [row.name for row in Node.objects.all()] == ["loco"], "a node that has joined is not deleted"
    assert not JoinToken.objects.filter(renews=unjoined_node.pk).exists()
