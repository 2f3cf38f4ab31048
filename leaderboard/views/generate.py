"""Prompts: the form, and the page of the answer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import condition, require_http_methods, require_safe

from leaderboard.job_handlers import generation as writing
from leaderboard.models import Generation, Run, Track
from leaderboard.views.live import LIVE_SECONDS, render_live
from leaderboard.views.same_origin import require_same_origin
from scheduler.estimates import QueueEstimates, StartEstimate
from scheduler.models import Event, Job

MOST_CHOICES = 60
WRITING_SECONDS = 0.7
"""Polling interval while the model writes."""
LENGTHS = ((50, "a sentence or two"), (150, "a paragraph"), (400, "a page"))
INITIAL_VALUES = {"tokens": 150, "temperature": 0.8}
EXAMPLES = ("The train leaves at", "In the beginning", "import os")


class TextForm(forms.Form):
    """A prompt for a model that the page determines."""

    prompt = forms.CharField(
        label="Beginning of a text",
        max_length=writing.MAX_PROMPT,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 4, "autocomplete": "off", "placeholder": "The train leaves at"}),
        help_text=f"Up to {writing.MAX_PROMPT:,} characters. Do not type what should stay private.",
    )
    tokens = forms.TypedChoiceField(
        label="Length", coerce=int, choices=[(tokens, f"{words}, {tokens} tokens") for tokens, words in LENGTHS]
    )
    temperature = forms.FloatField(
        label="Temperature, from 0 to 1.5",
        min_value=0,
        max_value=1.5,
        widget=forms.NumberInput(attrs={"step": "0.1", "placeholder": "0.8"}),
        help_text="0 takes the likeliest word each time, 1 draws as the model expects.",
    )


class PromptForm(TextForm):
    run = forms.ModelChoiceField(label="Model", queryset=Run.objects.none(), widget=forms.NumberInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["run"].queryset = writing.list_generating_runs()  # type: ignore[attr-defined]


@require_same_origin
@require_http_methods(["GET", "HEAD", "POST"])
def try_it(request: HttpRequest) -> HttpResponse:
    """The form; `?run=` chooses a model, `?prompt=` fills in the prompt. A POST queues it."""
    if request.method == "POST":
        return submit_prompt(request, PromptForm(read_form_data(request)))
    run = choose_run(request.GET.get("run", ""))
    given = {"run": run and run.pk, "prompt": request.GET.get("prompt", "")[: writing.MAX_PROMPT]}
    return render_form(request, PromptForm(initial={**INITIAL_VALUES, **given}), run)


def read_form_data(request: HttpRequest) -> dict[str, Any]:
    """Return the form's data with defaults. Browsers send two characters for a line break and count one."""
    data = request.POST.dict()
    return {**INITIAL_VALUES, **data, "prompt": data.get("prompt", "").replace("\r\n", "\n")}


def submit_prompt(request: HttpRequest, form: PromptForm) -> HttpResponse:
    def queue(prompt: writing.Prompt) -> Generation:
        return writing.queue_generation(form.cleaned_data["run"], prompt, identify_visitor(request))

    return process_form(form, queue, lambda status: render_form(request, form, form.cleaned_data.get("run"), status))


def process_form(
    form: TextForm, queue: Callable[[writing.Prompt], Generation], render_page: Callable[[int], HttpResponse]
) -> HttpResponse:
    """Queue the form's prompt and redirect to the page of its text; else render the page with the errors."""
    if not form.is_valid():
        return render_page(400)
    try:
        return redirect(queue(build_prompt(form)))
    except writing.GenerationError as error:
        form.add_error(None, str(error))
        response = render_page(error.status)
        for name, value in error.headers.items():
            response[name] = value
        return response


def build_prompt(form: TextForm) -> writing.Prompt:
    data = form.cleaned_data
    return writing.Prompt(data["prompt"], data["tokens"], data["temperature"])


def render_form(request: HttpRequest, form: PromptForm, run: Run | None, status: int = 200) -> HttpResponse:
    context = {
        **build_choices(form, run),
        "open": writing.is_open(),
        "start_estimate": writing.estimate_generation_start(run) if run else None,
        "given_up_at": timezone.now() + writing.MAX_WAIT,
        "unanswered": Generation.objects.unanswered().count(),
        "examples": EXAMPLES,
    }
    return render(request, "leaderboard/try.html", context, status=status)


def choose_run(word: str) -> Run | None:
    """Return the run of `?run=` if its model can write, else the best of the default track."""
    run = writing.list_generating_runs().filter(pk=word).first() if word.isdecimal() and len(word) < 19 else None
    return run or writing.get_best_run(Track.objects.default()) or writing.list_generating_runs().first()


def build_choices(form: PromptForm, run: Run | None) -> dict[str, Any]:
    """Return the context of the model choice: each entry's best run, by track."""
    seen: dict[tuple[int, int], Run] = {}
    for run_choice in writing.list_generating_runs()[: 4 * MOST_CHOICES]:
        seen.setdefault((run_choice.track_id, run_choice.entry_id), run_choice)
    offered = list(seen.values())[:MOST_CHOICES]
    if run is not None and run not in offered:
        offered.append(run)
    offered.sort(key=lambda one: (one.track.position, one.track.slug))
    tracks = [(track, list(group)) for track, group in groupby(offered, key=lambda one: one.track)]
    return {"form": form, "run": run, "tracks": tracks}


def identify_visitor(request: HttpRequest) -> str:
    """Return the key under which prompts are counted, for an hour."""
    if request.user.is_authenticated:
        return f"user:{request.user.pk}"
    return writing.get_visitor_network(request.META.get("REMOTE_ADDR", ""))


# --- the answer ------------------------------------------------------------------------------------------------------


def get_generation(token: str) -> Generation:
    rows = Generation.objects.select_related("job", "run__entry", "run__track")
    return get_object_or_404(rows, token=token)


def estimate_start(found: Generation) -> StartEstimate | None:
    return QueueEstimates(timezone.now()).get_estimate(found.job) if found.job.state == Job.State.QUEUED else None


@require_safe
def generation(request: HttpRequest, token: str) -> HttpResponse:
    """What a model has written so far. Without JavaScript the page reloads itself."""
    shown = get_generation(token)
    first = {"run": shown.run_id, "prompt": shown.prompt, "tokens": shown.tokens, "temperature": shown.temperature}
    context = {
        **build_choices(PromptForm(initial=first), shown.run),
        "generation": shown,
        "start_estimate": estimate_start(shown),
        "open": writing.is_open(),
        "kept": writing.RETENTION,
        "revision": shown.job.state,
    }
    return render(request, "leaderboard/generation.html", context)


def generation_etag(request: HttpRequest, token: str) -> str:
    found = get_generation(token)
    return f'"{found.job.state}-{found.job.attempts}-{len(found.text)}-{found.written}-{Event.get_latest_id()}"'


@require_safe
@condition(etag_func=generation_etag)
def generation_live(request: HttpRequest, token: str) -> JsonResponse:
    found = get_generation(token)
    waits = found.job.state == Job.State.QUEUED
    context = {"generation": found, "start_estimate": estimate_start(found)}
    wait = 0 if found.is_over else LIVE_SECONDS if waits else WRITING_SECONDS
    return render_live("leaderboard/generation.html", ["written"], context, revision=found.job.state, wait=wait)
