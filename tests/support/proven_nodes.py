"""The switch of tests with which a site takes every node as proven: no node gets a self-test.

Tests of this process use `tests/conftest.py`, sites in processes of their own this app (`INSTALLED_APPS`).
"""

from __future__ import annotations

from django.apps import AppConfig


class ProvenNodes(AppConfig):
    name = "tests.support.proven_nodes"
    label = "proven_nodes"
    path = __file__.rpartition("/")[0]

    def ready(self) -> None:
        from scheduler import node_health

        node_health.is_self_test_required = lambda node: False
