"""Flags for reviewers on added Python code, found in its syntax tree; the code never runs.

A flag is not a verdict: opening a file can be legitimate. No flag proves nothing: obfuscated code (getattr of a
computed string) is not found. The sandbox protects the nodes; flags only save the reviewer time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from leaderboard.submissions.diffs import has_hidden_characters

KINDS = {
    "network": "Accesses a network",
    "process": "Starts or controls processes",
    "files": "Reads or writes files",
    "native": "Loads machine code",
    "code": "Creates code at run time",
    "surroundings": "Inspects its environment",
    "others": "Changes other modules",
    "hidden": "Hard to read",
    "import": "Imports something new",
}  # worst first

# Dotted names by kind. The longest match decides.
NAMES: dict[str, str] = {
    "network": """
        socket ssl urllib urllib3 http httpx requests aiohttp ftplib smtplib poplib imaplib telnetlib xmlrpc websockets
        websocket paramiko asyncio selectors socketserver huggingface_hub datasets wandb boto3 webbrowser torch.hub
        torch.distributed.rpc torch.distributed.TCPStore
        """,
    "process": """
        subprocess multiprocessing pty signal resource sched os.system os.popen os.fork os.forkpty os.kill os.killpg
        os.posix_spawn os.posix_spawnp os.startfile os.setuid os.setgid os.nice torch.multiprocessing
        concurrent.futures.ProcessPoolExecutor
        """,
    "files": """
        open io.open io.FileIO os.open os.read os.write os.remove os.unlink os.rename os.replace os.rmdir os.mkdir
        os.makedirs os.listdir os.scandir os.walk os.chmod os.chown os.link os.symlink os.truncate os.path pathlib
        shutil tempfile glob fileinput mmap sqlite3 zipfile tarfile safetensors torch.save torch.load torch.from_file
        numpy.load numpy.save numpy.savez numpy.memmap numpy.fromfile
        """,
    "native": "ctypes cffi _ctypes cupy torch.utils.cpp_extension torch.ops.load_library torch.classes.load_library",
    "code": """
        eval exec compile __import__ importlib pkgutil runpy pickle cPickle dill cloudpickle marshal shelve code codeop
        types.CodeType types.FunctionType builtins base64 zlib codecs bz2 lzma gzip
        """,
    "surroundings": """
        os.environ os.environb os.getenv os.putenv os.getpid os.uname sys._getframe sys.modules sys.settrace sys.path
        sys.setprofile sys.meta_path sys.argv inspect gc traceback atexit threading platform getpass pwd faulthandler
        tracemalloc weakref globals locals vars
        """,
}
MODULES = {name: kind for kind, names in NAMES.items() for name in names.split()}
BUILT_IN = frozenset({"open", "eval", "exec", "compile", "__import__", "globals", "locals", "vars"})
PREFIXES = {"os.exec": "process", "os.spawn": "process"}
ALLOWED_IMPORTS = frozenset(  # no flag
    """
    __future__ abc bisect collections contextlib copy dataclasses enum fractions functools heapq itertools math numbers
    operator random re statistics string textwrap types typing typing_extensions warnings torch trainer einops
    """.split()  # noqa: SIM905
)
INTERNALS = frozenset(
    {"__globals__", "__code__", "__closure__", "__builtins__", "__subclasses__", "__mro__", "__bases__", "__loader__"}
)
MIN_PACKED_LENGTH = 1000
MAX_SOURCE_LENGTH = 400_000


@dataclass(frozen=True, order=True)
class Flag:
    path: str
    line: int
    kind: str
    what: str  # a name in the code, or a short description

    @property
    def label(self) -> str:
        return KINDS[self.kind]


def find_flags(path: str, source: str, before: str, added: frozenset[int]) -> list[Flag]:
    """Return the flags of the added lines of a Python file. `before`: its source on main, or empty."""
    hidden = [
        Flag(path, number, "hidden", "invisible characters")
        for number, line in enumerate(source.split("\n"), 1)
        if number in added and has_hidden_characters(line)
    ]
    tree = parse_source(source)
    if tree is None:
        return [*hidden, Flag(path, 0, "hidden", "not valid Python, so it has no other flags")]
    known = frozenset(list_imports(parse_source(before) or ast.Module([], [])))
    found = {flag for flag in flag_tree(path, tree, known) if flag.line in added}
    specific = {flag for flag in found if not any(is_more_specific(other, flag) for other in found)}
    return sorted({*hidden, *specific}, key=lambda flag: (flag.line, list(KINDS).index(flag.kind), flag.what))


def is_more_specific(one: Flag, other: Flag) -> bool:
    return one.line == other.line and one.kind == other.kind and one.what.startswith(f"{other.what}.")


def parse_source(source: str) -> ast.Module | None:
    if len(source) > MAX_SOURCE_LENGTH:
        return None
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def list_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."


def flag_tree(path: str, tree: ast.Module, known: frozenset[str]) -> Iterator[Flag]:
    names = map_local_names(tree)
    for node in ast.walk(tree):
        for kind, what in (*flag_import(node, known), *flag_use(node, names), *flag_assignment(node, names)):
            yield Flag(path, getattr(node, "lineno", 0), kind, what)


def map_local_names(tree: ast.Module) -> dict[str, str]:
    """Return the full names of imported names: `r` -> `subprocess.run`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.split(".")[0]
                names[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def flag_import(node: ast.AST, known: frozenset[str]) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        imports = [(alias.name, alias.name) for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        imports = [(node.module, f"{node.module}.{alias.name}") for alias in node.names]
    else:
        return
    for module, name in imports:
        if kind := get_kind(name):
            yield kind, name
        elif module not in known and module.split(".")[0] not in ALLOWED_IMPORTS:
            yield "import", module


def flag_use(node: ast.AST, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
        name = get_full_name(node, names)
        if (is_imported(node, names) or name in BUILT_IN) and (kind := get_kind(name)):
            yield kind, name
    if isinstance(node, ast.Attribute) and node.attr in INTERNALS:
        yield "surroundings", node.attr
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and is_packed(node.value):
        yield "hidden", f"a string of {len(node.value):,} characters without words"


def is_packed(text: str | bytes) -> bool:
    return len(text) >= MIN_PACKED_LENGTH and len(text.split()) < len(text) / 40


def flag_assignment(node: ast.AST, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the places that set attributes of imported objects (monkey patching)."""
    for target in get_targets(node):
        if isinstance(target, ast.Attribute) and (name := get_full_name(target, names)) and is_imported(target, names):
            yield "others", f"{name} is set"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
        for target in node.args[:1]:
            if is_imported(target, names):
                yield "others", f"{node.func.id} of {get_full_name(target, names)}"


def get_targets(node: ast.AST) -> Iterable[ast.expr]:
    if isinstance(node, ast.Assign | ast.Delete):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def is_imported(node: ast.expr, names: Mapping[str, str]) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in names


def get_full_name(node: ast.expr, names: Mapping[str, str]) -> str:
    """Return the full name, such as `subprocess.run`, or an empty string if it is not a plain name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([names.get(node.id, node.id), *reversed(parts)])


def get_kind(name: str) -> str:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if kind := MODULES.get(".".join(parts[:length])):
            return kind
    return next((kind for prefix, kind in PREFIXES.items() if name.startswith(prefix)), "")
