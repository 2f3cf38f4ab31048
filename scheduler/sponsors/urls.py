"""The sponsors' pages, under `/sponsors/`."""

from __future__ import annotations

from django.urls import path

from scheduler.sponsors import views

urlpatterns = [
    path("", views.sponsor_list, name="sponsors"),
    path("lend/", views.lend, name="lend"),
    path("mine/", views.my_nodes, name="my-nodes"),
    path("<int:sponsor_id>/badge.svg", views.sponsor_badge, name="sponsor-badge"),
    path("<int:sponsor_id>/certificate/", views.certificate, name="certificate"),
    path("nodes/<int:node_id>/", views.show_node, name="node"),
    path("nodes/<int:node_id>/live.json", views.node_live, name="node-live"),
    path("nodes/<int:node_id>/settings/", views.edit_settings, name="node-settings"),
    path("nodes/<int:node_id>/rotate/", views.regenerate_command, name="node-rotate"),
    path("nodes/<int:node_id>/forget/", views.delete_node, name="node-forget"),
    path("nodes/<int:node_id>/<slug:action>/", views.run_action, name="node-action"),
]
