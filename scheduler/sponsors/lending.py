"""The commands by which a lent node joins, and their tokens."""

from __future__ import annotations

import re
import shlex

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from scheduler import node_tokens
from scheduler.models import Event, JoinToken, Node
from scheduler.release.wheel import get_requirement
from scheduler.site_address import build_container_options

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's index of CPU builds. Their local version, such as 2.13.0+cpu, precedes the default index's CUDA build."""
FLASH_INDEX = "https://download.pytorch.org/whl/cu130"
"""PyTorch's index with the wheel of FlashAttention 3: for Linux on x86-64, CUDA 13 and any Python and torch of the
package. Its name is free on PyPI, so it is asked for on this index alone."""
HOPPER_NAME = re.compile(r"\b(H[128]00|H20)\b", re.IGNORECASE)
STOP_SECONDS = 150
"""Timeout of `docker stop`. The agent hands its job back at the next checkpoint, which takes up to two minutes."""


@transaction.atomic
def create_install_token(node: Node, by: User) -> str:
    """Return a new join token of the node and expire its earlier ones.

    The node's own token stays valid until the new join token is used, so its job continues.
    """
    node_tokens.expire_join_tokens(node)
    Event.record(by.get_username(), node, f"{by.get_username()} created a new install command.")
    return node_tokens.create_join_token(renews=node, owner=by)


def find_usable_join_token(node: Node, token: str) -> JoinToken | None:
    """Return the newest usable join token of the node; with `token` only if it is that one."""
    usable = JoinToken.objects.filter(renews=node, used_at=None, expires_at__gt=timezone.now()).order_by("-pk")
    return (usable.filter(token_hash=node_tokens.hash_token(token)) if token else usable).first()


@transaction.atomic
def delete_unjoined_node(node: Node) -> bool:
    """Delete the node if it never joined; return whether it was deleted."""
    deleted, _ = Node.objects.filter(pk=node.pk, token_hash=None, last_seen=None, leases=None).delete()
    return bool(deleted)


def build_agent_arguments(node: Node, token: str) -> list[str]:
    labels = [argument for label in node.owner_labels for argument in ("--label", label)]
    return ["--server", settings.SITE_URL, "--name", node.name, *labels, "--token", token]


def has_gpus(node: Node) -> bool:
    """Return whether the node has GPUs, as its owner or its agent says, usable or not."""
    return bool(node.hardware.get("gpus") or node.hardware.get("unusable_gpus"))


def has_flash_wheel(node: Node) -> bool:
    """Return whether the node trains on a GPU that FlashAttention 3 is made for."""
    return node.packets != Node.Packets.ONLY and any(map(HOPPER_NAME.search, node.hardware.get("gpus", ())))


def build_docker_command(node: Node, token: str) -> str:
    """Return the command for a machine with Docker, empty if the site names no image.

    The sandbox inside creates user namespaces and mounts, which Docker's profiles forbid (SECURITY.md). It needs no
    capability and no setuid program.
    """
    if not settings.NODE_IMAGE:
        return ""
    name = f"dailytrain-{node.name}"
    remove = f"docker rm -f {shlex.quote(name)}; " if node.last_seen else ""
    options = ["-d", "--name", name, "--restart", "on-failure:5", "--stop-timeout", str(STOP_SECONDS)]
    options += ["--gpus", "all"] if has_gpus(node) else []
    options += build_container_options()
    options += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    for profile in ("seccomp", "apparmor", "systempaths"):
        options += ["--security-opt", f"{profile}=unconfined"]
    options += ["-v", f"{name}:/home/node/data", settings.NODE_IMAGE]
    return remove + shlex.join(["docker", "run", *options, *build_agent_arguments(node, token)])


def build_pipx_command(node: Node, token: str) -> str:
    """Return the command for a machine without Docker, empty if the site has no package to install."""
    requirement = get_requirement(*list_extras(node))
    if not requirement:
        return ""
    if has_flash_wheel(node):
        return build_flash_command(requirement, build_agent_arguments(node, token))
    index = [] if has_gpus(node) else [f"--pip-args=--extra-index-url={CPU_INDEX}"]
    pipx = ["pipx", "run", "--spec", requirement, *index, "dailytrain", "node"]
    return shlex.join([*pipx, *build_agent_arguments(node, token)])


def build_flash_command(requirement: str, arguments: list[str]) -> str:
    """Return the command for a Hopper GPU. Without a wheel that fits it goes on: nothing is ever compiled."""
    pipx = ["pipx", "install", "--force", requirement]
    flash = ["pipx", "runpip", "dailytrain", "install", "--no-deps", "--only-binary=:all:"]
    flash += ["--index-url", FLASH_INDEX, "flash-attn-3"]
    message = ["echo", "No wheel of FlashAttention 3 fits: PyTorch uses its own kernels."]
    program = '"$(pipx environment --value PIPX_BIN_DIR)/dailytrain"'
    agent = f"{program} {shlex.join(['node', *arguments])}"
    return f"{shlex.join(pipx)} && {{ {shlex.join(flash)} || {shlex.join(message)}; }} && {agent}"


def list_extras(node: Node) -> list[str]:
    """Return the extras of the package for what the node is lent for.

    FlashAttention 2 is none of them: PyPI has only its source, and torch's own kernels are the same.
    """
    rephrase = [] if node.packets == Node.Packets.NEVER else ["rephrase"]
    if node.packets == Node.Packets.ONLY:
        return rephrase
    gpu = ["gpu"] if has_gpus(node) else []
    swarm = [] if node.serves == Node.Serves.TRACK else ["swarm"]  # seats belong to no track
    return ["training", *gpu, "notebook", *swarm, *rephrase]
