"""A user's notices, and the links in their e-mails."""

from __future__ import annotations

from typing import Any, cast

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from leaderboard.models import Subscription
from leaderboard.notifications import email_links, subscriptions
from leaderboard.notifications.channels import CHANNELS
from leaderboard.notifications.topics import list_choosable_topics
from scheduler.sign_in import require_login_from


class NoticesForm(forms.Form):
    kind = forms.ChoiceField(label="Where", widget=forms.RadioSelect)
    address = forms.CharField(
        label="Webhook URL, or e-mail address",
        max_length=500,
        widget=forms.TextInput(
            attrs={
                "placeholder": "https://discord.com/api/webhooks/… or ada@example.org",
                "autocomplete": "off",
                "spellcheck": "false",
            }
        ),
    )
    topics = forms.MultipleChoiceField(label="What", widget=forms.CheckboxSelectMultiple)

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        known = [(kind.value, kind.label) for kind in Subscription.Kind if CHANNELS[kind].is_available()]
        self.fields["kind"].choices = known  # type: ignore[attr-defined]
        self.fields["topics"].choices = [(key, topic.label) for key, topic in list_choosable_topics(user).items()]  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if "kind" in data and "address" in data:
            try:
                data["address"] = CHANNELS[data["kind"]].clean_address(data["address"])
            except ValueError as error:
                self.add_error("address", str(error))
        return data


@never_cache
@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def list_subscriptions(request: HttpRequest) -> HttpResponse:
    user = cast(User, request.user)
    first = {"kind": Subscription.Kind.DISCORD, "topics": ["morning", "record"]}
    form = NoticesForm(request.POST or None, user=user, initial=first)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            subscriptions.subscribe(user, data["kind"], data["address"], data["topics"])
        except subscriptions.SubscriptionError as error:
            form.add_error(None, str(error))
        else:
            return redirect("notices")
    offered = list_choosable_topics(user)
    context = {
        "form": form,
        "subscriptions": [
            (
                one,
                CHANNELS[one.kind].mask_address(one.address),
                [(key, topic, key in one.topics) for key, topic in offered.items()],
            )
            for one in Subscription.objects.filter(user=user)
        ],
        "channels": [
            (kind.value, kind.label, CHANNELS[kind].hint) for kind in Subscription.Kind if CHANNELS[kind].is_available()
        ],
        "topics": offered.items(),
    }
    return render(request, "leaderboard/notices.html", context)


@require_login_from("notices")
@require_POST
def edit_subscription(request: HttpRequest, subscription_id: int, action: str) -> HttpResponse:
    """Change the topics of a subscription, test, resume or delete it."""
    user = cast(User, request.user)
    subscription = get_object_or_404(Subscription, pk=subscription_id, user=user)
    match action:
        case "topics":
            subscriptions.set_topics(subscription, request.POST.getlist("topics"))
        case "trial":
            if subscriptions.send_test_notice(subscription):
                messages.success(request, "A test message is on its way.")
            else:
                messages.error(request, subscriptions.DAILY_LIMIT_REACHED)
        case "resume":
            if subscriptions.resume_subscription(subscription):
                messages.success(request, "Notices are on again. A test message is on its way.")
            else:
                limit = subscriptions.DAILY_LIMIT_REACHED
                messages.warning(request, f"Notices are on again, without a test message. {limit}")
        case "end":
            subscriptions.delete_subscription(subscription)
        case _:
            raise Http404
    return redirect("notices")


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def confirm_or_stop_notices(request: HttpRequest, word: str, token: str) -> HttpResponse:
    """Show the page of a link in an e-mail. Mail programs follow links, so only a POST changes the subscription."""
    if word not in email_links.ACTIONS:
        raise Http404
    subscription = email_links.find_subscription(word, token)
    if subscription and request.method == "POST":
        (subscriptions.confirm_subscription if word == "confirm" else subscriptions.delete_subscription)(subscription)
    return render(
        request,
        "leaderboard/notice_link.html",
        {"word": word, "subscription": subscription, "done": request.method == "POST"},
        status=200 if subscription else 404,
    )
