"""The model card of published weights, from the database rows. Untrusted text is escaped."""

from __future__ import annotations

import json
from collections.abc import Iterator

from django.conf import settings

from leaderboard import formatting
from leaderboard.models import Entry, Publication, Run, Score
from leaderboard.rankings import explanations
from leaderboard.rankings.standings_store import refresh_standings
from scheduler.markdown import escape_markdown, sanitize_code

BITS = "bits_per_byte"
SAMPLES = 2
SAMPLE_LETTERS = 1200
CLI_EXAMPLE = """```sh
{source}
pip install '.[training]'
hf download {name} --include 'dailytrain/*' --local-dir weights
dailytrain sample weights/dailytrain --prompt 'The train'
```"""


def build_card(publication: Publication, name: str) -> str:
    """Return the card of the repository `name`, in Markdown with the Hub's own header."""
    run = publication.run
    scores = get_scores(publication)
    parts = [
        f"# {escape_markdown(run.entry.title)}",
        describe_weights(publication),
        describe_standing(run),
        "![The run's loss, in nats per token, by tokens](curve.png)",
        format_table("## Scores", ("measure", "value", "standard error"), list_score_rows(scores)),
        format_samples(publication),
        format_table("## Where it comes from", ("", ""), list_provenance(publication)),
        "## How to load it",
        *describe_loading(run.entry, name),
        f"## License\n\n{settings.HUB_LICENSE}. {format_hypothesis(run)}".rstrip(),
    ]
    return "\n\n".join([build_metadata(publication, scores), *filter(None, parts)]) + "\n"


# --- for machines -----------------------------------------------------------------------------------------------------


def build_metadata(publication: Publication, scores: list[Score]) -> str:
    """Return the metadata that the Hub reads: YAML, each value of it JSON."""
    run = publication.run
    fields = {
        "license": settings.HUB_LICENSE,
        "library_name": "dailytrain",
        "pipeline_tag": "text-generation",
        "tags": ["the-daily-train", f"architecture-{run.entry.architecture}", f"track-{run.track.slug}"],
        "model-index": [{"name": f"run-{run.pk}", "results": list(list_results(run, scores))}],
    }
    if not fields["model-index"][0]["results"]:  # type: ignore[index]
        del fields["model-index"]  # the Hub takes none without results
    return "\n".join(["---", *(f"{name}: {json.dumps(value)}" for name, value in fields.items()), "---"])


def list_results(run: Run, scores: list[Score]) -> Iterator[dict[str, object]]:
    task = {"type": "text-generation"}
    bits = next((score.value for score in scores if score.name == BITS), None)
    if bits is not None:
        dataset = {"type": run.season.corpus.partition(":")[0], "name": f"{run.season.name}, held-out text"}
        metric = {"type": "bits_per_byte", "name": "bits per byte", "value": bits, "verified": False}
        yield {"task": task, "dataset": dataset, "metrics": [metric]}
    for score in scores:
        name, _, metric_name = score.name.partition("/")
        if metric_name:
            metric = {"type": metric_name, "name": metric_name, "value": score.value, "verified": False}
            yield {"task": task, "dataset": {"type": name, "name": name}, "metrics": [metric]}


# --- for people -------------------------------------------------------------------------------------------------------


def describe_weights(publication: Publication) -> str:
    run = publication.run
    at_step = f"The weights at step {publication.step} ({publication.name})"
    what = "The final weights" if publication.is_final else at_step
    size = f", {run.parameters:,} parameters" if run.parameters else ""
    return (
        f"{what} of [run {run.pk}]({build_run_url(run)}) of {escape_markdown(settings.SITE_NAME)}: "
        f"`{sanitize_code(run.entry.architecture)}`"
        f"{size}, trained from {'run ' + str(run.start_run_id) if run.start_run_id else 'scratch'} with a budget of "
        f"{formatting.budget(run.budget)}. {escape_markdown(publication.reason)}"
    )


def describe_standing(run: Run) -> str:
    """Return a sentence about the entry's standing; empty if there is none."""
    if run.state != Run.State.FINISHED or run.season_id != run.track.season_id:
        return ""
    run.track.season = run.season
    table = refresh_standings(run.track)
    row = table.get_row(run.entry_id)
    standing = f"{escape_markdown(explanations.describe_standing(row, table))} " if row else ""
    return f"{standing}{run.get_trust_display()}: {explanations.TRUST_MEANINGS[Run.Trust(run.trust)]}"


def get_scores(publication: Publication) -> list[Score]:
    """Return the scores of these weights; empty if they are not scored yet."""
    if publication.is_final:
        return list(publication.run.scores.order_by("name"))
    scores = sorted(publication.scores, key=lambda score: str(score["name"]))
    return [Score(run=publication.run, **score) for score in scores]


def list_score_rows(scores: list[Score]) -> Iterator[tuple[str, ...]]:
    for score in sorted(scores, key=lambda score: score.name != BITS):
        name = "bits per byte, held-out text" if score.name == BITS else escape_markdown(score.name)
        yield name, format_number(score.value), format_number(score.stderr)


def format_samples(publication: Publication) -> str:
    """Return the samples of the last checkpoint up to this one, indented so that Markdown does not interpret them."""
    samples = publication.run.samples.filter(step__lte=publication.step)
    last = samples.order_by("-step").values_list("step", flat=True).first()
    if last is None:
        return ""
    texts = [f"{sample.prompt}{sample.text}" for sample in samples.filter(step=last)[:SAMPLES]]
    blocks = ["\n".join(f"    {line}" for line in text[:SAMPLE_LETTERS].splitlines()) for text in texts]
    return "\n\n".join([f"## What it writes\n\nAt step {last:,}, the first words given:", *blocks])


def list_provenance(publication: Publication) -> Iterator[tuple[str, str]]:
    run, entry = publication.run, publication.run.entry
    yield "Run", build_run_url(run)
    yield "Author", escape_markdown(entry.author) or formatting.MISSING
    yield (
        "Commit",
        f"`{sanitize_code(entry.sha)}`"
        + (f" of {escape_markdown(entry.public_repository)}" if entry.public_repository else ""),
    )
    yield "Seed", str(run.seed)
    yield "Step", f"{publication.step:,}"
    yield "Season", escape_markdown(run.season.name)
    yield "Dataset", f"{escape_markdown(run.season.corpus)}, tokenizer {escape_markdown(run.season.tokenizer)}"
    yield "Dataset's SHA-256", f"`{sanitize_code(run.season.dataset_hash)}`"
    yield "Trained on", escape_markdown(run.node_class) or formatting.MISSING
    if run.train_seconds:
        yield "Training time", formatting.duration(run.train_seconds)
    if run.train_flops:
        yield "Training FLOPs", formatting.power(run.train_flops)
    if run.tokens and publication.is_final:
        yield "Tokens", f"{run.tokens:,}"


def describe_loading(entry: Entry, name: str) -> Iterator[str]:
    if entry.kind == Entry.Kind.NOTEBOOK:
        yield "`dailytrain/model/` holds the files that the notebook left. They are unchecked: load only safe formats."
        return
    source = "cd daily-train  # a checkout of the site's repository"
    if entry.public_repository:
        repository = sanitize_code(entry.public_repository)
        source = f"git clone {repository} daily-train && cd daily-train && git checkout {entry.sha}"
    yield CLI_EXAMPLE.format(name=name, source=source)
    yield (
        "`dailytrain/` is the run's folder: `run.json`, the tokenizer, and the checkpoint without its optimizer. "
        "`dailytrain/graph/` holds the graph that was trained, if it was traced. "
        "`dailytrain/source.tar` holds the architecture's source (`trainer/models/`), should its repository be gone."
    )


def format_hypothesis(run: Run) -> str:
    hypothesis = escape_markdown(run.entry.hypothesis)[:600]
    return f"\n\n## The idea\n\n{hypothesis}" if hypothesis else ""


def format_table(title: str, head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"{title}\n", f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines])


def format_number(value: float | None) -> str:
    return formatting.MISSING if value is None else f"{value:.4f}"


def build_run_url(run: Run) -> str:
    return f"{settings.SITE_URL}{run.get_absolute_url()}"
