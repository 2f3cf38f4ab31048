"""Removes what models and servers add to the text: reasoning, tokens of chat templates, and talk around it.

Talk is an introduction such as "Sure! Here's a paraphrase of the text:", or a closing such as "I hope this helps!". An
introduction is a short line that speaks of the rewriting itself; a closing is one of the last paragraphs.
Nothing is removed that the source itself has: it may be about language models.
"""

from __future__ import annotations

import json
import re

from trainer.rephrase.checks.talk import CLOSING, REPHRASE, YES

MAX_INTRODUCTION_CHARS = 200  # of a removed introduction
MAX_CLOSING_CHARS = 500  # of a removed closing
MAX_TALK = 3  # introductions, and closings, that are removed

HERE = (
    r"(?:here(?:'s|’s| is| are)|this is|below (?:is|are|you(?:'|’| wi)ll find)|the following is|the following are"
    r"|i(?:'ve|’ve| have)?(?= (?:para|re[pws]|simpl|summ|conver|transl|creat|made|writ)))"
)
LINE_END = r"[*_]*[:.]?[*_ \t]*\n"
TEXT = (
    r"(?:the|your|this|that|an?) (?:[\w-]+ ){0,2}"
    r"(?:text|passage|paragraph|article|excerpt|dialogue|conversation|original|content)\b"
)
REMADE = r"(?:paraphrased|rephrased|rewritten|rewrote|reworded|restated|simplified|summarized|converted|translated)"
REWRITING = (
    r"(?:paraphras(?:e|ing)|rephras(?:e|ing)|rewrit(?:e|ing)|rewording|restatement|simplification|summary|version"
    rf"|rendition|rendering|translation)(?= (?:of|for) {TEXT}|{LINE_END})"
    rf"|{REMADE} (?:{TEXT}|(?:[\w-]+ ){{0,2}}(?:version|text|passage|paragraph|article|dialogue|conversation)\b)"
    rf"|{TEXT}(?= in (?:[\w-]+ ){{0,3}}(?:words|language|english|terms|style)\b|{LINE_END})"
    r"|question\w*(?: and|-)answer\w*"
)
LABEL = (
    r"(?:the )?(?:para|re)phrased?(?: (?:text|version|passage|paragraph|article))?"
    r"|(?:the )?(?:rewritten|reworded|restated|simplified|new|easy|medium|hard|terse|erudite|scholarly)"
    r" (?:text|version|passage|paragraph|article)|paraphrase|rephrasing|conversation|rewritten|reworded"
    r"|output|assistant"
)
OFFER = r"(?:let me|let(?:'s|’s)|i(?:'ll|’ll| will| can|(?:'d|’d| would) be (?:happy|glad) to))"
FORMS = (
    (
        rf"(?:{YES}[\s,.!]+)?{HERE}\b[^\n:]{{0,200}}?\b(?:{REWRITING})[^\n:]{{0,200}}?"
        r"(?:[:.][*_ \t]*(?=\n)|[*_ \t]*(?=\n\s*\n))"
    ),
    rf"(?:{YES}[\s,.!]+)?{OFFER}\b[^\n]{{0,40}}?\b{REPHRASE}[^\n]*(?=\n)",
    rf"(?:{LABEL})[*_]*\s*:",
    rf"(?:{LABEL})[*_]*[ \t]*(?=\n)",
    rf"{YES}(?:[.!](?=\s*\n)|[^\n]*:(?=\s*\n\s*\n))",
    r"-{3,}[ \t]*(?=\n)",
)
INTRODUCTION = re.compile(rf"[*_#>\s]*(?:{'|'.join(FORMS)})[*_\s]*", re.IGNORECASE)
EXPLANATION = re.compile(
    r"\n[*_#> \t]*(?:(?:key|main) )?(?:changes|improvements|notes|explanation)(?: (?:made|of|on)[^\n:]{0,60})?"
    r"[*_]*:[*_]*[ \t]*\n.*",
    re.IGNORECASE | re.DOTALL,
)
LAST_SENTENCE = re.compile(r"(?<=[.!?]) (?:i )?hope (?:this|that|it) helps[^\n]{0,30}$", re.IGNORECASE)
WRAPPED = re.compile(r"<(\w{3,30})>(.*)</\1>", re.DOTALL)
QUOTES = {'"': '"', "“": "”", "«": "»", "'": "'", "‘": "’", "„": "“", "「": "」", "『": "』"}
BOXED = re.compile(r"\$*\\boxed\{(?:\\text\{)?([^{}]*)\}?\}\$*")
FENCED = re.compile(r"```\w*\n(.*?)\n?```", re.DOTALL)
THOUGHT = r"(?:[\w:]{0,20}(?:think(?:ing)?|thoughts?|reason(?:ing)?|reflection|monologue|scratchpad)|analysis)"
OPENINGS = (
    rf"(?:<|&lt;)\s*{THOUGHT}\s*(?:>|&gt;)",
    r"\[THINK\]|◁think▷|<\|begin_of_thought\|>|<\|inner_prefix\|>",
    r"\[(?:thinking|thoughts?|reasoning)\]",
)
CLOSING_MARKS = (rf"(?:<|&lt;)\s*/\s*{THOUGHT}\s*(?:>|&gt;)", r"\[/(?:THINK|thinking|thoughts?|reasoning)\]|◁/think▷")
CLOSING_TOKENS = r"<\|end_of_thought\|>|<\|inner_suffix\|>|<channel\|>"
REASONING = re.compile(
    rf"(?P<open>{'|'.join(OPENINGS)}|<\|channel>thought)|{'|'.join(CLOSING_MARKS)}|{CLOSING_TOKENS}", re.IGNORECASE
)
FINAL = re.compile(r".*<\|channel\|>final[^\n]{0,40}?<\|message\|>", re.DOTALL)  # of gpt-oss, as tokens
# The same without tokens, of Granite, of Ollama, and of models that were only asked to think.
PLAIN_FINAL = re.compile(
    r"analysis.*assistantfinal"
    r"|[*_#\s]*(?:here is my thought process|thinking(?: process)?|reasoning)[*_]*(?::|\.\.\.).*"
    r"\n[*_# \t]*(?:here is my response[*_]*:|(?:final )?(?:answer|response|output)[*_]*:|\.\.\.done thinking\.)[*_]*",
    re.DOTALL | re.IGNORECASE,
)
TEMPLATE = re.compile(
    r"<[|｜][^|｜<>\n]{1,40}[|｜]>(?:(?:system|user|assistant)\b)?|</?s>|<(?:bos|eos|pad)>|\[/?INST\]|<</?SYS>>"
    r"|<(?:start|end)_of_turn>(?:(?:user|model)\b)?"
)


def clean_output(output: str, source: str = "") -> str:
    """Return the output without reasoning, talk around the text, and quotation marks or a fence around all of it."""
    text = remove_template(remove_reasoning(output.replace("\r\n", "\n"), source), source).strip()
    for _ in range(MAX_TALK):
        introduction = INTRODUCTION.match(text)
        if not introduction or introduction.end() > MAX_INTRODUCTION_CHARS or INTRODUCTION.match(source):
            break
        text = text[introduction.end() :].strip()
    text = remove_closings(text, source)
    if all(line.startswith(">") for line in text.split("\n")) and not source.startswith(">"):
        text = "\n".join(line[1:].removeprefix(" ") for line in text.split("\n")).strip()
    if (boxed := BOXED.fullmatch(text)) and "\\boxed" not in source:
        text = boxed[1].strip()
    if (wrapped := WRAPPED.fullmatch(text)) and "</" not in source:
        text = wrapped[2].strip()
    fenced = FENCED.fullmatch(text)
    if fenced and "```" not in source:
        text = fenced[1].strip()
    if text.startswith("{") and not source.startswith("{"):
        text = unwrap_json(text)
    end = QUOTES.get(text[:1])
    is_quoted = end is not None and text.endswith(end) and not source.strip().startswith(tuple(QUOTES))
    inside = text[1:-1].replace("\\", " ")
    # Inside words, an apostrophe is no quotation mark.
    if is_quoted and not re.search(rf"(?<!\w)[{text[0]}{end}]|[{text[0]}{end}](?!\w)", inside):
        return text[1:-1].strip()
    return text


def unwrap_json(text: str) -> str:
    """Return the text of a JSON object that has nothing else."""
    try:
        values = list(json.loads(text).values())
    except (ValueError, RecursionError):
        return text
    return values[0].strip() if len(values) == 1 and isinstance(values[0], str) else text


def remove_reasoning(text: str, source: str) -> str:
    """Return the text outside of reasoning.

    Servers leave out the opening mark if it is part of the prompt, and the closing one if the tokens end before it.
    """
    if final := FINAL.match(text):
        text = text[final.end() :]
    elif "<|channel|>" in text and "<|channel|>" not in source:
        return ""
    elif (final := PLAIN_FINAL.match(text)) and not PLAIN_FINAL.match(source):
        text = text[final.end() :]
    if REASONING.search(source):
        return text
    kept, depth, start = [], 0, 0
    for mark in REASONING.finditer(text):
        is_opening = mark["open"] is not None
        if depth == 0 and is_opening:
            kept.append(text[start : mark.start()])
        elif depth == 0:
            kept.clear()
        depth = depth + 1 if is_opening else max(depth - 1, 0)
        start = mark.end()
    return "".join([*kept, text[start:] if depth == 0 else ""])


def remove_template(text: str, source: str) -> str:
    """Return the text up to the first token of a chat template, without such tokens before it."""
    if TEMPLATE.search(source):
        return text
    text = text.lstrip()
    while leading := TEMPLATE.match(text):
        text = text[leading.end() :].lstrip()
    following = TEMPLATE.search(text)
    return text[: following.start()] if following else text


def remove_closings(text: str, source: str) -> str:
    """Return the text without an explanation of the changes at its end, and without up to `MAX_TALK` closings."""
    if not EXPLANATION.search(source):
        text = EXPLANATION.sub("", text).rstrip()
    if not LAST_SENTENCE.search(source):
        text = LAST_SENTENCE.sub("", text)
    for _ in range(MAX_TALK):
        before, _, last = text.rpartition("\n")
        ending = source.strip().rpartition("\n")[2]
        if (
            not before.strip()
            or len(last) > MAX_CLOSING_CHARS
            or not CLOSING.fullmatch(last)
            or CLOSING.fullmatch(ending)
        ):
            break
        text = before.rstrip()
    return text
