"""Rephrasing for the dataset swarm: what volunteers run, and the checks that the server runs too.

    chunks, prompts, languages, checks   pure: no torch, no HTTP; the server imports them
    backends/                            language-model back ends, one file each
    writing                              one chunk in one style: prompt, check, retry
    serve, causal                        a small model on the CPU with OpenAI's API
    flags, pairs                         command-line options of back ends; files of rephrased texts

The session, which takes and submits packets, is part of the node (`trainer.node.job_handlers.rephrase`). The commands
are `trainer/cli/rephrase*.py`.
"""
