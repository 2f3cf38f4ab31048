"""The smoke test: finds most mistakes of an architecture on a CPU.

    dailytrain smoke ARCH

`trainer.cli.smoke` is trusted code. It starts `child` in the sandbox, which imports the architecture and traces it at
its full size and at a small one. The rest works on the graphs, outside of the sandbox: `traced_files` counts the full
size, `small_model` trains the small model for 200 steps and measures with the scorer whether it looks ahead. `findings`
turns the measurements into messages. A node runs the same test for an entry.

The smoke test finds mistakes. Cheats are the scorer's subject.
"""
