"""The sponsors' pages, under `/sponsors/`."""

from __future__ import annotations

from django.urls import path

from scheduler.sponsors import views

urlpatterns = [
    path("", views.sponsor_list, name="sponsors"),
    path("lend/", views.lend, name="lend"),
    path("mine/", views.mine, name="my-nodes"),
    path("<int:sponsor_id>/badge.svg", views.sponsor_badge, name="sponsor-badge"),
    path("<int:sponsor_id>/certificate/", views.certificate, name="certificate"),
    path("nodes/<int:node_id>/", views.node, name="node"),
    path("nodes/<int:node_id>/live.json", views.node_live, name="node-live"),
    path("nodes/<int:node_id>/wishes/", views.wishes, name="node-wishes"),
    path("nodes/<int:node_id>/rotate/", views.rotate, name="node-rotate"),
    path("nodes/<int:node_id>/forget/", views.forget, name="node-forget"),
    path("nodes/<int:node_id>/<slug:action>/", views.act, name="node-action"),
]
