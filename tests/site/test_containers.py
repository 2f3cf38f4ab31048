"""Consistency of compose.yaml, Dockerfile, settings and .env.example, checked without a container engine."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from scheduler.campaigns.models import Campaign
from tests.support.paths import REPOSITORY


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())
    return services


def test_compose_service_builds_a_target_or_pins_an_image(compose: dict[str, Any]) -> None:
    targets = re.findall(r"^FROM \S+ AS (\w+)$", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE)
    for name, service in compose["services"].items():
        if "build" in service:
            assert service["build"]["target"] in targets, name
        else:
            assert re.fullmatch(r"[a-z/-]+:v?\d[\w.-]+", service["image"]), name


def test_release_publishes_an_image_of_each_final_target() -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "release.yml").read_text())
    targets = set(re.findall(r"^FROM base AS (\w+)$", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE))
    assert set(workflow["jobs"]["images"]["strategy"]["matrix"]["target"]) == targets


def test_node_image_installs_a_c_compiler() -> None:
    stages = re.split(r"^FROM \S+ AS (\w+)$", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE)
    node = dict(zip(stages[1::2], stages[2::2], strict=True))["node"]
    installed = " ".join(re.findall(r"apt-get install([^&]*)", node)).split()
    assert {"gcc", "libc6-dev"} <= set(installed)


def test_compose_variables_are_listed_in_the_example() -> None:
    wanted = set(re.findall(r"\$\{(\w+)", (REPOSITORY / "compose.yaml").read_text()))
    assert wanted == set(re.findall(r"^(\w+)=", (REPOSITORY / ".env.example").read_text(), flags=re.MULTILINE))


def test_variables_of_the_web_service_are_settings(compose: dict[str, Any]) -> None:
    settings = (REPOSITORY / "dailytrain" / "settings.py").read_text()
    for name in set(compose["services"]["web"]["environment"]) - {"FORWARDED_ALLOW_IPS"}:  # uvicorn reads that
        assert f'("{name}"' in settings, name


def test_volumes_and_dependencies_of_compose_exist(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (REPOSITORY / source).is_file(), name
        for other in service.get("depends_on", {}):
            assert other in compose["services"], name


def test_node_service_has_no_privilege_and_no_engine_socket(compose: dict[str, Any]) -> None:
    node = compose["services"]["node"]
    assert "privileged" not in node
    assert node["cap_drop"] == ["ALL"]
    assert "no-new-privileges" in node["security_opt"]
    assert not any("docker.sock" in volume for volume in node["volumes"])


def test_rephrase_profile_runs_a_campaign(compose: dict[str, Any]) -> None:
    from trainer.cli.rephrase_join import build_parser

    profile = {name: one for name, one in compose["services"].items() if "rephrase" in one.get("profiles", [])}
    assert set(profile) == {"writer", "volunteer"}
    words = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in profile["volunteer"]["command"]]
    options = build_parser().parse_args(words)
    model = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", profile["writer"]["command"][1])
    assert (options.endpoint, options.model) == ("http://writer:8000/v1", model)
    assert model == Campaign._meta.get_field("model").default
    assert profile["volunteer"]["cap_drop"] == ["ALL"]
    assert not any("docker.sock" in volume for one in profile.values() for volume in one["volumes"])
