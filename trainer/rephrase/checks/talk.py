"""Talk: what a model says of its own making, before, inside and after the text. The words are also those of `cleaning`.

Whether it is talk cannot be known, so the model is asked again. What the source itself has is no talk.
"""

from __future__ import annotations

import re

from trainer.rephrase.languages import UNKNOWN, identify_language

MAX_END_CHARS = 400  # of a text's two ends, and of a line, that patterns see: bounds their time
MARKS = "*_#> \t\n-"  # of Markdown, before a word

YES = (
    r"(?:sure|certainly|of course|absolutely|okay|ok|all ?right|hmm+|gladly|no problem|got it|understood|great question"
    r"|natürlich|gerne|claro|por supuesto|bien sûr|d['’]accord|certo|certamente|com certeza)(?: thing)?"
)
REPHRASE = r"(?:(?:para|re)phras|rewrit|rewrote|reword|restat|simplif|summari)"
MADE = (
    rf"(?:{REPHRASE}\w*|version|rendition|rendering|conver\w*|translat\w*"
    r"|(?:the|a|an|new|your) (?:new )?(?:text|passage|dialogue)|question\w*(?: and|-)answer\w*)"
)
TEXTS = (
    r"(?:text|passage|paragraph|version|conversation|dialogue|excerpt|word problem)\b(?! (?:file|edit|field|box|input))"
)
KEEPS = r"(?:keeps?|retains?|maintains?|preserves?|conveys?|captures?|aims?|uses?|simplifies|stays|is written)"
I_DID = r"i(?:'ve|’ve| have| tried| kept| used| changed| aimed)"
CLOSINGS = (
    r"(?:i )?hope (?:this|that|it|these)\b.*\b(?:help\w*|meets?|works|satisf\w+|suits|useful|what you)\b.*",
    r"i hope you (?:like|enjoy|find) (?:it|this)\b.*|ich hoffe, (?:das|dies|es) hilft.*",
    r"(?:please )?(?:let me know|feel free)\b.*",
    r"if you(?:'|’| )(?:d like|need|want|prefer|would)\b.*\b(?:ask|let me know|tell me|feel free|happy to|glad to)\b.*",
    r"(?:is there anything|would you like|do you (?:want|need)|shall i|should i)\b.*\?",
    rf"(?:please )?note(?: that)?\b[:\s].*\b(?:{MADE}|original|{I_DID})\b.*",
    rf"(?:this|the|my) (?:\w+ )?{MADE}(?: \w+)? {KEEPS}\b.*",
    rf"this {KEEPS} (?:all |the )*(?:original )?(?:meaning|facts?|details?|information|content)\b.*",
    (
        r"i (?:have |['’]ve )?(?:replaced|simplified|rephrased|reworded|shortened|kept|changed) .*"
        r"\b(?:words?|sentences?|text|facts?|meaning)\b.*"
    ),
    r"(?:word count|tokens?)\s*:?\s*~?\d+.*|~?\d+ words",
    r"-{3,}|\*{3,}|end of (?:the )?\w+",
)
CLOSING = re.compile(rf"[*_#(\[\s]*(?:{'|'.join(CLOSINGS)})[*_)\]\s]*", re.IGNORECASE)

LAST = r"(?=[:：][*_\"”]*\s|[*_]*[ \t]*\n\s*\n)"  # ends an introduction
MAKE = (
    rf"(?:{REPHRASE}|(?:convert|translat|condens|produc|writ|creat|mak|giv|turn|provid|generat|craft|output|keep|cover"
    rf"|understand|analy|read)\w*\b[^.\n]{{0,60}}?\b(?:{TEXTS}"
    r"|(?:questions?(?: and |-)answer|markdown table|tutorial|summary|every fact|all facts)))"
)
LET = r"let(?: me|['’]s| us)"
FORMS = (
    # Reasoning without a mark.
    (
        rf"(?:{YES}|well|so|now|first)?[\s,.!]*(?:the|this|our) user "
        rf"(?:wants?|needs|asks|asked|gave|has given|is asking)\b"
        rf"[^.\n]{{0,60}}?\b(?:{REPHRASE}|{TEXTS}|me to\b|us to\b)"
    ),
    r"(?:they|you) (?:want|asked) (?:me|us) to\b",
    rf"{YES}[,.!…—-]+\s+\S",
    rf"(?:(?:first|now|so)[\s,]+)?(?:i|we|{LET})\b[^.\n]{{0,40}}?\b{MAKE}",
    rf"{LET} (?:think|break (?:this|it|the text) down|carefully|draft)\b",
    rf"(?:the )?(?:task|prompt|instructions?) (?:is to|asks?|says?|wants?|requires?)\b[^.\n]{{0,40}}?\b{MAKE}",
    r"(?:here(?:['’]s| is) )?(?:a |my |the )?(?:thinking|thought|reasoning|analysis)(?: process)?[*_ ]*:",
    rf"(?:to|step 1[:.]) (?:{REPHRASE}\w+|understand|analy[sz]e|read) (?:this|the) (?:\w+ )?(?:{TEXTS}|task\b)",
    r"(?:the|this) (?:given |provided |original )?(?:text|passage|excerpt) (?:can be|says|describes|discusses)\b",
    # Introductions, labels and roles.
    rf"here(?:['’]s| is| are) (?!an? (?:\w+ )?(?:example|list)|(?:some|the|how|what|where)\b)[^\n]{{0,160}}?{LAST}",
    rf"(?:here(?:['’]s)?|below|the following)\b[^\n]{{0,100}}?\b(?:{REPHRASE}|{TEXTS})[^\n]{{0,100}}?{LAST}",
    r"here you go\b|as (?:you )?requested\b|try this[:.!]",
    r"in (?:simpler|simple|plain|other|easier) (?:words|terms|language|english)[*_]*:",
    rf"(?:[\w-]+ ){{0,3}}{REPHRASE}\w*(?: [\w-]+){{0,3}}[*_ ]*(?:\([^)\n]{{1,40}}\))?[*_ ]*[:：][*_\"”\s]",
    (
        r"(?:the |my |your |new |final |revised |improved |encyclopedic )*"
        r"(?:output|answer|response|result|version|text|passage|draft)[*_ ]*(?:\([^)\n]{1,40}\))?[*_ ]*(?:[:：]|\n)"
    ),
    r"(?:human|user|ai|assistant|model|bot)[*_ ]*:|<(?:answer|output|response|result|text|rewrite|paraphrase)>",
    (
        r"(?:voici|voilà|hier (?:ist|sind|kommt|is|folgt)|aquí|aqui|ecco|her er|här är|oto|zde je|iată|íme|tässä|işte"
        rf"|berikut|sau đây|dưới đây)\b[^\n]{{0,160}}?{LAST}"
    ),
)
TALKS = tuple(re.compile(form, re.IGNORECASE) for form in FORMS)
LINE = re.compile(
    r"(?:wait|hmm+)[,.—-]+ (?:i|the|so|let|we|but|that)\b|let me (?:re-?(?:check|read|write)|double)"
    r"|(?:final|revised|improved) (?:answer|version|output|draft|text)\b[^\n]{0,20}:|word count\b[^\n]{0,20}:",
    re.IGNORECASE,
)
BOXED = re.compile(r"\A\$*\s*\\boxed|\\boxed\{[^}]{25}|the (?:final )?answer is[^\n]{0,9}\$?\\boxed", re.IGNORECASE)
MAX_LATIN_DIFFERENCE = 0.8  # of the first line's share of ASCII letters and that of the rest


def is_talk(text: str, source: str, style: str = "") -> bool:
    """Return whether a text seems to speak of its making, is fenced, or begins in another language than the rest."""
    return any(said and not has for said, has in zip(find_talk(text, style), find_talk(source, style), strict=True))


def find_talk(text: str, style: str) -> list[bool]:
    """Return whether the text has each kind of talk. Patterns see the ends of the text and of its lines only."""
    opening = text.lstrip(MARKS)[:MAX_END_CHARS]
    last_sentence = re.split(r"(?<=[.!?]) +", text[-MAX_END_CHARS:].rpartition("\n")[2])[-1]
    return [
        *(form.match(opening) is not None for form in TALKS),
        style != "math" and any(LINE.match(line.lstrip(MARKS)[:MAX_END_CHARS]) for line in text.split("\n")),
        style != "math" and BOXED.search(text) is not None,
        CLOSING.fullmatch(last_sentence) is not None,
        any(text.startswith(mark) and text.count(mark) % 2 == 1 for mark in ("```", '"""')),
        begins_in_other_language(text),
    ]


def begins_in_other_language(text: str) -> bool:
    """Return whether the first line is in other letters than the rest, or ends with a colon and in another language."""
    first, _, rest = text[: 10 * MAX_END_CHARS].partition("\n")
    letters = [list(filter(str.isalpha, part)) for part in (first, rest)]
    if not all(letters):
        return False
    latin_shares = [sum(map(str.isascii, part)) / len(part) for part in letters]
    if abs(latin_shares[0] - latin_shares[1]) > MAX_LATIN_DIFFERENCE:
        return True
    if not first.rstrip("*_ ").endswith((":", "：")):
        return False
    languages = {identify_language(first), identify_language(rest)}
    return len(languages) == 2 and UNKNOWN not in languages
