"""The smoke test: finds most mistakes of an architecture in a minute on a CPU.

    dailytrain smoke ARCH

`trainer.cli.smoke` is trusted code. It starts `child` in the sandbox, which imports the architecture, counts its full
size on fake tensors and trains a small model for 200 steps. Then `causality` checks with the scorer's model processes
that the small model does not look ahead. `findings` turns the measurements into messages. A node runs the same test for
an entry.

The smoke test finds mistakes. It does not detect deliberate cheating: the scorer does.
"""
