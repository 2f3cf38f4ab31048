"""Messages between the server, the nodes and the processes that nodes start. `version.py` has the version rules.

The module of a message is imported when the message is first used: a training process needs those of files alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.protocol.files import *
    from trainer.protocol.lease import *
    from trainer.protocol.node import *
    from trainer.protocol.orders import *
    from trainer.protocol.rephrase import *
    from trainer.protocol.results import *
    from trainer.protocol.swarm import *
    from trainer.protocol.version import *
else:
    MODULES = ("version", "files", "results", "rephrase", "swarm", "orders", "node", "lease")

    def __getattr__(name):
        if not name.startswith("__"):
            for module in (importlib.import_module(f"{__name__}.{module}") for module in MODULES):
                if name in vars(module):
                    return globals().setdefault(name, vars(module)[name])
        raise AttributeError(f"{__name__} has no {name}")
