"""Sign-in of views that accept only POST."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse

View = Callable[..., HttpResponseBase]


def require_login_from(form_page: str, *parameters: str) -> Callable[[View], View]:
    """Return a decorator that sends anonymous users to sign in, and then to the page that has the view's form.

    `login_required` would send them to the view itself, which answers GET with 405.
    `form_page`: the name of a URL. `parameters`: those of the view's arguments that it takes.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def view_or_sign_in(request: HttpRequest, **arguments: Any) -> HttpResponseBase:
            if request.user.is_authenticated:
                return view(request, **arguments)
            return redirect_to_login(reverse(form_page, kwargs={name: arguments[name] for name in parameters}))

        return view_or_sign_in

    return decorate
