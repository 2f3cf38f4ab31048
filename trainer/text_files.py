"""Text of files that people write."""

from __future__ import annotations

import codecs

# Editors and shells of Windows write them.
BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


class TextError(ValueError):
    """The bytes are no text; the message is for the user."""


def decode_text(content: bytes) -> str:
    """Return the text of a file without its byte order mark: UTF-8, or UTF-16 with such a mark. Raise TextError."""
    encoding = next((name for mark, name in BYTE_ORDER_MARKS if content.startswith(mark)), "utf-8")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        place = f"byte {content[error.start]:#04x} at offset {error.start}"
        raise TextError(f"{place} is not {encoding.removesuffix('-sig').upper()}; save the file as UTF-8") from error
