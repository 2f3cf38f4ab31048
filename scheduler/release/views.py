"""`/download/`: the site's wheel, its signature, and the key that checks it."""

from __future__ import annotations

from django.http import FileResponse, Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.views.decorators.http import require_safe

from scheduler import signing
from scheduler.release.wheel import find_wheel

BINARY = "application/octet-stream"


@require_safe
def download(request: HttpRequest, name: str) -> HttpResponseBase:
    """Send the wheel, or `<wheel>.sig`: the Ed25519 signature of its bytes by the site's key."""
    wheel = find_wheel()
    if wheel is None:
        raise Http404("This site has no wheel yet: run `manage.py build_wheel`.")
    if name == wheel.path.name:
        return FileResponse(wheel.path.open("rb"), content_type=BINARY, as_attachment=True)
    if name == f"{wheel.path.name}.sig":
        return HttpResponse(signing.sign_bytes(wheel.path.read_bytes()), content_type=BINARY)
    raise Http404(f"This site serves {wheel.path.name}.")


@require_safe
def download_key(request: HttpRequest) -> HttpResponse:
    """Send the public key that nodes pin, as PEM."""
    return HttpResponse(signing.get_public_pem(), content_type="application/x-pem-file")
