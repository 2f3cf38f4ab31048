"""`make mutants`: mutmut, and of decorated functions also those whose whole body is one transaction.

mutmut alone leaves out all functions with a decorator, and so half of the state machines.
"""

from __future__ import annotations

import libcst
from mutmut.__main__ import cli
from mutmut.mutation.file_mutation import MutationVisitor

skip = MutationVisitor._skip_node_and_children


def skip_but_no_transaction(visitor: MutationVisitor, node: libcst.CSTNode) -> bool:
    if isinstance(node, libcst.FunctionDef):
        decorators = [libcst.Module([]).code_for_node(each.decorator) for each in node.decorators]
        if decorators == ["transaction.atomic"]:
            node = node.with_changes(decorators=[])
    return skip(visitor, node)


MutationVisitor._skip_node_and_children = skip_but_no_transaction

if __name__ == "__main__":
    cli()
