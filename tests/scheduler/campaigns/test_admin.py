"""Admin pages of campaigns and volunteers."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.test import Client

from leaderboard import permissions
from scheduler.campaigns.models import Campaign, Packet, Rephrasing, Volunteer
from scheduler.models import Event, Job
from tests.support.volunteers import copy_source, start_volunteer


def run_campaign_action(client: Client, model: str, action: str, pk: int) -> str:
    data = {"action": action, "_selected_action": [str(pk)]}
    return client.post(f"/admin/campaigns/{model}/", data, follow=True).content.decode()


def test_draft_campaign_is_deleted_by_maintainers_and_not_coordinators(client: Client, campaign: Campaign) -> None:
    Packet.objects.all().delete()
    Campaign.objects.update(started_at=None, state="draft")
    address = f"/admin/campaigns/campaign/{campaign.pk}/delete/"
    for role, status in ((permissions.COORDINATOR, 403), (permissions.MAINTAINER, 302)):
        user = User.objects.create_user(role)
        permissions.grant_role(user, role, None)
        client.force_login(user)
        assert Campaign.objects.exists()
        assert client.post(address, {"post": "yes"}).status_code == status, role
    assert not Campaign.objects.exists()


def test_campaign_actions_pause_resume_and_finish(admin_client: Client, campaign: Campaign) -> None:
    ada = start_volunteer("ada")
    packets = ada.take(1)
    run_campaign_action(admin_client, "campaign", "pause", campaign.pk)
    assert Campaign.objects.get().state == "paused"
    assert set(Job.objects.filter(kind="rephrase").values_list("state", flat=True)) == {"leased", "cancelled"}
    assert ada.take() == ()
    assert "is paused" in ada.last.done
    assert [verdict.state for verdict in ada.submit(ada.result(packets[0]))] == ["taken"], (
        "a paused campaign still accepts results"
    )
    ada.claimed_job.finish("done")
    assert "Started" in run_campaign_action(admin_client, "campaign", "start", campaign.pk)
    assert len(start_volunteer("bob").take(1)) == 1
    assert "Finished" in run_campaign_action(admin_client, "campaign", "finish", campaign.pk)
    assert "Nothing to do" in run_campaign_action(admin_client, "campaign", "finish", campaign.pk)
    sentences = list(Event.objects.about(campaign).order_by("pk").values_list("sentence", flat=True))
    assert [sentence.split(":")[0] for sentence in sentences] == [
        "Small was started.",
        "Small was paused",
        "Small was resumed.",
        "Small is done",
    ]
    assert "Started" in run_campaign_action(admin_client, "campaign", "start", campaign.pk)
    campaign.refresh_from_db()
    assert (campaign.state, campaign.reason, campaign.finished_at) == ("running", "", None)


def test_ban_action_withdraws_all_texts(admin_client: Client, campaign: Campaign) -> None:
    start_volunteer("eve").rephrase(3)
    eve = Volunteer.objects.get()
    assert "Banned" in run_campaign_action(admin_client, "volunteer", "ban", eve.pk)
    eve.refresh_from_db()
    assert (eve.state, eve.reason) == ("banned", "Banned by admin.")
    assert set(Rephrasing.objects.values_list("state", flat=True)) == {"withdrawn"}
    assert set(campaign.packets.values_list("state", flat=True)) == {"waiting"}
    run_campaign_action(admin_client, "volunteer", "unban", eve.pk)
    run_campaign_action(admin_client, "volunteer", "trust", eve.pk)
    assert Volunteer.objects.get().state == "trusted"


def test_retry_action_requeues_packets_set_aside_but_not_of_campaigns_finished_early(
    admin_client: Client, campaign: Campaign
) -> None:
    Campaign.objects.update(max_attempts=1)
    ada = start_volunteer("ada")
    [packet] = ada.take(1)
    ada.submit(ada.result(packet, copy_source))
    assert "copied" in admin_client.get("/admin/campaigns/packet/?state=set_aside").content.decode()
    run_campaign_action(admin_client, "campaign", "finish", campaign.pk)
    page = run_campaign_action(admin_client, "packet", "retry", packet.packet)
    assert "Packets to retry: 0" in page
    assert "Small was finished early and stays done." in page
    campaign.packets.exclude(pk=packet.packet).update(state="done")
    assert "Packets to retry: 1" in run_campaign_action(admin_client, "packet", "retry", packet.packet)
    row = Packet.objects.get(pk=packet.packet)
    assert (row.state, row.attempts, Campaign.objects.get().state) == ("waiting", 0, "running")
