"""A user's own API tokens: create, show once, revoke."""

from __future__ import annotations

from typing import cast

from django import forms
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from leaderboard.models import ApiToken
from scheduler import rate_limits
from scheduler.models import Event
from scheduler.sign_in import require_login_from

MAX_TOKENS = 10
"""Active tokens per user."""


class TokenForm(forms.Form):
    name = forms.CharField(
        label="Name",
        max_length=80,
        help_text="Where you use it, such as laptop or CI.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )

    def __init__(self, *args: object, owner: User) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.owner = owner

    def clean(self) -> None:
        super().clean()
        if ApiToken.objects.filter(owner=self.owner, revoked=False).count() >= MAX_TOKENS:
            raise forms.ValidationError(f"You have {MAX_TOKENS} tokens. Revoke one first.")


@never_cache
@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def list_tokens(request: HttpRequest) -> HttpResponse:
    """List the user's tokens. A POST creates one; its secret is in that response only."""
    user = cast(User, request.user)
    form, secret = TokenForm(request.POST or None, owner=user), ""
    if request.method == "POST":
        with transaction.atomic():
            User.objects.select_for_update().get(pk=user.pk)  # two requests at once cannot pass the limit together
            if form.is_valid():
                secret = create_token(user, form.cleaned_data["name"])
                form = TokenForm(None, owner=user)
    tokens = ApiToken.objects.filter(owner=user, revoked=False).order_by("-pk")
    context = {"form": form, "secret": secret, "tokens": tokens, "per_hour": rate_limits.PER_HOUR["ask"]}
    return render(request, "leaderboard/api_tokens.html", context)


def create_token(owner: User, name: str) -> str:
    """Return the secret of a new token."""
    token = ApiToken(owner=owner, name=name)
    secret = token.draw_secret()
    token.save()
    Event.record(owner.get_username(), token, f"API token {token.pk} created.")
    return secret


@require_login_from("api-tokens")
@require_POST
def revoke(request: HttpRequest, token_id: int) -> HttpResponse:
    user = cast(User, request.user)
    token = get_object_or_404(ApiToken, pk=token_id, owner=user, revoked=False)
    if ApiToken.objects.filter(pk=token.pk, revoked=False).update(revoked=True):
        Event.record(user.get_username(), token, f"API token {token.pk} revoked.")
    return redirect("api-tokens")
