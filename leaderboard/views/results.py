"""The results behind a page's multipliers, as a file that anyone can check them with."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, JsonResponse

from leaderboard.models import Run
from leaderboard.views.live import latest_event
from trainer.scoring.multiplier import AXES, Axis


def parse_axis(request: HttpRequest) -> Axis:
    """Return the axis that `?axis=` names, FLOPs by default."""
    return next((axis for axis in AXES if axis == request.GET.get("axis")), AXES[0])


def results_etag(request: HttpRequest, **where: Any) -> str:
    return f'"{parse_axis(request)}-{Run.objects.filter(state=Run.State.FINISHED).version()}-{latest_event()}"'


def build_results_response(content: dict[str, Any]) -> JsonResponse:
    return JsonResponse(content, json_dumps_params={"indent": 1, "allow_nan": False})
