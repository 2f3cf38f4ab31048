"""The report of the tracing sandbox. It is untrusted: an unusable value becomes the field's default or None."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from trainer.sandbox.safe_files import sanitize_line

Stage = Literal["imports", "sizes", "done"]
"""The stage of a smoke test: importing and tracing a small model, tracing the full size, or done."""


def replace_invalid(default: Any, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError:
        return default


NONE_IF_INVALID = WrapValidator(partial(replace_invalid, None))
PositiveNumber = Annotated[float, Field(strict=True, ge=0, lt=1e30)]  # or zero
Number = Annotated[PositiveNumber | None, NONE_IF_INVALID]
ShortLine = Annotated[str, BeforeValidator(partial(sanitize_line, max_length=120))]
Hint = Annotated[str, BeforeValidator(partial(sanitize_line, max_length=300))]
Sentence = Annotated[str, BeforeValidator(partial(sanitize_line, max_length=400))]


class ReportedFailure(BaseModel):
    """An error of the architecture, with the line of its file if known."""

    reason: Sentence = ""
    file: ShortLine = ""
    line: Annotated[int, WrapValidator(partial(replace_invalid, 0)), Field(strict=True)] = 0
    text: ShortLine = ""


class TraceReport(BaseModel):
    stage: Annotated[Stage, WrapValidator(partial(replace_invalid, "imports"))] = "imports"
    failure: Annotated[ReportedFailure | None, NONE_IF_INVALID] = None
    hints: Annotated[list[Hint] | None, NONE_IF_INVALID] = None
    depth: Number = None
    sequence_length: Number = None
    tokens_per_step: Number = None
    preset: ShortLine = ""
    budget: ShortLine = ""
