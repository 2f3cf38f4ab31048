"""Lending a machine: the form, the line to paste, and what its owner can ask of it with one click."""

from __future__ import annotations

import json
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
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, Settings

from scheduler import pool
from scheduler.models import Event, JoinToken, Node, Sponsor
from tests.support.pool import HARDWARE, Agent, make_job, make_node, sentence
from trainer import protocol
from trainer.cli.node import build_parser
from trainer.node.job import GRACE_SECONDS
from trainer.sandbox import bubblewrap
from trainer.sandbox.spec import ResourceLimits, SandboxSpec

pytestmark = pytest.mark.django_db

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
def _lines_to_paste(settings: Settings, tmp_path: Path) -> None:
    """A site with an image and a wheel for nodes."""
    settings.NODE_IMAGE, settings.WHEELS = "registry.example.org/node:1", tmp_path
    (tmp_path / "dailytrain-1.2.3-py3-none-any.whl").write_bytes(b"a wheel")


@pytest.fixture
def ada(client: Client) -> User:
    """A sponsor, signed in."""
    user = User.objects.create_user("ada")
    client.force_login(user)
    return user


def lend(client: Client, **fields: Any) -> HttpResponse:
    return client.post("/sponsors/lend/", {**FORM, **fields})


def lent(client: Client, **fields: Any) -> Node:
    answer = lend(client, **fields)
    assert answer.status_code == 302, problems(answer)
    return Node.objects.get(pk=answer["Location"].strip("/").split("/")[-1])


def problems(answer: HttpResponse) -> str:
    found = re.search(r'id="problems">(.*?)</div>', answer.content.decode(), re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", found[1])).split()) if found else ""


def page(client: Client, node: Node) -> str:
    answer = client.get(f"/sponsors/nodes/{node.pk}/")
    assert answer.status_code == 200
    return unescape(answer.content.decode())


def line(client: Client, node: Node, which: str) -> list[str]:
    found = re.search(rf'id="{which}-line"[^>]*>([^<]+)<', page(client, node))
    assert found, "no line on the page"
    return shlex.split(found[1])


def token_of(line: list[str]) -> str:
    return line[line.index("--token") + 1]


def join(token: str) -> Agent:
    answer = Agent("").call("/register", protocol.Register(name="any", hardware=HARDWARE), token)
    assert answer.status_code == 200, answer.content
    return Agent(protocol.RegisterReply.model_validate_json(answer.content).token)


def click(client: Client, node: Node, what: str) -> HttpResponse:
    return client.post(f"/sponsors/nodes/{node.pk}/{what}/")


# --- the form ------------------------------------------------------------------------------------------------------


def test_lending_form_requires_sign_in(client: Client) -> None:
    assert client.get("/sponsors/lend/")["Location"] == "/accounts/login/?next=/sponsors/lend/"


def test_lending_form_saves_settings_on_node(client: Client, ada: User) -> None:
    node = lent(
        client,
        available="windows",
        days_0=["0", "4"],
        from_0="19:00",
        to_0="07:00",
        days_1=["5"],
        from_1="00:00",
        to_1="00:00",
        serves="core",
        disk="200",
        max_hours="12",
        labels="Lab-Cluster, quiet",
        lanes="each",
    )

    assert (node.name, node.owner, node.state, node.token_hash) == ("loco", ada, Node.State.NEW, None)
    assert (node.serves, node.disk_bytes, node.max_hours, node.slots) == ("core", 200 * 10**9, 12.0, 2)
    assert (node.timezone, node.shown, node.owner_labels) == ("Europe/Berlin", True, ["lab-cluster", "quiet"])
    windows = [(window.weekday, window.start, window.end) for window in node.windows.all()]
    assert windows == [(0, time(19), time(7)), (4, time(19), time(7)), (5, time(0), time(0))]
    assert node.hardware["gpus"] == ["RTX 3090", "RTX 3090"]
    sponsor = Sponsor.objects.get(user=ada)
    assert (sponsor.name, sponsor.link) == ("Ada’s garage", "https://example.org/ada")
    assert Event.objects.about(node).get().actor == "ada"


def test_lending_until_uses_owner_time_zone(client: Client, ada: User) -> None:
    ahead = (timezone.now() + timedelta(days=2)).replace(hour=6, minute=0, second=0, microsecond=0)

    node = lent(client, available="until", available_until=f"{ahead:%Y-%m-%dT%H:%M}", timezone="Asia/Tokyo")

    assert node.available_until == ahead.astimezone(UTC) - timedelta(hours=9)


def test_node_lent_to_one_track_serves_only_it(client: Client, ada: User, settings: Settings) -> None:
    settings.POOL_TRACKS = "tests.scheduler.sponsors.test_lending.two_tracks"

    node = lent(client, serves="track", serves_track="small")

    assert (node.serves, node.serves_track) == ("track", "small")
    assert "Small models only" in page(client, node)


def two_tracks() -> dict[str, str]:
    return {"small": "Small models", "night": "One night"}


def test_anonymous_sponsor_needs_no_name(client: Client, ada: User) -> None:
    assert not lent(client, shown="anonymous", sponsor_name="", sponsor_link="").shown
    assert not Sponsor.objects.exists()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": ""}, "This field is required"),
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
        ({"max_hours": "-1"}, "greater than or equal to 0.5"),
        ({"max_hours": "nan"}, "Enter a number"),
        ({"timezone": "Mars/Olympus"}, "Select a valid choice"),
        ({"sponsor_name": ""}, "Enter a name"),
        ({"sponsor_link": "javascript:alert(1)"}, "Enter a valid URL"),
        ({"labels": "a/b"}, "is not a valid label"),
        ({"labels": "8xh100"}, "The node sets"),
        ({"labels": "h100"}, "The node sets"),
    ],
)
def test_lending_form_error_keeps_input(client: Client, ada: User, fields: dict[str, Any], said: str) -> None:
    make_node("taken")

    answer = lend(client, **fields)

    assert answer.status_code == 200
    assert said in problems(answer)
    content = unescape(answer.content.decode())
    typed = {**FORM, **fields}
    for name in ("name", "gpu_name", "labels", "disk", "max_hours", "sponsor_name", "sponsor_link"):
        if typed[name]:
            assert f'value="{typed[name]}"' in content, name
    assert Node.objects.count() == 1
    assert not Sponsor.objects.exists()


def test_lending_form_error_keeps_checkboxes(client: Client, ada: User) -> None:
    content = lend(
        client, name="", available="windows", days_1=["2", "6"], from_1="08:00", to_1="09:30"
    ).content.decode()

    for day in ("2", "6"):
        assert re.search(rf'name="days_1" value="{day}"[^>]*checked', content), day
    assert re.search(r'name="to_1" value="09:30"', content)
    assert re.search(r'name="available" value="windows"[^>]*checked', content)


def test_unjoined_nodes_per_owner_are_limited(client: Client, ada: User) -> None:
    for number in range(20):
        Node.objects.create(name=f"paper-{number}", owner=ada)

    answer = lend(client)

    assert answer.status_code == 200
    assert "Too many of your nodes" in problems(answer)


def test_node_settings_can_be_changed(client: Client, ada: User) -> None:
    node = lent(client, available="windows", days_0=["0", "4"], from_0="19:00", to_0="07:00", labels="mine")
    join(token_of(line(client, node, "pipx")))
    Node.objects.filter(pk=node.pk).update(labels=["1x3090", "mine"])
    address = f"/sponsors/nodes/{node.pk}/wishes/"
    shown = client.get(address).content.decode()
    assert re.search(r'name="days_0" value="4"[^>]*checked', shown)
    assert 'name="from_0" value="19:00"' in shown

    answer = client.post(address, {**FORM, "labels": "yours", "shown": "anonymous", "disk": "50"})

    assert answer.status_code == 302
    node.refresh_from_db()
    assert (node.available, node.shown, node.disk_bytes, node.windows.count()) == ("always", False, 50 * 10**9, 0)
    assert node.labels == ["1x3090", "yours"]
    assert "changed the settings of loco" in Event.objects.about(node).last().sentence  # type: ignore[union-attr]


# --- the line to paste ---------------------------------------------------------------------------------------------


def test_install_commands_have_name_labels_and_token(client: Client, ada: User) -> None:
    node = lent(client, labels="mine")
    docker, pipx = line(client, node, "docker"), line(client, node, "pipx")

    assert docker[:2] == ["docker", "run"]
    assert docker[docker.index("--gpus") + 1] == "all"
    assert "--privileged" not in docker
    assert pipx[:2] == ["pipx", "run"]
    for words in (docker, pipx):
        assert words[words.index("--name", words.index("--server")) + 1] == "loco"
        assert words[words.index("--label") + 1] == "mine"

    agent = join(token_of(docker))

    assert token_of(docker) == token_of(pipx)
    assert agent.ask().action == "idle"
    node.refresh_from_db()
    assert (node.state, node.owner, Node.objects.count()) == (Node.State.ONLINE, ada, 1)


def test_docker_command_without_gpus_requests_none(client: Client, ada: User) -> None:
    assert "--gpus" not in line(client, lent(client, gpu_count="0"), "docker")


def test_docker_command_matches_the_image(client: Client, ada: User, settings: Settings) -> None:
    node = lent(client)
    words = line(client, node, "docker")
    target = (Path(settings.BASE_DIR) / "Dockerfile").read_text().partition("AS node\n")[2]
    entry, volume = (re.search(rf"^{word} (.+)$", target, re.MULTILINE) for word in ("ENTRYPOINT", "VOLUME"))
    assert entry
    assert volume
    image = words.index(settings.NODE_IMAGE)
    options, told = words[:image], words[image + 1 :]
    assert json.loads(entry[1]) == ["dailytrain", "node"]
    assert build_parser().parse_args(told).name == "loco", "the agent takes what stands behind the image's name"
    assert options[options.index("-v") + 1] == f"dailytrain-loco:{volume[1]}"
    assert re.search(rf"^ENV DAILYTRAIN_HOME={volume[1]}$", target, re.MULTILINE), "what it keeps is in the volume"
    assert int(options[options.index("--stop-timeout") + 1]) > GRACE_SECONDS, "its last checkpoint gets out"
    assert {"seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined"} <= set(options)
    assert options[options.index("--cap-drop") + 1] == "ALL"


def test_docker_command_drops_capabilities(client: Client, ada: User) -> None:
    words = line(client, lent(client), "docker")
    assert words[words.index("--cap-drop") + 1] == "ALL"
    assert "no-new-privileges" in words
    assert "--privileged" not in words


def test_bubblewrap_without_capabilities_works(monkeypatch: pytest.MonkeyPatch) -> None:
    # As the container's user with what `--cap-drop ALL` and `no-new-privileges` leave. The image's Python is in /usr.
    monkeypatch.setattr(bubblewrap, "list_interpreter_folders", list)
    limits = ResourceLimits(wall_seconds=10, memory_bytes=1 << 30, disk_bytes=1 << 30, processes=8)
    sandbox = bubblewrap.build_bwrap_arguments(SandboxSpec([], {}, [], Path("/"), limits), None)
    drop = ["setpriv", "--no-new-privs", "--inh-caps=-all"]
    if os.geteuid() == 0:
        drop += ["--bounding-set=-all", "--reuid=10002", "--regid=10002", "--clear-groups"]
    done = subprocess.run([*drop, *sandbox, "cat", "/proc/self/status"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^CapBnd:\s0+$", done.stdout, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\s1$", done.stdout, re.MULTILINE)


def test_docker_command_for_local_site_uses_host_network(client: Client, ada: User, settings: Settings) -> None:
    assert ("--network" in line(client, lent(client), "docker")) == ("127.0.0.1" in settings.SITE_URL)
    settings.SITE_URL = "http://localhost:8000"
    words = line(client, lent(client, name="near"), "docker")
    assert words[words.index("--network") + 1] == "host"
    settings.SITE_URL = "https://train.example.org"
    assert "--network" not in line(client, lent(client, name="far"), "docker")


def test_pipx_command_starts_agent_from_wheel(client: Client, ada: User, settings: Settings) -> None:
    words = line(client, lent(client, labels="mine"), "pipx")
    wheel = f"{settings.SITE_URL}/download/dailytrain-1.2.3-py3-none-any.whl#sha256={sha256(b'a wheel').hexdigest()}"
    assert words[:4] == ["pipx", "run", "--spec", f"dailytrain[training,gpu] @ {wheel}"]
    project = tomllib.loads((Path(settings.BASE_DIR) / "pyproject.toml").read_text())["project"]
    assert words[4] in project["scripts"]
    assert project["name"] == "dailytrain"
    assert set(project["optional-dependencies"]) >= {"training", "gpu"}
    assert words[5] == "node"
    assert build_parser().parse_args(words[6:]).label == ["mine"]


def test_pipx_command_for_cpu_installs_no_gpu_packages(client: Client, ada: User) -> None:
    assert line(client, lent(client, gpu_count="0"), "pipx")[3].startswith("dailytrain[training] @ http")


def test_install_page_without_image_shows_pipx_only(client: Client, ada: User, settings: Settings) -> None:
    settings.NODE_IMAGE = ""
    shown = page(client, lent(client))
    assert "docker run" not in shown
    assert "Paste this command on loco" in shown


def test_install_page_without_wheel_names_the_remedy(client: Client, ada: User, settings: Settings) -> None:
    settings.NODE_IMAGE, settings.WHEELS = "", settings.WHEELS / "nothing"
    shown = page(client, lent(client))
    assert "pipx run" not in shown
    assert "manage.py build_wheel" in shown


def test_install_page_shows_joined_node(client: Client, ada: User) -> None:
    node = lent(client)
    live = f"/sponsors/nodes/{node.pk}/live.json"
    first = client.get(live)
    assert "loco has joined" not in page(client, node)
    assert 'http-equiv="refresh"' in page(client, node), "also without script"
    assert client.get(live, headers={"If-None-Match": first["ETag"]}).status_code == 304

    join(token_of(line(client, node, "docker")))

    second = client.get(live, headers={"If-None-Match": first["ETag"]})
    assert second.status_code == 200
    assert second.json()["revision"] != first.json()["revision"]
    assert "loco has joined" in page(client, node)
    assert 'http-equiv="refresh"' not in page(client, node)


def test_site_stores_no_plain_token(client: Client, ada: User) -> None:
    token = token_of(line(client, lent(client), "docker"))

    for table in connection.introspection.table_names():
        with connection.cursor() as cursor:
            cursor.execute(f'SELECT * FROM "{table}"')  # noqa: S608
            assert token not in str(cursor.fetchall()), table


def test_install_command_is_shown_only_in_its_session(client: Client, ada: User) -> None:
    node = lent(client)
    other = Client()
    other.force_login(ada)

    assert "dtn_join_" not in page(other, node)
    assert "loco is expected" in page(other, node)


def test_new_install_command_expires_old_one_only(client: Client, ada: User) -> None:
    node = lent(client)
    old = token_of(line(client, node, "docker"))
    click(client, node, "rotate")
    refused = Agent("").call("/register", protocol.Register(name="any", hardware=HARDWARE), old)
    assert refused.status_code == 401
    agent = join(token_of(line(client, node, "docker")))
    agent.ask()

    click(client, node, "rotate")

    assert agent.ask().action == "idle", "the token that it has is good until the new line is used"
    words = line(client, node, "docker")
    assert words[:3] == ["docker", "rm", "-f"], "the container of before makes room"
    moved = join(token_of(words))
    assert agent.poll().status_code == 401
    assert moved.ask().action == "idle"
    assert Node.objects.count() == 1


# --- one click each --------------------------------------------------------------------------------------------------


@pytest.fixture
def joined(client: Client, ada: User) -> tuple[Node, Agent]:
    node = lent(client)
    agent = join(token_of(line(client, node, "docker")))
    agent.ask()
    return node, agent


def test_drained_node_finishes_job_and_gets_no_other(client: Client, joined: tuple[Node, Agent]) -> None:
    node, agent = joined
    make_job()
    work = agent.work()
    make_job()

    click(client, node, "drain")

    assert protocol.HeartbeatReply.model_validate_json(work.heartbeat().content).stop == ""
    work.finish()
    assert agent.ask().action == "stop"
    assert "draining" in page(client, node)


def test_paused_node_hands_job_back_until_resumed(client: Client, joined: tuple[Node, Agent]) -> None:
    node, agent = joined
    make_job()
    work = agent.work()

    click(client, node, "pause")

    assert protocol.HeartbeatReply.model_validate_json(work.heartbeat().content).stop == "finish"
    work.finish("released")
    assert agent.ask().action == "pause"
    click(client, node, "resume")
    assert agent.ask().action == "job"


def test_revoking_node_expires_all_its_tokens(client: Client, joined: tuple[Node, Agent]) -> None:
    node, agent = joined
    click(client, node, "rotate")
    waiting = token_of(line(client, node, "docker"))

    click(client, node, "revoke")

    assert agent.poll().status_code == 401
    refused = Agent("").call("/register", protocol.Register(name="any", hardware=HARDWARE), waiting)
    assert "expired" in sentence(refused)
    assert "revoked" in page(client, node)


def test_node_actions_record_events_with_actor(client: Client, joined: tuple[Node, Agent]) -> None:
    node, _ = joined
    before = Event.objects.about(node).count()

    for what in ("drain", "resume", "pause", "resume", "rotate", "revoke"):
        assert click(client, node, what).status_code == 302

    assert list(Event.objects.about(node).values_list("actor", flat=True))[before:] == ["ada"] * 6


def test_repeated_node_action_changes_nothing(client: Client, joined: tuple[Node, Agent]) -> None:
    node, _ = joined
    for what in ("drain", "pause", "resume", "revoke"):
        click(client, node, what)
        events = Event.objects.about(node).count()
        assert click(client, node, what).status_code == 302
        assert Event.objects.about(node).count() == events


def test_get_request_changes_no_node(client: Client, joined: tuple[Node, Agent]) -> None:
    node, _ = joined
    for what in ("drain", "pause", "resume", "revoke", "rotate", "forget"):
        assert client.get(f"/sponsors/nodes/{node.pk}/{what}/").status_code == 405
    assert click(client, node, "explode").status_code == 404


def test_node_action_requires_csrf_token(joined: tuple[Node, Agent], ada: User) -> None:
    node, _ = joined
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(ada)

    assert click(strict, node, "revoke").status_code == 403


def test_node_page_for_other_users_is_not_found(joined: tuple[Node, Agent]) -> None:
    node, _ = joined
    stranger = Client()
    stranger.force_login(User.objects.create_user("bob"))

    for path in ("", "live.json", "wishes/"):
        assert stranger.get(f"/sponsors/nodes/{node.pk}/{path}").status_code == 404
    for what in ("drain", "pause", "resume", "revoke", "rotate", "forget"):
        assert click(stranger, node, what).status_code == 404
    assert click(Client(), node, "revoke")["Location"].startswith("/accounts/login/")


def test_node_drain_by_maintainer_stops_agent(joined: tuple[Node, Agent]) -> None:
    node, agent = joined
    maintainer = Client()
    maintainer.force_login(User.objects.create_superuser("mira"))

    click(maintainer, node, "drain")

    assert agent.ask().action == "stop"


def test_owner_cannot_lift_ban(client: Client, joined: tuple[Node, Agent]) -> None:
    node, agent = joined
    pool.ban_node(node, "mira", "It returned what it had not computed.")

    for what in ("resume", "drain", "resume", "pause", "resume"):
        click(client, node, what)

    node.refresh_from_db()
    assert node.state == Node.State.BANNED
    assert agent.poll().status_code == 403
    assert "It returned what it had not computed." in page(client, node)


def test_only_unjoined_node_can_be_deleted(client: Client, joined: tuple[Node, Agent]) -> None:
    node, _ = joined
    other = lent(client, name="second")

    click(client, other, "forget")
    click(client, node, "forget")

    assert [left.name for left in Node.objects.all()] == ["loco"]
    assert not JoinToken.objects.filter(renews=other.pk).exists()


def test_own_nodes_page_takes_few_queries(
    client: Client, ada: User, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(30):
        make_node(f"lent-{number}", owner=ada)
    make_node("somebody-elses")

    with django_assert_max_num_queries(8):
        content = client.get("/sponsors/mine/").content.decode()

    assert "lent-29" in content
    assert "somebody-elses" not in content


def test_lending_form_time_zones_exist(client: Client, ada: User) -> None:
    content = client.get("/sponsors/lend/").content.decode()

    assert '<optgroup label="Europe">' in content
    assert 'value="America/Argentina/Buenos_Aires"' in content
